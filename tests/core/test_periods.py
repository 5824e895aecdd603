"""Periods of budgets: half open, in their time zone, also where days have 23 or 25 hours."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.periods import Period

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC if zone == "UTC" else ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("kind", "zone", "now", "start", "end"),
    [
        ("month", "UTC", "2026-11-27 12:00", "2026-11-01 00:00", "2026-12-01 00:00"),
        ("month", "UTC", "2026-12-01 00:00", "2026-12-01 00:00", "2027-01-01 00:00"),
        ("month", "UTC", "2028-02-29 23:59", "2028-02-01 00:00", "2028-03-01 00:00"),
        ("month", BERLIN, "2026-03-31 23:30", "2026-03-01 00:00", "2026-04-01 00:00"),
        ("month", BERLIN, "2026-10-25 02:30", "2026-10-01 00:00", "2026-11-01 00:00"),
        ("week", "UTC", "2026-11-27 12:00", "2026-11-23 00:00", "2026-11-30 00:00"),
        ("week", BERLIN, "2026-10-25 23:00", "2026-10-19 00:00", "2026-10-26 00:00"),
        ("week", BERLIN, "2026-03-30 00:00", "2026-03-30 00:00", "2026-04-06 00:00"),
    ],
)
def test_a_period_begins_and_ends_at_midnight_of_its_time_zone(
    kind: str, zone: str, now: str, start: str, end: str
) -> None:
    period = Period(kind, zone)
    assert period.start(at(now, zone)) == at(start, zone)
    assert period.end(at(now, zone)) == at(end, zone)
    assert period.written(at(end, zone)) == f"{end} {zone}"


@given(
    st.sampled_from(["month", "week"]),
    st.sampled_from(["UTC", BERLIN, "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"]),
    st.floats(0, 4e9),
)
def test_every_instant_is_in_one_period_and_the_next_begins_where_it_ends(kind: str, zone: str, now: float) -> None:
    period = Period(kind, zone)
    start, end = period.start(now), period.end(now)
    assert start <= now < end
    assert period.start(start) == start and period.start(end) == end
    most = timedelta(days=8 if kind == "week" else 32).total_seconds()
    assert end - start <= most


def test_for_ever_has_no_end_and_a_window_moves() -> None:
    assert (Period().start(5.0), Period().end(5.0)) == (-math.inf, math.inf)
    assert (Period("30d").start(1e9), Period("30d").end(1e9)) == (1e9 - 30 * 86400, math.inf)


@pytest.mark.parametrize(("kind", "zone"), [("year", "UTC"), ("0s", "UTC"), ("month", "Mars/Olympus"), ("", "UTC")])
def test_what_is_no_period_is_refused(kind: str, zone: str) -> None:
    with pytest.raises(ValueError):
        Period(kind, zone)
