"""Policies on nodes of several kinds: shares and configurations worked out by hand, and the same from a live driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from coach import plugins
from coach.core.cluster import Allocation, Node, Resources
from coach.core.policies.api.allocation import ClusterView
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.rounds.fair import most_of
from coach_research.policies.rounds.sia import Option, Turn, best_of
from coach_research.workload import Work, by_counts
from tests.core.policies.policy_examples import Job

#: A fast kind and a slow one, a GPU each.
TWO = Cluster(np.array([[8.0, 64.0, 1.0], [8.0, 64.0, 1.0]]), kinds=("fast", "slow"))


def job(epochs: float, kinds: Mapping[str, float], most: int = 1, arrival: float = 0.0) -> Work:
    """It trains an epoch a second and worker on nodes of a kind that is not named."""
    return Work(
        arrival,
        epochs,
        np.array([0.0, 0.0, 1.0]),
        maximum=Allocation(most, 0),
        speed=by_counts(lambda workers, _: float(workers)),
        kinds=kinds,
        start_seconds=10.0,
        rescale_seconds=10.0,
    )


def finished(policy: str, works: list[Work], cluster: Cluster = TWO) -> list[float]:
    ends: list[float] = Engine(cluster, works, plugins.policy(policy)).run().column("finished").tolist()
    return ends


def test_a_gang_is_as_fast_as_the_slowest_of_its_nodes() -> None:
    works = [replace(job(100.0, {"slow": 0.5}, most=2), minimum=Allocation(2, 0))]
    assert finished("fifo", works) == [110.0]


def test_gavels_program_gives_each_job_the_same_multiple_of_an_equal_share() -> None:
    """Rates (4, 1) and (2, 1): with half of each kind 2.5 and 1.5; what one gains by more of the fast kind the other
    loses. Rates (4, 1) and (1, 2): with the kind that suits it each has 4/2.5 and 2/1.5 of that.
    """

    def solved(rates: list[list[float]]) -> tuple[list[list[float]], float]:
        gains = np.array(rates) / (np.array(rates).sum(axis=1, keepdims=True) / 2)
        shares, level = most_of(gains, np.ones((2, 2)), gains)
        return np.round(shares, 3).tolist(), level

    assert solved([[4.0, 1.0], [2.0, 1.0]]) == ([[0.5, 0.5], [0.5, 0.5]], pytest.approx(1.0))
    assert solved([[4.0, 1.0], [1.0, 2.0]]) == ([[1.0, 0.0], [0.0, 1.0]], pytest.approx(4 / 3))
    assert solved([[4.0, 1.0], [1.0, 1.0]]) == ([[1.0, 0.0], [0.0, 1.0]], pytest.approx(1.0))


def test_the_most_throughput_gives_the_fast_kind_to_whom_it_helps_most() -> None:
    assert most_of(np.array([[4.0, 1.0], [2.0, 1.5]]), np.ones((2, 2)))[0].tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("policy", ["gavel", "max-throughput", "sia"])
def test_each_job_ends_on_the_kind_that_suits_it(policy: str) -> None:
    """The first is four times as fast on the fast kind, the second as fast on both."""
    ends = finished(policy, [job(8000.0, {"fast": 4.0}), job(8000.0, {})])
    assert ends[0] < 2900.0
    assert ends[1] < 8400.0


def test_under_gavel_two_equal_jobs_take_turns_on_the_fast_kind() -> None:
    """Each trains (4 + 1) / 2 epochs a second in the mean."""
    ends = finished("gavel", [job(20000.0, {"fast": 4.0}), job(20000.0, {"fast": 4.0})])
    assert ends == pytest.approx([8000.0, 8000.0], rel=0.12)


def test_sias_program_takes_the_configurations_of_the_least_cost_that_fit() -> None:
    """Of 4 fast and 2 slow GPUs: all 4 for one would cost 0.5 + 1.1 with the other on the slow ones at 0.9."""

    def option(number: int, workers: int, kind: str, cost: float, forced: bool = False) -> Option:
        return Option(jobs[number], Turn(Allocation(workers, 0), kind), 0, cost, forced)  # type: ignore[arg-type]

    engine = Engine(TWO, [job(1.0, {}), job(1.0, {})], plugins.policy("fifo"))
    engine.run(until=0.0)
    jobs = list(engine.jobs.values())
    options = [
        option(0, 4, "fast", 0.5),
        option(0, 2, "fast", 0.7),
        option(1, 2, "fast", 0.6),
        option(1, 2, "slow", 0.9),
    ]
    room = {"fast": np.array([9.0, 9.0, 4.0]), "slow": np.array([9.0, 9.0, 2.0])}
    assert best_of(options, 1.1, room) == [options[1], options[2]]  # 1.3, not 1.4
    assert best_of(options[:1] + options[2:3], 1.1, room) == [options[0]]  # 0.5 + 1.1, not 1.1 + 0.6
    kept = [options[0], options[1], options[2]._replace(cost=2.0, forced=True)]
    assert best_of(kept, 1.1, room) == [kept[1], kept[2]]


@pytest.mark.parametrize(("policy", "counts"), [("sia", [1, 2, 4, 8]), ("pollux", [1, 2, 4, 8])])
def test_a_job_alone_doubles_its_gpus_round_by_round(policy: str, counts: list[int]) -> None:
    cluster = Cluster(np.array([[8.0, 64.0, 4.0]] * 2))
    lines: list[str] = []
    Engine(cluster, [job(3000.0, {}, most=8)], plugins.policy(policy), log=lines.append).run()
    plans = [re.findall(r"\(\d+, (\d+), 0\)", line) for line in lines if "Start(" in line]
    assert [sum(map(int, plan)) for plan in plans] == counts


def test_a_job_that_changes_often_pays_for_it() -> None:
    """Two equal jobs on a fast and a slow GPU keep what they have: a change costs both, and gains the sum nothing."""
    engine = Engine(TWO, [job(3000.0, {"fast": 2.0}), job(3000.0, {"fast": 2.0})], plugins.policy("sia"))
    record = engine.run()
    assert record.column("preemptions").sum() <= 2


def test_random_jobs_on_three_kinds_all_end() -> None:
    dice = np.random.default_rng(7)
    cluster = Cluster(np.array([[8.0, 64.0, 4.0]] * 5), kinds=("a", "a", "b", "b", "c"))
    works = [
        job(float(dice.exponential(3000)) + 10, {"a": 2.0, "b": 1.5}, int(dice.choice([1, 2, 4, 8])), 60.0 * at)
        for at in range(40)
    ]
    for policy in ("gavel", "max-throughput", "sia", "pollux", "tiresias"):
        assert not np.isnan(finished(policy, works, cluster)).any()


def test_a_live_job_is_sent_to_the_kind_on_which_it_is_fast() -> None:
    """Two live jobs; the policy answers with nodes, by the speeds that each has on a kind."""

    @dataclass(frozen=True)
    class Live(Job):
        fast: float = 1.0

        def speed(self, allocation: Allocation, kind: str | None = None) -> float:
            return (self.fast if kind == "fast" else 1.0) * allocation.workers / 1000.0

    one = Allocation(1, 1)
    jobs = [Live("a", minimum=one, maximum=one, fast=1.1), Live("b", minimum=one, maximum=one, fast=4.0)]
    nodes = tuple(Node(f"node-{kind}", Resources(2.5, 8.0), kind=kind) for kind in ("slow", "fast"))
    policy = plugins.policy("max-throughput")
    policy.allocate(jobs, ClusterView(nodes, 0.0))
    assert {job: list(places) for job, places in policy.places.items()} == {"a": ["node-slow"], "b": ["node-fast"]}
