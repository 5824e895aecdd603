"""When waiting jobs start: by hand for a queue of known lengths, and against the run that really follows."""

from __future__ import annotations

import math

import pytest

from coach.core.cluster import Resources
from coach.core.estimation.interval import Interval
from coach.core.lifecycle.forecast import time_left
from coach.core.lifecycle.start_forecast import SCENARIOS, _futures, _Queue, _starts, expected_starts
from tests.core.lifecycle.faulty_cluster import World, nodes, spec

ONE = {"workers": {"min": 1, "max": 1}, "servers": {"min": 1, "max": 1}}


def cores(count: float) -> Resources:
    return Resources(count, 0.0)


def test_a_queue_of_known_lengths_starts_as_counted_by_hand() -> None:
    # Two nodes of 4 cores. A holds 4 on the first for 10 s, B holds 2 on the second for 30 s, so 2 are free there.
    # C needs 3 together: after A, at 10, for 5 s. D needs 2: fits now, but C is before it: at 10. E needs 4 on one
    # node: C's is free at 15. F needs 2 + 2: one fits beside B until D ends at 10 + 40, and the first node is E's
    # until 15 + 7 = 22, where both fit.
    waiting = [(2, [cores(3)]), (3, [cores(2)]), (4, [cores(4)]), (5, [cores(2), cores(2)])]
    queue = _Queue([cores(0), cores(2)], [(0, [(0, cores(4))]), (1, [(1, cores(2))])], waiting)
    lengths = [10.0, 30.0, 5.0, 40.0, 7.0, 1.0]
    assert _starts(queue, lengths) == [10.0, 10.0, 15.0, 22.0]
    assert queue.free == [cores(0), cores(2)], "a future changes nothing for the next"


def test_what_never_fits_keeps_those_behind_it_waiting() -> None:
    queue = _Queue([cores(4)], [(0, [(0, cores(0))])], [(1, [cores(5)]), (2, [cores(1)])])
    assert _starts(queue, [3.0, 1.0, 1.0]) == [math.inf, math.inf]


def test_each_job_takes_each_quantile_of_its_length_once() -> None:
    found = _futures([Interval(50.0, 100.0, 400.0)] * 60)
    assert found.shape == (SCENARIOS, 60)
    assert sorted(found[:, 7]) == pytest.approx(sorted(found[:, 50])) and len(set(found[:, 7])) == SCENARIOS
    assert (found[:, 7] < 50.0).sum() == (found[:, 7] > 400.0).sum() == 4, "a tenth on either side"
    assert sorted(found[:, 3])[SCENARIOS // 2] == pytest.approx(100.0)


def test_a_job_starts_when_the_one_before_it_ends() -> None:
    world = World.of(nodes(1, 2.0))
    for name in ("first", "second", "third"):
        world.submit(spec(name, **ONE))
    while len(world.job("first").epochs) < 8:
        world.step()
    jobs = world.reducer.jobs
    found = expected_starts(jobs.values(), nodes(1, 2.0), world.now)
    left = time_left(jobs["first"], world.now)
    assert left is not None
    assert list(found) == ["second", "third"]
    assert found["second"].expected == pytest.approx(left.expected)
    assert found["second"].low <= left.expected * 1.001 and found["second"].high <= left.high * 1.001
    assert found["third"].expected > found["second"].expected
    asked = world.now
    while not world.job("second").gang.pods:
        world.step()
    assert found["second"].low <= world.now - asked <= found["second"].high + 5.0


def test_nothing_is_said_where_nothing_is_known() -> None:
    world = World.of(nodes(1, 2.0))
    for name in ("first", "second"):
        world.submit(spec(name, **ONE))
    assert expected_starts(world.reducer.jobs.values(), nodes(1, 2.0), world.now) == {}
    limited = World.of(nodes(1, 2.0))
    for name in ("first", "second"):
        limited.submit(spec(name, timeLimit="100s", **ONE))
    found = expected_starts(limited.reducer.jobs.values(), nodes(1, 2.0), limited.now)
    second = found["second"]
    assert second.expected == pytest.approx(50.0) and 5.0 < second.low < 50.0 < second.high < 200.0
