"""What a run is measured by, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coach.simulation.metrics import Result, compare, jain, measure, nearest_rank
from coach.simulation.recorder import COLUMNS

NAN = math.nan


def result(finished: list[float], **columns: list[float]) -> Result:
    """Jobs that came a second after one another, each for 10 s of work on 4 of 8 cores for 30 s."""
    count = len(finished)
    given = {
        "arrived": list(range(count)),
        "finished": finished,
        "executed": [10.0] * count,
        "money": [NAN] * count,
        **columns,
    }
    values = {name: np.array(given.get(name, [0.0] * count), float) for name in COLUMNS}
    return Result("any", 1, values, {}, {}, np.array([0.0, 30.0]), np.array([[0.5, 0.25, 0.0], [0.0] * 3]), 40.0)


def test_times_count_the_jobs_that_finished() -> None:
    found = measure(result([10.0, 21.0, 42.0, NAN], killed=[0, 0, 0, 1], reached=[1, 1, 1, 0]))
    assert (found.jobs, found.finished, found.killed, found.reached) == (4, 3, 1, 3)
    assert (found.completion_mean, found.completion_p50, found.completion_p95) == (70 / 3, 20.0, 40.0)
    assert found.completion_p99 == 40.0
    assert found.makespan == 42.0
    assert found.waiting_mean == pytest.approx(70 / 3 - 10.0)
    assert (found.slowdown_mean, found.slowdown_p95) == pytest.approx((7 / 3, 4.0))
    # Slowdowns 1, 2 and 4.
    assert found.fairness == pytest.approx(49 / (3 * 21))


def test_utilisation_is_weighed_by_time_and_the_rest_is_summed_up() -> None:
    found = measure(result([10.0, 21.0], preemptions=[1, 2], migrations=[0, 1], resizes=[3, 0], money=[0.5, 0.25]))
    assert (found.cpu_used, found.memory_used, found.gpu_used) == (0.375, 0.1875, 0.0)
    assert (found.preemptions, found.migrations, found.resizes) == (3, 1, 3)
    assert found.money == 0.75


def test_nothing_measured_is_not_zero() -> None:
    found = measure(result([NAN]))
    assert found.finished == 0
    for value in (found.completion_mean, found.makespan, found.slowdown_mean, found.fairness, found.money):
        assert math.isnan(value)


def test_jobs_better_and_worse_are_those_that_finished_in_both() -> None:
    # Completion times of 10, 20, 40 and 10 against 20, 20.1, 30 and none.
    found = compare(result([10.0, 21.0, 42.0, 13.0]), result([20.0, 21.1, 32.0, NAN]))
    assert (found.better, found.worse, found.same) == (1, 1, 1)
    assert (found.better_mean, found.worse_mean) == pytest.approx((-0.5, 1 / 3))
    assert (found.best, found.worst) == pytest.approx((-0.5, 1 / 3))


@pytest.mark.parametrize(("values", "index"), [([3.0, 3.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25)])
def test_fairness_is_one_where_all_have_the_same_and_one_over_all_where_one_has_it_all(
    values: list[float], index: float
) -> None:
    assert jain(np.array(values)) == index


def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    values = np.arange(1.0, 101.0)
    assert [nearest_rank(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50.0, 95.0, 99.0, 100.0]


def test_every_job_of_a_run_is_counted_by_how_it_ended() -> None:
    found = result([10.0, NAN, NAN, NAN], reached=[1, 0, 0, 0], killed=[0, 1, 0, 0])
    assert replace(found, never_fits={3: "needs more"}).ends == {
        "finished": 1, "killed": 1, "NeverFits": 1, "not finished": 1,
    }  # fmt: skip
    assert replace(found, reasons={0: "TargetReached", 1: "TimeLimit"}).ends == {
        "TargetReached": 1,
        "TimeLimit": 1,
    }
