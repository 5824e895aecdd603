"""The handler's clock: wall time that never goes back, even if the system's clock is set back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from coach.core.errors import UserError
from coach.core.jobs.accounts import Account

log = logging.getLogger(__name__)

#: Seconds between this clock and the system's beyond which one of both is wrong, and a person has to say which.
DAY = 86_400.0
#: What this clock makes up of a difference in a second: deadlines, and what is paid by time, are wrong by as much.
FOLLOWS = 0.01


class Clock:
    """Seconds since 1970, read once from the system and carried on by the monotonic clock.

    `not_before` is the time of the journal's last record: if the system's clock was set back, this one starts there.
    A correction of the system's clock is followed slowly, by FOLLOWS of the time that passes; one of more than a day
    is said and not followed.
    """

    def __init__(
        self,
        not_before: float = 0.0,
        system: Callable[[], float] = time.time,
        passed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._system, self._passed = system, passed
        self._at = passed()
        self._now = max(system(), not_before)
        self._said = False

    def now(self) -> float:
        """Seconds since 1970."""
        at = self._passed()
        passed, self._at = max(0.0, at - self._at), at
        ahead = self._system() - (self._now + passed)
        if abs(ahead) > DAY:
            self._say(ahead)
            ahead = 0.0
        self._now += passed + min(max(ahead, -FOLLOWS * passed), FOLLOWS * passed)
        return self._now

    def _say(self, ahead: float) -> None:
        if not self._said:
            self._said = True
            log.warning(
                "this machine's clock says %s, which is %.1f days %s the time of the last record and what has passed "
                "since: Coach goes on from there. If the machine's clock is wrong, set it; else start Coach anew",
                _day(self._system()), abs(ahead) / DAY, "after" if ahead > 0 else "before",
            )  # fmt: skip


class ClockGapError(UserError):
    """The machine's clock has gone on by more than a day, and budgets over jobs would begin another period by it."""


def refuse_gap(then: float | None, now: float, accounts: Iterable[Account]) -> None:
    """Say a gap of more than a day between the time `then` that a handler left, if any did, and `now`.

    Raises ClockGapError where a budget over jobs would begin its next period by it: a clock that is wrong would give
    it new money.
    """
    if then is None or now - then <= DAY:
        return
    days = (now - then) / DAY
    gap = f"the last handler was here at {_day(then)}, this machine's clock says {_day(now)}, {days:.1f} days"
    moved = [one.name for one in accounts if not one.removed and one.period.start(then) != one.period.start(now)]
    if moved:
        raise ClockGapError(
            f"{gap} later: {', '.join(moved)} would begin another period. If the clock is wrong, set it; "
            "if it is right, say so once: coach doctor --clock-is-right"
        )
    log.warning("%s later", gap)


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M UTC}"
