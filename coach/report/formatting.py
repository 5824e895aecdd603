"""Quantities as text, in one place, so that tables, lines and figures have the same formats."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from coach.core.cluster import Allocation
from coach.core.estimation.interval import Interval
from coach.core.money import Money, to_amount

if TYPE_CHECKING:
    from coach.core.jobs.job import Job
    from coach.core.spec.job import JobSpec

#: The text of an unknown value. "Not measured" is not zero.
UNKNOWN = "-"
#: The reason of a job that has not ended while no handler has its journal.
ORPHAN = "its handler ended without stopping it"


def goal(metric: str, target: float | None) -> str:
    """`loss 0.35`; `best loss` of a job without a target."""
    return f"best {metric}" if target is None else f"{metric} {target:g}"


def epochs(spec: JobSpec) -> str:
    """What the learning curve counts, in words."""
    return "epochs" if spec.epoch is not None else "passes over the data"


def number(value: float | None, digits: int = 3, *, zeros: bool = False) -> str:
    """`value` with `digits` significant digits and no exponent: 0.0931, 1.2, 431; with `zeros`, 1.20."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return {math.inf: "infinite", -math.inf: "-infinite"}.get(value, "not a number")
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 12)}f}"
    return text if zeros or "." not in text else text.rstrip("0").rstrip(".")


def score(value: float | None) -> str:
    """A loss or an accuracy: four digits after the point, more where it is very small."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.3g}"


def amount(value: float | None) -> str:
    """Currency units: whole cents from 1 up, else two significant digits at least: 12.50, 0.021, 0.00021."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) >= 1:
        return f"{value:.2f}"
    places = 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(places, 2), 9)}f}"


def left(budget: float | None, spent: float) -> str:
    """What is left of a budget, in currency units, with as many decimals as `amount` gives what was spent."""
    if budget is None:
        return UNKNOWN
    decimals = len(amount(spent).partition(".")[2])
    return f"{budget - spent:.{decimals}f}" if decimals else plain_amount(budget - spent)


def money(value: Money | None, currency: str) -> str:
    """Nano-units as an amount with its currency: `0.00021 USD`; None is `none`."""
    return "none" if value is None else f"{amount(to_amount(value))} {currency}"


def spent_of(spent: Money, budget: Money | None, currency: str, account: str | None = None) -> str:
    """`0.0021 / 0.01 USD`, or `0.0021 USD / none`; without a budget of its own the name of its account."""
    if budget is None:
        return f"{amount(to_amount(spent))} {currency} / {account or 'none'}"
    return f"{amount(to_amount(spent))} / {plain_amount(to_amount(budget))} {currency}"


def plain_amount(value: float) -> str:
    """A budget without trailing zeros beyond cents: 5.00, 0.05, 0.0004."""
    return f"{value:.2f}" if value == round(value, 2) else f"{value:.9f}".rstrip("0")


def duration(seconds: float | None) -> str:
    """`0.13s`, `3.4s`, `42s`, `3m12s`, `2h05m`, `3d04h`: the two largest units."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    if math.isinf(seconds):
        return "forever"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.995:
        return f"{seconds:.2f}s"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d{hours % 24:02d}h"


def duration_interval(interval: Interval | None) -> str:
    """`1m20s (50s-2m10s)`."""
    if interval is None:
        return UNKNOWN
    return f"{duration(interval.expected)} ({duration(interval.low)}-{duration(interval.high)})"


def bounded(value: float | None, low: float | None, high: float | None, words: Callable[[float | None], str]) -> str:
    """A value with its bounds, each in `words`: `0.0031 (0.0025-0.0038)`."""
    return words(None) if value is None else f"{words(value)} ({words(low)}-{words(high)})"


def percent(share: float, *, signed: bool = False) -> str:
    """0.183 is `18 %`; small shares keep a digit: `1.8 %`; signed: `+18 %`."""
    value = share * 100
    text = f"{value:+.0f}" if signed else f"{value:.0f}"
    if abs(value) < 9.95:
        text = f"{value:+.1f}" if signed else f"{value:.1f}"
    return f"{text} %"


def count(many: int, one: str, more: str | None = None) -> str:
    """`1 epoch`, `3 epochs`."""
    return f"{many:,} {one if many == 1 else more or one + 's'}"


def starting(message: str) -> str:
    """A job's message; where that is `3 functions for 2 workers, 1 server`, what they are for."""
    found = re.fullmatch(r"\d+ functions for (.+)", message)
    return found[1] if found else message


def resumes_from(job: Job) -> str:
    """Where a job goes on that is resumed: `the checkpoint of epoch 3`."""
    if not job.epochs or job.begins_anew:
        return "the start"
    return f"the checkpoint of {job.epochs[-1].name}" if job.spec.program is None else "its newest checkpoint"


def limits(smallest: Allocation, largest: Allocation) -> str:
    """Allocations from one to another: `1x1 to 4x4`, `1 to 4 workers`, or `always 2x1`."""
    if smallest == largest:
        return f"always {smallest}"
    return f"{smallest.cell} to {largest}"


def moment(at: float | None) -> str:
    """A time (seconds since 1970) on this machine's clock, to the second."""
    return UNKNOWN if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def local(at: str | None) -> str:
    """A time in ISO 8601 on this machine's clock, to the second."""
    return UNKNOWN if at is None else moment(datetime.fromisoformat(at).timestamp())


def clock(at: float) -> str:
    """The time of day, to the second."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def iso(at: float | None) -> str | None:
    """A time for machines: ISO 8601, local time with its offset; None for never, and for what no date can hold."""
    if at is None or math.isinf(at):
        return None
    try:
        return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None
