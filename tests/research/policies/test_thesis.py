"""The thesis's policy: the same four mini-epochs for all jobs, the barrier after them, and the quadratic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import State
from coach.core.policies.api.allocation import Reason
from coach.plugins import policy
from coach.simulation.reducer_simulation import Driver
from coach_research.policies.thesis import MINI_EPOCHS
from tests.core.lifecycle.faulty_cluster import nodes, spec
from tests.core.policies.policy_examples import Job, cluster, decided, server_speed
from tests.simulation.test_reducer_simulation import DYNAMICS

pytestmark = pytest.mark.standard

DONE = tuple(MINI_EPOCHS)


def ran(*names: str, cores: float = 8.0, **changes: Any) -> tuple[Driver, list[act.RunEpoch]]:
    orders: list[act.RunEpoch] = []

    def hear(record: ev.Event | act.Action) -> None:
        if isinstance(record, act.RunEpoch):
            orders.append(record)

    driver = Driver(nodes(3, cores), policy("thesis"), seed=1, journal=hear)
    for number, name in enumerate(names):
        # The later ones are slower, so that the others have to wait for them.
        dynamics = replace(DYNAMICS, speed=lambda w, s, n=number: DYNAMICS.speed(w, s) / (1 + n))
        driver.submit_at(0.0, name, spec(name, **changes), dynamics)
    return driver, orders


def test_every_job_trains_the_four_mini_epochs_in_their_order_and_none_begins_before_the_last_of_them() -> None:
    driver, orders = ran("a", "b", "c")
    driver.run()
    assert {one.state for one in driver.ended.values()} == {State.SUCCEEDED}
    for name in "abc":
        mini = [order.allocation for order in orders if order.job == name and order.kind is EpochKind.PROBE]
        assert mini == list(MINI_EPOCHS)
    first_full = min(order.at for order in orders if order.kind is EpochKind.FULL)
    assert first_full >= max(order.at for order in orders if order.kind is EpochKind.PROBE)


def test_a_job_that_is_suspended_holds_nobody_at_the_barrier() -> None:
    driver, orders = ran("a", "b")
    driver.at(0.1, lambda: ev.SuspendRequested(driver.now, "b", now=True))
    while "a" not in driver.ended and driver.step():
        pass
    assert driver.ended["a"].state is State.SUCCEEDED
    assert not [order for order in orders if order.job == "b" and order.kind is EpochKind.FULL]


def test_a_job_that_comes_later_does_not_stop_those_that_train() -> None:
    driver, orders = ran("a")
    driver.submit_at(40.0, "late", spec("late"), DYNAMICS)
    driver.run()
    full = [order.at for order in orders if order.job == "a" and order.kind is EpochKind.FULL]
    assert [at for at in full if 40.0 < at < driver.ended["late"].started + 20.0]


def test_limits_leave_mini_epochs_out() -> None:
    driver, orders = ran("a", workers={"min": 1, "max": 1}, servers={"min": 1, "max": 2})
    driver.run()
    assert [o.allocation for o in orders if o.kind is EpochKind.PROBE] == [(1, 1), (1, 2)]


def test_the_barrier_holds_back_who_has_measured_and_not_begun() -> None:
    fresh = Job("a", begun=False, measured=DONE[:2], fixed=Allocation(2, 1))
    waits = Job("b", begun=False, measured=DONE)
    trains = Job("c", begun=True, measured=DONE)
    decision = policy("thesis").allocate([fresh, waits, trains], cluster(64.0))
    assert decision.allocations["b"] is None
    assert decision.allocations["a"] == (2, 1) and decision.allocations["c"] is not None
    assert [step.reason for step in decision.why("b")] == [Reason.BARRIER]
    after = policy("thesis").allocate([replace(fresh, measured=DONE), waits, trains], cluster(64.0))
    assert after.allocations["b"] is not None


def test_a_mini_epoch_that_never_fits_holds_nobody() -> None:
    """One core: 1x1 fits and nothing larger does."""
    small = Job("a", begun=False, measured=DONE[:1])
    assert policy("thesis").allocate([small], cluster(2.0)).allocations["a"] == (1, 1)


def test_it_climbs_on_the_quadratic_and_not_on_the_true_speeds() -> None:
    """The quadratic through four points has its top where it has; the speed itself grows up to 8 workers."""
    job = Job("a", speed_of=server_speed(100.0, 10.0), measured=DONE, maximum=Allocation(8, 8))
    assert decided(policy("thesis"), [job], cluster(64.0)) != decided(policy("coach"), [job], cluster(64.0))
