"""Times of day in traces."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from coach_research.traces.draft import Draft, shown

__all__ = ["UTC", "seconds_of", "time_of"]

FORMAT = "%Y-%m-%d %H:%M:%S"

#: How traces write a time that is not known.
UNKNOWN = ("", "None", "NULL", "null", "NaN")


def time_of(draft: Draft, line: int, what: str, text: object, zone: tzinfo) -> datetime | None:
    """A time such as `2017-10-09 07:01:58`; None where it is not known. Raises UserError."""
    if text is None or text in UNKNOWN:
        return None
    try:
        return datetime.strptime(str(text)[:19], FORMAT).replace(tzinfo=zone)
    except ValueError as error:
        raise draft.mistake(
            line, f'{what}: "{shown(str(text))}" is given; use a time such as 2017-10-09 07:01:58'
        ) from error


def seconds_of(draft: Draft, line: int, what: str, text: object, zone: tzinfo) -> float | None:
    """The same in seconds since 1970."""
    at = time_of(draft, line, what, text, zone)
    return None if at is None else at.timestamp()
