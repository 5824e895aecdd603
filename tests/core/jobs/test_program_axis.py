"""Where reports of programs are on their learning curves."""

from __future__ import annotations

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs.epoch import Epoch, EpochKind, EpochReport
from coach.core.jobs.program_axis import ProgramAxis

Report = tuple[float | None, float]


def counted(reports: list[Report], after: float | None = None, begun: bool = False) -> list[float | None]:
    """The passes over the data before each report; None where it does not count. A value below 0.1 is the target."""
    axis = ProgramAxis(after, begun)
    return [axis.take(epoch, value) if axis.counts(epoch, value, value < 0.1) else None for epoch, value in reports]


@pytest.mark.parametrize(
    ("reports", "passes"),
    [
        pytest.param([(None, 0.9), (None, 0.8)], [1, 1], id="no epoch"),
        pytest.param([(0, 0.9), (1, 0.8), (2, 0.7)], [1, 1, 1], id="counted from 0 on"),
        pytest.param([(1, 0.9), (2, 0.8), (3, 0.7)], [1, 1, 1], id="counted from 1 on"),
        pytest.param([(5, 0.9), (10, 0.8)], [5, 5], id="each fifth epoch"),
        pytest.param([(0.25, 0.9), (0.5, 0.8), (2, 0.7)], [0.25, 0.25, 1.5], id="fractions"),
        pytest.param([(1, 0.9), (1, 0.9), (2, 0.8)], [1, None, 1], id="said twice"),
        pytest.param([(1, 0.9), (1, 0.8), (1, 0.7), (2, 0.6)], [1, 1, 1, 1], id="several in an epoch"),
        pytest.param([(1, 0.9), (2, 0.8), (1, 0.9), (2, 0.8)], [1, 1, 1, 1], id="the next fold"),
        pytest.param([(7, 0.9), (3, 0.8), (8, 0.7)], [7, None, 1], id="back in the middle"),
        pytest.param([(1, 0.9), (None, 0.8), (2, 0.7)], [1, 1, 1], id="an epoch is missing"),
        pytest.param([(1, 0.9), (1, float("nan"))], [1, 1], id="not a number"),
    ],
)
def test_epochs_position_the_reports_of_one_start(reports: list[Report], passes: list[float | None]) -> None:
    assert counted(reports) == pytest.approx(passes)


@pytest.mark.parametrize(
    ("reports", "passes"),
    [
        pytest.param([(4, 0.9), (5, 0.8), (6, 0.7)], [None, None, 1], id="repeats two epochs"),
        pytest.param([(0, 0.9), (5, 0.8), (5.5, 0.7)], [None, None, 0.5], id="repeats all"),
        pytest.param([(6, 0.7), (7, 0.6)], [1, 1], id="repeats nothing"),
        pytest.param([(4, 0.05)], [1], id="a repeated epoch reaches the target"),
        pytest.param([(None, 0.9)], [1], id="says no epoch any more"),
    ],
)
def test_an_epoch_that_a_restart_repeats_does_not_count_again(
    reports: list[Report], passes: list[float | None]
) -> None:
    assert counted(reports, after=5, begun=True) == pytest.approx(passes)


def test_where_epochs_were_no_axis_before_a_restart_each_report_counts_as_one() -> None:
    assert counted([(7, 0.9), (7, 0.8), (8, 0.7)], after=None, begun=True) == [1, 1, 1]


def test_epochs_before_the_first_report_may_be_of_an_older_run_and_do_not_count_as_speed() -> None:
    first = EpochReport(57, 1, 0.5, None, "", 10.0, 0.0, warm_up_samples=57, warm_up_seconds=10.0)
    second = EpochReport(1, 1, 0.4, None, "", 5.0, 0.0)
    reports = [
        Epoch(number, EpochKind.FULL, Allocation(1, 0), 1, "", 0.0, 10.0, 56.0 + number, "own.g1", report)
        for number, report in enumerate((first, second), 1)
    ]
    assert [epoch.epochs_per_second for epoch in reports] == [0.1, 0.2]
    assert [epoch.fraction for epoch in reports] == [57, 1], "the curve's axis is the program's own"
