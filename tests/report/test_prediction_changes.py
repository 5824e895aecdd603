"""A prediction that changed by more than its interval is a line of the events, with what changed."""

from dataclasses import replace

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs.actions import RunEpoch
from coach.core.jobs.epoch import JobForecast
from coach.report.history import history
from coach.report.prediction_changes import Prediction
from tests.report.recorded_jobs import steady_job

pytestmark = pytest.mark.quick

#: 20 epochs of 5 s, at 0.01 USD a second.
BEFORE = Prediction(JobForecast((80.0, 100.0, 130.0), (0.8, 1.0, 1.3)), Allocation(1, 1), 20.0, 5.0)


def times(factor: float, **also: object) -> Prediction:
    """The same with so many times its seconds and money."""
    seconds, cost = (tuple(factor * value for value in bounds) for bounds in (BEFORE.whole.seconds, BEFORE.whole.cost))
    return replace(BEFORE, whole=JobForecast(seconds, cost), **also)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (times(1.4, epochs=28.0), "about 28 epochs instead of 20"),
        (times(1.4, epoch_seconds=7.0), "an epoch takes 7.0s instead of 5.0s"),
        (
            times(0.5, epoch_seconds=2.5, allocation=Allocation(2, 1)),
            "an epoch takes 2.5s with 2x1 instead of 5.0s with 1x1",
        ),
        (replace(BEFORE, whole=JobForecast(BEFORE.whole.seconds, (3.2, 4.0, 5.2))), "its seconds cost 4 times as much"),
    ],
)
def test_what_changed_most_is_the_reason(now: Prediction, why: str) -> None:
    said = now.changed(BEFORE, "USD")
    assert said is not None
    assert said.endswith(f": {why}")


def test_a_value_within_the_interval_is_no_news_nor_a_small_change_outside() -> None:
    assert times(1.3).changed(BEFORE, "USD") is None
    narrow = replace(BEFORE, whole=JobForecast((99.0, 100.0, 101.0), (0.99, 1.0, 1.01)))
    assert times(1.05).changed(narrow, "USD") is None
    assert times(1.2).changed(narrow, "USD") is not None


def test_a_job_whose_epochs_become_eight_times_as_long_has_the_line_once() -> None:
    """A recorded job: its last two orders predict what it would on a slower machine."""
    world = steady_job()
    orders = [one for one in world.history if isinstance(one, RunEpoch) and one.fraction == 1.0 and one.job_forecast]
    last = orders[-2]

    def slower(record: object) -> object:
        if not isinstance(record, RunEpoch) or record.at < last.at or record.job_forecast is None:
            return record
        seconds = [tuple(8.0 * value for value in bounds or ()) for bounds in (record.predicted_seconds,)]
        whole = JobForecast(
            *(tuple(8.0 * x for x in b) for b in (record.job_forecast.seconds, record.job_forecast.cost))
        )  # type: ignore[arg-type]
        return replace(record, predicted_seconds=seconds[0], job_forecast=whole)  # type: ignore[arg-type]

    before = [line.text for line in history(world.history) if "is now predicted" in line.text]
    after = [line for line in history(map(slower, world.history)) if "is now predicted" in line.text]
    new = [line for line in after if line.text not in before]
    assert [(line.at, line.important) for line in new] == [(last.at, True)]
    assert "an epoch takes" in new[0].text
