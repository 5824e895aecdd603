"""What a program reports, and what is wanted of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from coach.core.spec.metric_source import EPOCH, MetricSource

#: Metrics of one report; more are left out.
MAX_METRICS = 64
#: Characters of a number that is given as text.
LONGEST_NUMBER = 64
#: Names by which programs say after how many epochs they report; transformers' `current_epoch` is later than the
#: evaluation whose result it comes with ...
EPOCH_NAMES = (EPOCH, "current_epoch", "train_epoch")
#: ... and how many samples.
SAMPLES_NAMES = ("samples", "samples_seen")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.@/()-]{0,63}")


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """Values of metrics by name, and after how many epochs, as the program counts them; None where it says none.

    `source` is the kind of what they came from: `pattern`, `lines`, `status`, `report` or a file's.
    """

    values: Mapping[str, float]
    epoch: float | None = None
    source: str = "pattern"

    def before(self, other: ProgramReport) -> bool:
        """Whether the other one says what comes after it: the same epoch or a later one."""
        if self.epoch is None or other.epoch is None:
            return self.epoch is other.epoch
        return self.epoch <= other.epoch


@dataclass(frozen=True, slots=True)
class Wanted:
    """The metric whose values count, and the sources that a job file names.

    A metric without a source, and the epoch, may come from any line and any request. `samples_per_epoch` makes epochs
    of samples.
    """

    metric: str
    sources: Sequence[MetricSource] = ()
    samples_per_epoch: int | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Wanted:
        """From what `dataclasses.asdict` made of it."""
        sources = tuple(MetricSource(**source) for source in data["sources"])
        return cls(data["metric"], sources, data["samples_per_epoch"])


def number(value: object) -> float | None:
    """A number, also one that is given as text; None for anything else. It may be NaN or infinite."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= LONGEST_NUMBER):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None


@lru_cache(maxsize=1024)  # a program says the same names again and again
def plain(name: str) -> str:
    """A name without what differs between writers: `eval/loss`, `Eval Loss` and `eval_loss` are one."""
    return re.sub(r"[\s./-]+", "_", name.strip().lower())


def numbers(record: Mapping[Any, Any], depth: int = 3) -> dict[str, float]:
    """The numbers of a record by their names, as far as those can be metrics; those of records in it with them."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if len(found) >= 4 * MAX_METRICS:
            break
        if isinstance(value, Mapping):
            found = numbers(value, depth - 1) | found if depth else found
        elif isinstance(name, str) and _NAME.fullmatch(name) and (known := number(value)) is not None:
            found[name] = known
    return found


def epoch_of(values: Mapping[str, float], samples_per_epoch: int | None) -> float | None:
    """How many epochs were trained, as these values say it; None where they do not."""
    by_name = {plain(name): value for name, value in values.items()}
    found = next((by_name[name] for name in EPOCH_NAMES if name in by_name), None)
    if found is None and samples_per_epoch is not None:
        samples = next((by_name[name] for name in SAMPLES_NAMES if name in by_name), None)
        found = None if samples is None else samples / samples_per_epoch
    return found if found is not None and math.isfinite(found) and found >= 0.0 else None
