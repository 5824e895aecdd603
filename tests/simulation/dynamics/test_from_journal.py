"""Truths learned from journals: a run in virtual time is predicted from the journals of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.training.fidelity import Recorded, alone, predict
from coach.core.cluster import Allocation, Role
from coach.core.jobs.events import JobSubmitted
from coach.plugins import policy
from coach.simulation.dynamics.from_journal import MeasuredCores, Run, learn, runs_of
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.reducer_simulation import Driver
from tests.core.lifecycle.faulty_cluster import nodes, spec
from tests.simulation.real_runs import JOURNALS, ONE_OF_EACH

pytestmark = pytest.mark.standard

DYNAMICS = JobDynamics(
    lambda w, s: 0.1 * w / (1 + 0.15 * (w - 1) + 0.1 * w / s),
    lambda x: 1 / (0.4 * x + 0.5) + 0.1,
    pod_seconds=0.7,
    new_group_seconds=1.1,
    same_group_seconds=0.2,
    evaluate_seconds=0.5,
    speed_noise=0.05,
)


def simulated(dynamics: JobDynamics, seed: int, most: int = 3) -> tuple[float, list[object]]:
    records: list[object] = []
    driver = Driver(nodes(2, 4), policy("coach"), seed=seed, journal=records.append)
    limits = {"min": 1, "max": most}
    driver.submit_at(0.0, "job", spec(workers=limits, servers=limits), dynamics)
    driver.run()
    return driver.ended["job"].ended, records


def test_the_dynamics_behind_a_journal_are_learned_from_it() -> None:
    learned = learn([runs_of(simulated(DYNAMICS, seed)[1])["job"] for seed in (1, 2, 3)])
    for at in (Allocation(1, 1), Allocation(2, 2), Allocation(3, 3)):
        assert learned.speed(*at) == pytest.approx(DYNAMICS.speed(*at), rel=0.1)
    assert learned.loss(5.0) == pytest.approx(DYNAMICS.loss(5.0), rel=0.02)
    assert learned.pod_seconds == pytest.approx(0.7)
    assert learned.new_group_seconds == pytest.approx(1.1, rel=0.02)
    assert learned.same_group_seconds == pytest.approx(0.2, rel=0.02)
    assert 0.02 < learned.speed_noise < 0.08


def test_a_run_is_predicted_from_the_journals_of_others() -> None:
    took, _ = simulated(DYNAMICS, 4)
    learned = learn([runs_of(simulated(DYNAMICS, seed)[1])["job"] for seed in (1, 2, 3)])
    predicted, _ = simulated(learned, 0)
    assert predicted == pytest.approx(took, rel=0.05)


def test_evaluation_is_learned_by_the_workers_who_share_it() -> None:
    dynamics = replace(DYNAMICS, evaluate_seconds=lambda w, s: 6.0 / w)
    run = runs_of(simulated(dynamics, 1)[1])["job"]
    learned = learn([run])
    evaluated = {epoch.allocation.workers for epoch in run.job.evaluated_epochs}
    assert len(evaluated) > 1
    for workers in evaluated:
        assert learned.evaluating(workers, 1) == pytest.approx(6.0 / workers)
    assert learned.evaluating(99, 1) == pytest.approx(6.0 / 99)


#: No server makes it faster: its workers compute nearly all the time.
BOUND = replace(
    DYNAMICS,
    speed=lambda w, s: 0.1 * w**0.7,
    loss=lambda x: 1 / (0.2 * x + 0.5) + 0.1,
    speed_noise=0.02,
    computing_seconds=lambda w, s: 9.5 / w,
)


def test_what_a_worker_computes_is_reported_and_learned_as_it_is() -> None:
    run = runs_of(simulated(BOUND, 1)[1])["job"]
    for epoch in run.job.epochs:
        assert epoch.computing_seconds == pytest.approx(9.5 / epoch.allocation.workers)
    learned = learn([run])
    for at in (Allocation(1, 1), Allocation(2, 1), Allocation(2, 3), Allocation(7, 1)):
        assert learned.computing(*at) == pytest.approx(9.5 / at.workers)


def test_what_a_worker_computes_is_not_reported_where_it_is_not_known() -> None:
    run = runs_of(simulated(DYNAMICS, 1)[1])["job"]
    assert {epoch.report.thread_seconds for epoch in run.job.epochs} == {0.0}
    assert learn([run]).computing(2, 1) == 0.0


def test_a_job_that_computes_all_the_time_tries_no_second_server_in_virtual_time_either() -> None:
    learned = learn([runs_of(simulated(BOUND, 5, 2)[1])["job"]])

    def with_a_server_more(dynamics: JobDynamics) -> list[int]:
        """Seeds whose run measured a second server with one worker."""
        runs = {seed: runs_of(simulated(dynamics, seed, 2)[1])["job"] for seed in range(4)}
        return [
            seed for seed, run in runs.items() if any(epoch.allocation == Allocation(1, 2) for epoch in run.job.epochs)
        ]

    assert with_a_server_more(learned) == []
    assert with_a_server_more(replace(learned, computing_seconds=0.0)) != []


def test_journals_of_real_runs_are_there() -> None:
    assert len(JOURNALS) >= 5
    assert any(len(recorded.runs) > 1 for recorded in JOURNALS)


@pytest.mark.parametrize("recorded", JOURNALS, ids=lambda recorded: recorded.name)
def test_the_curve_and_the_seconds_of_a_real_run_are_learned(recorded: object) -> None:
    for run in recorded.runs.values():  # type: ignore[attr-defined]
        learned = learn([run])
        for epoch in run.job.evaluated_epochs:
            assert learned.accuracy is not None
            assert learned.accuracy(epoch.epochs_trained) == pytest.approx(epoch.report.accuracy)
            assert learned.speed(*epoch.allocation) > 0
        assert 0 < learned.pod_seconds < 10
        assert 0 <= learned.same_group_seconds <= learned.new_group_seconds + 1


@pytest.mark.parametrize("recorded", ONE_OF_EACH)
def test_a_real_run_is_as_long_in_virtual_time_with_what_it_took_itself(recorded: Recorded) -> None:
    """What the driver adds of its own; how much machines differ from run to run has no part in it."""
    for name, seconds in predict(recorded, [recorded], seeds=2).items():
        assert seconds == pytest.approx(recorded.seconds[name], rel=0.025)


#: Its worker computes on one and a half cores.
BUSY = replace(DYNAMICS, speed_noise=0.0, worker_cores=1.5)
LEAST = {"min": 1, "max": 1}


def crowded(*names: str) -> dict[str, Run]:
    """Jobs alike side by side on one machine with two cores."""
    records: list[object] = []
    driver = Driver(nodes(2, 4), policy("coach"), machine_cores=2.0, journal=records.append)
    for name in names:
        driver.submit_at(0.0, name, spec(name, workers=LEAST, servers=LEAST), BUSY)
    driver.run()
    return runs_of(records)


def test_what_jobs_took_from_each_other_is_taken_out_again() -> None:
    both, by_itself = crowded("a", "b"), crowded("a")
    assert learn([both["a"]]).speed(1, 1) < 0.7 * BUSY.speed(1, 1)
    dynamics = learn([by_itself["a"]])
    for run in alone(both, {"a": dynamics, "b": dynamics}).values():
        assert learn([run]).speed(1, 1) == pytest.approx(BUSY.speed(1, 1), rel=0.03)
    unchanged = learn([alone(by_itself, {"a": dynamics})["a"]])
    assert unchanged.speed(1, 1) == pytest.approx(dynamics.speed(1, 1))


def test_what_others_took_is_longer_on_a_slower_machine() -> None:
    records = simulated(replace(DYNAMICS, speed_noise=0.0), 1)[1]
    one, other = (Recorded(name, records, runs_of(records), mark) for name, mark in (("a", 1.2), ("b", 1.0)))
    as_it_was, paced = (predict(one, [other], paced=paced)["job"] for paced in (False, True))
    assert as_it_was == pytest.approx(one.seconds["job"], rel=0.01)
    assert paced == pytest.approx(1.2 * as_it_was, rel=0.02)


def test_runs_of_another_job_of_that_name_say_nothing() -> None:
    records = simulated(DYNAMICS, 1)[1]
    longer = [replace(one, spec=spec(maxEpochs=77)) if isinstance(one, JobSubmitted) else one for one in records]
    one, other = (Recorded("a", some, runs_of(some)) for some in (records, longer))
    with pytest.raises(ValueError, match="a: no other run of its job job"):
        predict(one, [other])


def test_workers_of_less_than_a_core_use_no_more_than_one() -> None:
    for recorded in JOURNALS:
        for run in recorded.runs.values():
            cores = learn([run]).worker_cores
            assert isinstance(cores, MeasuredCores)
            assert run.job.spec.resources.of(Role.WORKER).cpu < 1.0
            assert all(0.0 < used < 1.0 for used in cores.measured.values())
