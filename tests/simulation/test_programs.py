"""Programs in virtual time: a change of workers costs its seconds, reports come between, money is held in slices."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.cluster import Allocation, Node, Resources
from coach.core.jobs import actions as act
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.plugins import POLICIES, policy
from coach.simulation.dynamics.from_journal import learn, runs_of
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.dynamics.measured_speeds import find_speed
from coach.simulation.dynamics.synthetic import assumed
from coach.simulation.reducer_simulation import Driver

pytestmark = pytest.mark.standard

#: Policies of coach-research.
OF_PAPERS = [
    "tetris",
    "dl2",
    "fitgpp",
    "lrtp",
    "rand",
    "round-robin",
    "specon",
    "kod2",
    "tf-operator",
    "thesis",
]
OF_PAPERS.append("thesis:remakes_pods=yes")


def document(name: str = "own", *, resumes: bool = True, **changes: Any) -> dict[str, Any]:
    """The job file of a program of one to four workers."""
    spec = {
        "program": {"command": ["train"], "resumes": resumes},
        "workers": {"min": 1, "max": 4 if resumes else 1},
        "target": {"metric": "eval_loss", "value": 0.15, "epochsInARow": 1},
        "budget": {"amount": 5, "currency": "USD"},
        "resources": {"worker": {"cpu": "1", "memory": "1Gi"}},
    }
    file = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    return {**file, "spec": spec | changes}


def dynamics(interval: float = 60.0, *, starts: float = 8.0, stops: float = 2.0, power: float = 0.8) -> JobDynamics:
    """One that reports every `interval` seconds with one worker; its loss reaches 0.15 in the 16th report."""
    return JobDynamics(
        lambda w, s: w**power / interval,
        lambda x: 1 / (0.4 * x + 0.5),
        data_size=1,
        new_group_seconds=starts,
        same_group_seconds=0.0,
        evaluate_seconds=0.0,
        release_seconds=stops,
    )


def run(*jobs: tuple[float, dict[str, Any], JobDynamics], by: str = "coach") -> tuple[Driver, list[Any]]:
    """Simulate jobs, each submitted at its time, on a node of four cores."""
    records: list[Any] = []
    driver = Driver((Node("node", Resources(4, 8)),), policy(by), journal=records.append)
    for at, file, behaviour in jobs:
        driver.submit_at(at, file["metadata"]["name"], file, behaviour)
    driver.run()
    return driver, records


def used(records: list[Any], name: str = "own") -> list[Allocation]:
    """The allocations of its groups, in order."""
    groups = {
        record.group: record.allocation for record in records if isinstance(record, act.RunEpoch) and record.job == name
    }
    return list(groups.values())


def test_a_change_costs_its_seconds_and_is_made_where_it_saves_more() -> None:
    driver, records = run((0.0, document(), dynamics()))
    ended = driver.ended["own"]
    assert (ended.reason, ended.overshoot) == (Reason.TARGET_REACHED, 0)
    assert used(records) == [Allocation(1, 0), Allocation(4, 0)]
    assert ended.final.times.restart == pytest.approx(10.0, abs=0.5), "2 s to end and 8 s to start"
    first, second = (next(e for e in ended.final.epochs if e.group == f"own.g{n}") for n in (1, 2))
    assert first.report.train_seconds == pytest.approx(68.0, abs=0.5)
    assert second.report.train_seconds == pytest.approx(8.0 + 60.0 / 4**0.8, abs=0.5)
    # Two reports with one worker, 14 with four, a start and a change.
    assert ended.ended == pytest.approx(8 + 120 + 10 + 14 * 60 / 4**0.8, rel=0.02)


def test_the_second_epoch_is_predicted_from_the_first_alone() -> None:
    _, records = run((0.0, document(), dynamics()))
    second = next(record for record in records if isinstance(record, act.RunEpoch) and record.number == 2)
    assert second.predicted_seconds is not None
    assert second.predicted_seconds[1] == pytest.approx(68.0, abs=0.5), "all of a program's time is training"


def test_no_change_is_made_that_takes_longer_than_it_saves() -> None:
    driver, records = run((0.0, document(), dynamics(starts=3000.0)))
    assert driver.ended["own"].reason is Reason.TARGET_REACHED
    assert used(records) == [Allocation(1, 0)]


def test_workers_that_gain_nothing_cost_a_tenth_of_the_time_at_most() -> None:
    driver, _ = run((0.0, document(), dynamics(power=0.0)))
    assert driver.ended["own"].reason is Reason.TARGET_REACHED
    assert driver.ended["own"].ended < 1.1 * (8 + 16 * 60)


def test_reports_an_hour_apart_are_paid_in_slices_that_are_extended() -> None:
    driver, records = run((0.0, document(), dynamics(3600.0)))
    assert driver.ended["own"].reason is Reason.TARGET_REACHED
    reserved = [one.reservation for one in records if isinstance(one, act.RunEpoch | act.ExtendEpoch)]
    extended = [one for one in records if isinstance(one, act.ExtendEpoch)]
    assert len(extended) > len(driver.ended["own"].final.epochs)
    assert driver.ended["own"].spent > 0.5 and max(reserved) < 1e9 * driver.ended["own"].spent / 2


@pytest.mark.parametrize("by", [*sorted(POLICIES.keys() - {"static"}), "static:3", *OF_PAPERS])
def test_a_program_that_cannot_resume_is_never_started_again_by_choice(by: str) -> None:
    """A job of a higher priority comes, and wants all that there is."""
    long = document("long", resumes=False, workers={"min": 3, "max": 3}, priority=0)
    other = document("other", workers={"min": 2, "max": 4}, priority=9)
    driver, records = run((0.0, long, dynamics()), (200.0, other, dynamics()), by=by)
    assert {name: ended.reason for name, ended in driver.ended.items()} == dict.fromkeys(
        ["long", "other"], Reason.TARGET_REACHED
    )
    assert used(records, "long") == [Allocation(3, 0)]


def test_a_simulation_learns_a_program_from_its_journal() -> None:
    _, records = run((0.0, document(), dynamics()))
    learnt = learn(list(runs_of(records).values()))
    assert learnt.speed(1, 0) == pytest.approx(1 / 60, rel=0.02), "without its start"
    assert learnt.speed(4, 0) == pytest.approx(4**0.8 / 60, rel=0.02)
    assert (learnt.new_group_seconds, learnt.release_seconds) == pytest.approx((8.0, 2.0), abs=0.5)
    again, _ = run((0.0, document(), learnt))
    once, _ = run((0.0, document(), dynamics()))
    assert again.ended["own"].ended == pytest.approx(once.ended["own"].ended, rel=0.03)


@pytest.mark.parametrize(
    ("target", "goal", "value"),
    [
        ("eval_loss", "minimize", 0.8),
        ("energy", "minimize", 200.0),
        ("f1", "maximize", 0.9),
        ("reward", "maximize", 200.0),
        ("reward", "maximize", -5.0),
    ],
)
def test_a_program_that_never_ran_is_assumed_to_reach_any_target(target: str, goal: str, value: float) -> None:
    aim = {"metric": target, "value": value, "goal": goal, "epochsInARow": 1}
    file = document(target=aim, budget={"unlimited": True})
    driver, _ = run((0.0, file, assumed(TrainingJob.from_json(file), find_speed("resnet-50"), 60.0, 10.0)))
    ended = driver.ended["own"]
    assert (ended.reason, ended.epochs) == (Reason.TARGET_REACHED, 10)


def test_a_program_that_nothing_bounds_is_predicted_no_end_and_gets_the_workers_that_pay() -> None:
    records: list[Any] = []
    driver = Driver((Node("node", Resources(4, 8)),), policy("coach"), journal=records.append)
    file = document(target=None, budget={"unlimited": True})
    file["spec"] = {key: value for key, value in file["spec"].items() if value is not None}
    driver.submit_at(0.0, "own", file, dynamics())
    while not driver.reducer.jobs or len(driver.reducer.jobs["own"].epochs) < 30:
        assert driver.step()
    assert used(records) == [Allocation(1, 0), Allocation(4, 0)]
    assert all(record.job_forecast is None for record in records if isinstance(record, act.RunEpoch))
