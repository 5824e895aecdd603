"""Periods of a budget over jobs: for ever, a calendar month or week in a time zone, or a rolling window.

Instants are seconds since 1970. A zone's rules come from the time zone database, which is read once for each name:
the one file that decisions depend on. A calendar period is half open: it has its first instant, not that of the next.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from coach.core.spec import quantities

EVER, MONTH, WEEK = "ever", "month", "week"


@lru_cache
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no time zone {name!r}; such as UTC or Europe/Berlin") from None


@dataclass(frozen=True, slots=True)
class Period:
    """`kind` is `ever`, `month`, `week` (from Monday), or the length of a rolling window such as `30d`."""

    kind: str = EVER
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _zone(self.zone)
        with contextlib.suppress(ValueError):
            if self.kind in (EVER, MONTH, WEEK) or self.window:
                return
        raise ValueError(f"no period {self.kind!r}; month, week, or a rolling window such as 30d")

    @property
    def window(self) -> float | None:
        """Seconds of a rolling window; None for the others."""
        return None if self.kind in (EVER, MONTH, WEEK) else quantities.seconds(self.kind)

    def start(self, at: float) -> float:
        """From when on payments count at `at`: for ever, from the period's first instant, or within the window."""
        if self.kind == EVER:
            return -math.inf
        return at - self.window if self.window else self._calendar(at).timestamp()

    def end(self, at: float) -> float:
        """When the calendar period of `at` ends, and a new one begins; infinite for the others."""
        if self.kind not in (MONTH, WEEK):
            return math.inf
        begin = self._calendar(at)
        # Added to the date, so that a day of 23 or 25 hours is a day.
        after = begin + timedelta(days=7 if self.kind == WEEK else 31)
        return (after.replace(day=1) if self.kind == MONTH else after).timestamp()

    def _calendar(self, at: float) -> datetime:
        day = datetime.fromtimestamp(at, _zone(self.zone)).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        return day.replace(day=1) if self.kind == MONTH else day - timedelta(days=day.weekday())

    def written(self, at: float) -> str:
        """An instant in the period's time zone: `2026-12-01 00:00 UTC`."""
        return f"{datetime.fromtimestamp(at, _zone(self.zone)):%Y-%m-%d %H:%M} {self.zone}"
