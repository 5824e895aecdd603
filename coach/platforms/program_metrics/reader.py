"""Lines and records of a program, read as reports."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from coach.core.spec.metric_source import EPOCH, NUMBER, usual_pattern
from coach.platforms.program_metrics.base import (
    EPOCH_NAMES,
    MAX_METRICS,
    ProgramReport,
    Wanted,
    epoch_of,
    number,
    numbers,
    plain,
)

#: Characters of a line that are read; the rest of it is left out.
LONGEST_LINE = 4096
#: Kinds of records that a metric may come from whose source is not named.
RECORDS = ("lines", "status", "report")
#: How programs print their epoch: `Epoch 3/10`, `epoch: 0.5`, `Epoch: [3][10/100]`; not their best or last one.
_EPOCH = re.compile(
    rf"(?<!best )(?<!last )(?<!max )(?<!total )(?<![\w.@/-])epoch['\"]?\s*[:=#]?\s*['\"]?\[?({NUMBER})",
    re.IGNORECASE,
)
#: A number of NumPy in a dictionary that Python has printed.
_NUMPY = re.compile(r"\b(?:np|numpy)\.\w+\(([^()]*)\)")


class Reader:
    """Reports from the lines and the records of one program, in the order in which they come.

    Records, which lines may be too (JSON, or a dictionary as Python prints it), name their values; other lines are
    searched with patterns. Where no source is named, the first record with the wanted metric decides which records it
    comes from, and lines without names do not count from then on: a program that prints, sends and writes its metrics
    reports them once.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        named = {source.metric: source for source in wanted.sources}
        self._named = {metric: source for metric, source in named.items() if source.kind != "pattern"}
        self._patterns = {
            metric: re.compile(source.where) for metric, source in named.items() if source.kind == "pattern"
        }
        self._usual = None if wanted.metric in named else re.compile(usual_pattern(wanted.metric))
        self._epoch_pattern = self._patterns.pop(EPOCH, None) or (None if EPOCH in self._named else _EPOCH)
        self._epoch: float | None = None  #: as lines say it: often in one before the metric's
        self._of_records = ""  #: the kind of records that the wanted metric comes from
        self._status: dict[str, float] = {}

    def line(self, line: str) -> ProgramReport | None:
        """What a printed line reports; None where it is nothing."""
        line = line[:LONGEST_LINE]
        record = _record(line)
        report = None if record is None else self.record("lines", record)
        values = dict(report.values) if report is not None else {}
        for metric, pattern in self._patterns.items():
            if (found := _search(pattern, line)) is not None:
                values[metric] = found
        if record is None and self._usual is not None and not self._of_records:
            found = _search(self._usual, line)
            values |= {} if found is None else {self._wanted.metric: found}
        if report is not None and report.epoch is not None:
            self._epoch = report.epoch
        elif self._epoch_pattern is not None:
            before = line if record is None else line[: line.find("{")]
            if (at := _search(self._epoch_pattern, before)) is not None:
                self._epoch = epoch_of({EPOCH: at}, None)
        kind = "pattern" if report is None or self._wanted.metric not in report.values else report.source
        return ProgramReport(values, self._epoch, kind) if values else None

    def record(self, kind: str, record: Mapping[Any, Any], where: str = "") -> ProgramReport | None:
        """What a record reports that came from such a source, `where` being its file; None where it is nothing."""
        found = numbers(record)
        named_kind = "status" if kind == "report" else kind
        wanted = self._wanted.metric
        epoch = self._epoch_in(named_kind, found, where)
        if kind == "status":
            found = self._new(found)
        values: dict[str, float] = {}
        for metric, source in self._named.items():
            if (source.kind, source.where) == (named_kind, where) and metric != EPOCH:
                value = _named(found, source.name or metric)
                values |= {} if value is None else {metric: value}
        named = self._named.keys() | self._patterns.keys()
        value = _named(found, wanted) if wanted not in named and kind in RECORDS else None
        if value is not None and self._of_records in ("", kind):
            self._of_records = kind
            values[wanted] = value
        for name, value in found.items():
            taken = name in named or plain(name) in (plain(wanted), *EPOCH_NAMES)
            if len(values) < MAX_METRICS and not taken:
                values.setdefault(name, value)
        return ProgramReport(values, epoch, kind) if values else None

    def _epoch_in(self, kind: str, found: Mapping[str, float], where: str) -> float | None:
        source = self._named.get(EPOCH)
        if source is None:
            return epoch_of(found, self._wanted.samples_per_epoch)
        if (source.kind, source.where) != (kind, where):
            return None
        value = _named(found, source.name or EPOCH)
        return None if value is None else epoch_of({EPOCH: value}, None)

    def _new(self, found: Mapping[str, float]) -> dict[str, float]:
        """What has changed since the last status: trainers repeat in each the newest value that they have.

        transformers says with each evaluation how long it took, so one that found the same value is known.
        """
        before, self._status = self._status, dict(found)
        changed = {name for name, value in found.items() if before.get(name) != value}
        again = {name.removesuffix("runtime") for name in changed if name.endswith("_runtime")}
        return {
            name: value
            for name, value in found.items()
            if name in changed or any(name.startswith(prefix) for prefix in again)
        }


def _record(line: str) -> Mapping[Any, Any] | None:
    """The JSON object or Python dictionary in a line, with what may be printed before it; None where there is none."""
    begin, end = line.find("{"), line.rfind("}")
    if not 0 <= begin < end:
        return None
    text = line[begin : end + 1]
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        return found if isinstance(found, dict) else None
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        found = ast.literal_eval(_NUMPY.sub(r"\1", text))
        return found if isinstance(found, dict) else None
    return None


def _named(found: Mapping[str, float], name: str) -> float | None:
    if name in found:
        return found[name]
    return next((value for other, value in found.items() if plain(other) == plain(name)), None)


def _search(pattern: re.Pattern[str], line: str) -> float | None:
    match = pattern.search(line)
    return None if match is None else number(match[1])
