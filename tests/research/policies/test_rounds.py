"""Policies that decide in rounds, and backfill: who runs when."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from coach import plugins
from coach.core.cluster import Allocation
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.rounds import integer_program
from coach_research.policies.rounds.rounds import Rounds, Turn
from coach_research.scheduling.api import EngineView, JobId
from coach_research.workload import FloatArray, Work

ROUNDS = ["gavel", "themis", "allox", "tiresias", "shockwave", "max-throughput", "min-makespan"]


def job(arrival: float, seconds: float, gpus: int = 1, nodes: int = 1) -> Work:
    count = Allocation(nodes, 0)
    return Work(arrival, seconds * nodes, np.array([0.0, 0.0, float(gpus)]), minimum=count, maximum=count)


def finished(policy: str, works: list[Work], gpus: int = 4, nodes: int = 1) -> FloatArray:
    return Engine(Cluster.uniform(nodes, 1, gpu=gpus), works, plugins.policy(policy)).run().column("finished")


@pytest.mark.parametrize("policy", [*ROUNDS, "backfill"])
def test_on_an_empty_cluster_all_jobs_run_at_once(policy: str) -> None:
    assert finished(policy, [job(0, 300), job(0, 500, 2)]).tolist() == [300, 500]


@pytest.mark.parametrize("policy", [*ROUNDS, "backfill"])
def test_random_jobs_on_several_nodes_all_end(policy: str) -> None:
    dice = np.random.default_rng(5)
    works = [
        job(
            float(60 * at),
            float(dice.exponential(900)) + 1,
            int(dice.choice([1, 2, 4])),
            int(dice.choice([1, 1, 2])),
        )
        for at in range(60)
    ]
    ends = finished(policy, works, nodes=3)
    assert not np.isnan(ends).any()


def test_gavel_gives_equal_jobs_equal_time_and_a_wide_job_half() -> None:
    """Two GPUs, three jobs of one GPU: all end near 3/2 of their time."""
    ends = finished("gavel", [job(0, 6000) for _ in range(3)], gpus=2)
    assert ends.tolist() == pytest.approx([9000] * 3, rel=0.05)
    # A job of two GPUs and two of one: each gets a third of the cluster's time.
    ends = finished("gavel", [job(0, 1200, 2), job(0, 3600), job(0, 3600)], gpus=2)
    assert ends[0] == pytest.approx(3600, rel=0.1)


def test_themis_prefers_who_fell_behind() -> None:
    """A short job that comes late to a full cluster ends about when a cluster divided by two would end it."""
    ends = finished("themis", [job(0, 20000), job(6000, 2000)], gpus=1)
    assert ends[1] - 6000 < 1.5 * 2 * 2000


def test_allox_runs_who_has_least_left_and_lets_it_end() -> None:
    ends = finished("allox:alpha=1", [job(0, 9000), job(1, 500), job(2, 4000)], gpus=1)
    assert ends[0] < ends[1] < ends[2]


def test_tiresias_puts_a_job_behind_the_others_once_it_has_had_its_service() -> None:
    """One GPU: the first job leaves it after 1,200 s, because the second has had none; the second ends first."""
    ends = finished("tiresias:threshold=1200", [job(0, 5000), job(60, 1000)], gpus=1)
    assert ends.tolist() == [6080, 2200]  # the second leaves the rest of a round idle
    # Service is GPUs times seconds: on two GPUs the first has had it after 600 s.
    ends = finished("tiresias:threshold=1200", [job(0, 5000, 2), job(60, 1000)], gpus=2)
    assert ends[1] == 600 + 1000


def test_tiresias_promotes_a_job_that_waited_as_long_as_it_ran() -> None:
    """The long job ran 1,200 s and waited as long. Then it is in the first queue again, behind those that are there."""
    works = [job(0, 5000), *(job(60 + 1000 * at, 1080) for at in range(4))]
    assert finished("tiresias:threshold=1200", works, gpus=1)[4] == 1200 + 4 * 1080
    assert finished("tiresias:threshold=1200,promote=1", works, gpus=1)[4] == 1200 + 3 * 1080 + 1200 + 1080


def test_tiresias_keeps_the_nodes_of_who_runs_and_gives_others_the_emptiest() -> None:
    speeds: list[tuple[int, ...]] = []
    works = [job(0, 300), job(1, 300)]
    works[1].speed = lambda plan: speeds.append(tuple(part[0] for part in plan)) or 0.01  # type: ignore[func-returns-value]
    finished("tiresias", works, gpus=2, nodes=2)
    assert (1,) in speeds


def test_min_makespan_keeps_the_longest_job_running() -> None:
    ends = finished("min-makespan", [job(0, 10000), *(job(0, 2500) for _ in range(4))], gpus=2)
    assert ends.max() == pytest.approx(10000, rel=0.05)


def test_shockwave_ends_the_longest_job_earlier_than_equal_shares_do() -> None:
    works = [job(0, 10000), *(job(0, 2500) for _ in range(4))]
    assert finished("shockwave", works, gpus=2).max() < 11000 < finished("gavel", works, gpus=2).max()


def test_shockwave_prefers_who_would_be_late() -> None:
    """Two jobs as long; the one that came much earlier, and has had nothing, is ahead of its time."""
    ends = finished("shockwave:k=0.000001", [job(0, 6000), job(100, 6000), job(9000, 6000)], gpus=1)
    assert max(ends[0], ends[1]) < ends[2]


def test_backfill_starts_a_later_job_only_where_it_does_not_delay_the_first_that_waits() -> None:
    """Three of four GPUs are held until 1000 s. The next job needs four; behind it wait jobs of one GPU."""
    works = [job(0, 1000, 3), job(1, 100, 4), job(2, 900), job(3, 1100), job(4, 50)]
    # 900 s fit into the gap; 1100 s do not; 50 s do, once the one of 900 s has ended.
    assert finished("backfill", works).tolist() == [1000, 1100, 902, 2200, 952]
    assert finished("fifo", works).tolist()[1:3] == [1100, 2000]


def test_backfill_goes_by_priority() -> None:
    works = [job(0, 1000, 4), job(1, 100, 4), job(2, 100, 4)]
    works[2].priority = 1
    assert finished("backfill", works).tolist() == [1000, 1200, 1100]


def test_what_a_solver_prints_is_not_taken_for_a_commands_output(capfd: pytest.CaptureFixture[str]) -> None:
    with integer_program.output_to_errors():
        ctypes.CDLL(None).printf(b"tmpSolver.run();\n")
    print("{}")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("{}\n", "tmpSolver.run();\n")


@pytest.mark.parametrize("policy", ["gavel", "themis", "allox", "max-throughput", "min-makespan", "tiresias"])
def test_where_all_jobs_fit_beside_each_other_nobody_moves(policy: str) -> None:
    """A wide job is placed first where it has to be; here there is room for it next to the others."""
    works = [*(job(0, 1000) for _ in range(3)), job(200, 300, 2, 2)]
    record = Engine(Cluster.uniform(3, 1, gpu=4), works, plugins.policy(policy)).run()
    assert record.column("preemptions").tolist() == [0, 0, 0, 0]
    assert record.column("finished").tolist() == [1000, 1000, 1000, 540]


def test_rounds_in_which_all_jobs_fit_ask_nobody_who_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = list[int]()

    def choose(self: Rounds, view: EngineView) -> dict[JobId, Turn]:
        rounds.append(round(view.now))
        return chosen(self, view)

    chosen = Rounds._choose
    monkeypatch.setattr(Rounds, "_choose", choose)
    for policy in ("gavel", "tiresias", "max-throughput", "sia"):
        rounds.clear()
        assert finished(policy, [job(0, 12_000), job(600, 6000)]).tolist() == [12_000, 6600]
        assert rounds == []
    assert finished("tiresias", [job(0, 480), job(240, 600, 4)]).tolist() == [480, 1080]
    assert rounds == [240, 360]


def test_a_job_that_comes_after_a_round_was_decided_waits_for_the_next() -> None:
    """Decided 20 s before it begins; in between one of the two jobs ends, and another one comes."""
    ends = finished("gavel:lead=20", [job(0, 230), job(0, 1000), job(235, 100)])
    assert ends.tolist() == [230, 1000, 460]
