"""What a program reports, and what is wanted of it."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from coach.core.spec.metric_source import EPOCH, MetricSource
from coach.platforms.program_metrics.text import PARTS, Reading, in_percent, tokens_of, whole, words_of

if TYPE_CHECKING:
    from coach.core.spec.job import JobSpec

#: Metrics of one report; more are left out.
MAX_METRICS = 64
#: Characters of a line that is shown.
SHOWN = 160
#: Records in records that are looked into.
DEPTH = 3
#: Characters of a number that is given as text.
LONGEST_NUMBER = 64
#: Names by which programs say after how many epochs they report; transformers' `current_epoch` is later than the
#: evaluation whose result it comes with ...
EPOCH_NAMES = (EPOCH, "current_epoch", "train_epoch")
#: ... and how many samples.
SAMPLES_NAMES = ("samples", "samples_seen")
_NAME = re.compile(r"[A-Za-z%][A-Za-z0-9_.@/()%\[\] '-]{0,63}")


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """Values of metrics by name, and after how many epochs, as the program counts them; None where it says none.

    `source` is the kind of what they came from: `pattern`, `lines`, `status`, `report` or a file's. `guessed`: where
    the metric is, was not said, and it was not seen in two epochs yet: such a report ends no job, and has the `line`
    that it is from. `hint`: what is there in place of the metric; such a report has nothing else.
    """

    values: Mapping[str, float]
    epoch: float | None = None
    source: str = "pattern"
    guessed: bool = False
    line: str = ""
    hint: str = ""

    def before(self, other: ProgramReport, metric: str) -> bool:
        """Whether the other one says what comes after it, and no other value of the metric in another epoch."""
        if self.epoch is None or other.epoch is None:
            return self.epoch is other.epoch
        same = int(self.epoch) == int(other.epoch) or metric not in self.values
        return same and self.epoch <= other.epoch

    def then(self, other: ProgramReport, metric: str) -> ProgramReport:
        """Both as one, with the other's values; what is known of the metric is of the last that has it."""
        last = other if metric in other.values else replace(self, epoch=other.epoch)
        return replace(last, values={**self.values, **other.values})


@dataclass(frozen=True, slots=True)
class Wanted:
    """The metric whose values count, and the sources that a job file names.

    A metric without a source, and the epoch, may come from any line and any request. `samples_per_epoch` makes epochs
    of samples. `bounded`: the metric is never above 1, as an accuracy. `percent`: its target is above 1, or its name
    says that it is in per cent.
    """

    metric: str
    sources: Sequence[MetricSource] = ()
    samples_per_epoch: int | None = None
    bounded: bool = False
    percent: bool = False

    @classmethod
    def of(cls, spec: JobSpec) -> Wanted:
        """What is wanted of a job's program."""
        from coach.core.spec.program import at_most_one  # which needs pydantic: a supervisor does without

        assert spec.program is not None
        bounded = at_most_one(spec.metric)
        percent = (spec.target is not None and spec.target.number > 1.0) or (in_percent(spec.metric) and not bounded)
        return cls(spec.metric, spec.program.sources(), spec.program.samples_per_epoch, bounded, percent)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Wanted:
        """From what `dataclasses.asdict` made of it."""
        sources = tuple(MetricSource(**source) for source in data["sources"])
        return cls(**{**data, "sources": sources})

    def as_named(self, reading: Reading) -> float | None:
        """The same of one that was found by its name. None where that says that it is in per cent, as `WER (%): 0.5`,
        and a target of 0.5 may be meant so too, or not."""
        if not in_percent(reading.name) or reading.percent or reading.total:
            return self.in_its_unit(reading)
        hundredth = replace(reading, value=round(reading.value / 100.0, 15), percent=True)
        return self.in_its_unit(hundredth) if self.bounded or self.percent else None

    def in_its_unit(self, reading: Reading) -> float | None:
        """A value of the metric as its target is given: in per cent where that is above 1; None where it is none.

        A percentage is a hundredth. What is never above 1 and yet is above 1 is a percentage too.
        """
        if reading.total and (not self.bounded or math.isnan(reading.value)):
            return None
        if reading.percent or reading.total:
            return round(100.0 * reading.value, 12) if self.percent else reading.value
        if self.bounded and not self.percent and reading.value > 1.0:
            return round(reading.value / 100.0, 15) if reading.value <= 100.0 else None
        return reading.value


@lru_cache(maxsize=1024)  # a program says the same names again and again
def plain(name: str) -> str:
    """A name without what differs between writers: `eval/loss`, `Eval Loss` and `eval_loss` are one."""
    return "_".join(words_of(name))


def numbers(record: Mapping[Any, Any]) -> dict[str, float]:
    """The numbers of a record by their names, as far as those can be metrics."""
    return {name: reading.value for name, reading in readings_of(record).items()}


def readings_of(record: Mapping[Any, Any]) -> dict[str, Reading]:
    """The same as they are written.

    One of a record in it has the names of both, `val/loss`, where its own is not the only one or the other says on what
    it was measured. A text may say that of all: `{"phase": "val", "loss": 0.3}`.
    """
    found = list(itertools.islice(_entries(record, ()), 4 * MAX_METRICS))
    own = Counter(path[-1] for path, _ in found)
    texts = itertools.islice((value for value in record.values() if isinstance(value, str)), MAX_METRICS)
    context = next((text.lower() for text in texts if text.lower() in PARTS), "")
    named: dict[str, Reading] = {}
    for path, reading in found:
        whole_path = own[path[-1]] > 1 or any(word in PARTS for name in path[:-1] for word in words_of(name))
        name = "/".join(path) if whole_path else path[-1]
        named.setdefault(name, replace(reading, tokens=tokens_of(name), name=name, context=context))
    return named


def _entries(record: Mapping[Any, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Reading]]:
    named = [(name, value) for name, value in record.items() if isinstance(name, str) and _NAME.fullmatch(name)]
    for name, value in named:
        if (known := _reading(value)) is not None:
            yield (*path, name), known
    for name, value in named:
        if isinstance(value, Mapping) and len(path) < DEPTH:
            yield from _entries(value, (*path, name))


def _reading(value: object) -> Reading | None:
    """A number, also one that is given as text; None for anything else. It may be NaN or infinite."""
    if isinstance(value, str) and len(value) <= LONGEST_NUMBER:
        return whole(value, 0, len(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return Reading((), float(value))
    except OverflowError:
        return None


def epoch_of(values: Mapping[str, float], samples_per_epoch: int | None) -> float | None:
    """How many epochs were trained, as these values say it; None where they do not."""
    by_name = {plain(name): value for name, value in values.items()}
    found = next((by_name[name] for name in EPOCH_NAMES if name in by_name), None)
    if found is None and samples_per_epoch is not None:
        samples = next((by_name[name] for name in SAMPLES_NAMES if name in by_name), None)
        found = None if samples is None else samples / samples_per_epoch
    return found if found is not None and math.isfinite(found) and found >= 0.0 else None
