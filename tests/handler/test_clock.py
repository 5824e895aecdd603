"""Times never go back, follow a clock that is corrected, and give no budget new money by a clock's mistake."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach.core.jobs import events as ev
from coach.handler import accounts, offline
from coach.handler.clock import DAY, FOLLOWS, Clock
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.service.journal_checks import clock_checks
from coach.service.schemas import Status
from tests.core.lifecycle.faulty_cluster import spec


class Machine:
    """A clock and a counter that a test sets."""

    def __init__(self) -> None:
        self.clock, self.counter = 1e9, 50.0

    def passes(self, seconds: float) -> None:
        self.clock += seconds
        self.counter += seconds

    def of(self, not_before: float = 0.0) -> Clock:
        return Clock(not_before, lambda: self.clock, lambda: self.counter)


@pytest.mark.parametrize("correction", [3600.0, -3600.0, 30.0, -0.5])
def test_a_correction_of_the_machines_clock_is_followed_slowly_and_never_back(correction: float) -> None:
    machine = Machine()
    clock = machine.of()
    machine.clock += correction
    before = clock.now()
    for _ in range(2000):
        machine.passes(300.0)
        now = clock.now()
        assert (1 - FOLLOWS) * 300.0 - 1e-3 <= now - before <= (1 + FOLLOWS) * 300.0 + 1e-3
        before = now
    assert before == pytest.approx(machine.clock, abs=1e-3)


@pytest.mark.parametrize("days", [40, -40])
def test_a_clock_that_jumps_by_more_than_a_day_is_said_once_and_not_followed(
    days: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    clock = machine.of()
    machine.clock += days * DAY
    for _ in range(5):
        machine.passes(60.0)
        now = clock.now()
    assert now == pytest.approx(1e9 + 300.0)
    (said,) = caplog.messages
    assert f"40.0 days {'after' if days > 0 else 'before'}" in said
    machine.clock -= days * DAY
    machine.passes(60.0)
    assert clock.now() == pytest.approx(1e9 + 360.0)


def test_a_journal_that_is_ahead_of_the_machine_is_gone_on_with_and_said(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.of(not_before=machine.clock + 400 * DAY)
    machine.passes(60.0)
    assert clock.now() == pytest.approx(1e9 + 400 * DAY + 60.0)
    assert "400.0 days before the time of the last record" in caplog.text


def left(home: StateDirectory, days: float, period: str) -> None:
    """The first journal, which a handler left so many days ago, with an account and a job that it does not pay."""
    at = time.time() - days * DAY
    with contextlib.closing(Journal.write(home.journal(1))) as journal:
        journal.append([ev.AccountSet(at, "team", 10**9, "USD", period, "UTC")])
        journal.append([ev.JobSubmitted(at, "a", spec("a"), "file:///c"), ev.SuspendRequested(at, "a", True)])
        journal.beat(at)


def start(home: StateDirectory, *, clock_is_right: bool = False) -> None:
    home.open_journal(home.journal(1), clock_is_right=clock_is_right).close()


ASKED = r"40\.\d days later: team would begin .* coach doctor --clock-is-right"


@pytest.mark.parametrize("period", ["month", "week", "30d"])
def test_a_period_begins_after_a_gap_only_when_the_clock_is_said_to_be_right(tmp_path: Path, period: str) -> None:
    home = StateDirectory(tmp_path)
    left(home, 40, period)
    for _ in range(2):  # not only at the first try
        with pytest.raises(UserError, match=ASKED):
            start(home)
    start(home, clock_is_right=True)
    start(home)  # said once


def test_the_confirmation_is_one_for_all_commands(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    left(home, 40, "month")
    with pytest.raises(UserError, match=ASKED):
        accounts.set_account(home, accounts.terms("other", 1.0, "USD"))
    (check,) = clock_checks(home)
    assert check.status is Status.OK
    accounts.set_account(home, accounts.terms("other", 1.0, "USD"))
    start(home)


def test_a_job_of_no_account_runs_beside_the_accounts_that_wait_to_be_asked(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    left(home, 40, "month")
    with contextlib.closing(home.open_journal()) as journal:
        assert journal.path == home.journal(2)
    with pytest.raises(UserError, match=ASKED):
        start(home)


@pytest.mark.parametrize(("days", "period"), [(40, "ever"), (0.5, "30d")])
def test_other_gaps_keep_nobody_from_starting(
    tmp_path: Path, days: float, period: str, caplog: pytest.LogCaptureFixture
) -> None:
    home = StateDirectory(tmp_path)
    left(home, days, period)
    with caplog.at_level(logging.WARNING):
        start(home)
    assert ("this machine's clock says" in caplog.text) == (days > 1)


def test_a_job_is_cancelled_without_a_handler_whatever_the_clock_says(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    left(home, 40, "month")
    with contextlib.closing(home.open_journal(home.journal(1), clock_is_right=True)) as journal:
        offline.cancel(journal, ["a"])
        assert journal.jobs()["a"].ended
    with pytest.raises(UserError, match=ASKED):
        start(home)  # it was not answered by the way
