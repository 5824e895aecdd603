"""Lines and records of a program, read as reports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from coach.core.spec.metric_source import EPOCH
from coach.platforms.program_metrics import others, text
from coach.platforms.program_metrics.base import (
    EPOCH_NAMES,
    MAX_METRICS,
    SHOWN,
    ProgramReport,
    Wanted,
    epoch_of,
    plain,
    readings_of,
)
from coach.platforms.program_metrics.choice import Choice
from coach.platforms.program_metrics.others import Others
from coach.platforms.program_metrics.records import records
from coach.platforms.program_metrics.table import Table
from coach.platforms.program_metrics.text import Reading

#: Kinds of records that a metric may come from whose source is not named.
RECORDS = ("lines", "status", "report")


class Reader:
    """Reports from the lines and the records of one program, in the order in which they come.

    Records, which lines may be too (JSON, or a dictionary as Python prints it), name their values; of other lines
    numbers with their names are read, and the rows of tables. Where no source is named, the first kind of record with
    the wanted metric decides which records it comes from, and other lines do not count from then on: a program that
    prints, sends and writes its metrics reports them once. What is printed is a guess until it was seen in two epochs.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        named = {source.metric: source for source in wanted.sources}
        self._named = {metric: source for metric, source in named.items() if source.kind != "pattern"}
        self._patterns = {
            metric: re.compile(source.where) for metric, source in named.items() if source.kind == "pattern"
        }
        self._guesses = {} if wanted.metric in named else {kind: Choice(wanted.metric) for kind in ("pattern", "lines")}
        self._epoch_pattern = self._patterns.pop(EPOCH, None)
        self._usual_epoch = self._epoch_pattern is None and EPOCH not in self._named
        self._epoch: float | None = None  #: as lines say it: often in one before the metric's
        self._of_records = ""  #: the kind of records that the wanted metric comes from
        self._status: dict[str, Reading] = {}
        self._table = Table()
        words = [word for token in text.tokens_of(wanted.metric) for word in token]
        #: What each line with the metric has: the last word of its name that is no part.
        self._word = next((word for word in reversed(words) if word not in text.PARTS), words[-1] if words else "")
        self._others: Others | None = Others()  #: until the metric was found
        self._asked = 0  #: lines after which it was looked whether to ask
        self._above = ""  #: what the last line that is not indented says its numbers were measured on

    @property
    def undecided(self) -> list[str]:
        """The names between which it is not decided which is the metric."""
        return [name for choice in self._guesses.values() for name in choice.undecided]

    def line(self, line: str) -> list[ProgramReport]:
        """What a printed line reports: nothing, one report, or one for each record in it."""
        reports = self._line(text.clean(line))
        hint = "" if self._others is None else self._asks(line)
        return [*reports, ProgramReport({}, hint=hint)] if hint else reports

    def _asks(self, line: str) -> str:
        """What is there in place of the metric, where that is to be said now."""
        assert self._others is not None
        self._others.add(line)
        asked, self._asked = self._asked, self._others.lines
        if asked == self._asked or self._asked not in others.ASKED_AFTER:
            return ""
        if names := self.undecided:
            return others.undecided(self._wanted.metric, names, self._others.sources)
        return self._others.hint(self._wanted.metric)

    def _line(self, line: str) -> list[ProgramReport]:
        found, rest = records(line) if "{" in line or "}" in line else ([], line)
        table = self._table.row(rest, self._word) if not found else None
        self._named_epoch(rest, table)
        reports: list[ProgramReport] = []
        for one in found:
            if (report := self.record("lines", one)) is not None:
                self._epoch = self._epoch if report.epoch is None else report.epoch
                reports.append(replace(report, epoch=self._epoch, line=line[:SHOWN] if report.guessed else ""))
        values: dict[str, float] = {}
        for metric, pattern in self._patterns.items():
            if (match := pattern.search(line)) is not None:
                reading = text.whole(line, *match.span(1))
                value = None if reading is None else self._value(metric, reading)
                values |= {} if value is None else {metric: value}
        guessed = False
        metric = self._wanted.metric
        if metric in values:
            self._others = None
        if not any(metric in report.values for report in reports) and self._guesses and not self._of_records:
            seen = self._guess("pattern", self._readings(rest) if table is None else table, self._epoch)
            if seen is not None:
                values[metric], guessed = seen
        if values and reports:
            last = reports.pop()
            return [*reports, replace(last, values={**last.values, **values})]
        shown = line[:SHOWN] if guessed else ""
        return reports or ([ProgramReport(values, self._epoch, "pattern", guessed, shown)] if values else [])

    def _named_epoch(self, line: str, table: Iterable[Reading] | None) -> None:
        """Keep the epoch that a line names."""
        at = None
        if self._epoch_pattern is not None:
            match = self._epoch_pattern.search(line)
            at = None if match is None else text.number(match[1])
        elif self._usual_epoch:
            at = text.epoch(line)
            for reading in table or ():
                at = reading.value if "_".join(reading.words) in EPOCH_NAMES else at
        if at is not None and (found := epoch_of({EPOCH: at}, None)) is not None:
            self._epoch = found

    def _readings(self, line: str) -> list[Reading]:
        """The numbers with names in a line. An indented one belongs to the line above."""
        indented = line[:1].isspace()
        if not indented:
            self._above = text.part(line) if len(line) < text.BEFORE else ""
        if self._word not in line.lower():
            return []
        return [text.under(reading, self._above) if indented else reading for reading in text.readings(line)]

    def _guess(self, kind: str, found: Iterable[Reading], epoch: float | None) -> tuple[float, bool] | None:
        """The wanted metric among what was read, and whether it is a guess."""
        chosen = self._guesses[kind].take(found, epoch)
        value = None if chosen is None else self._wanted.as_named(chosen[0])
        if self.undecided:
            self._others = self._others or Others()
        if chosen is None or value is None or not (chosen[1] or math.isfinite(value)):
            return None
        self._others = None
        return value, not chosen[1]

    def _value(self, metric: str, reading: Reading) -> float | None:
        return self._wanted.in_its_unit(reading) if metric == self._wanted.metric else reading.value

    def record(self, kind: str, record: Mapping[Any, Any], where: str = "") -> ProgramReport | None:
        """What a record reports that came from such a source, `where` being its file; None where it is nothing."""
        found = readings_of(record)
        named_kind = "status" if kind == "report" else kind
        wanted = self._wanted.metric
        epoch = self._epoch_in(named_kind, found, where)
        if kind == "status":
            found = self._new(found)
        values: dict[str, float] = {}
        guessed = False
        for metric, source in self._named.items():
            if (source.kind, source.where) == (named_kind, where) and metric != EPOCH:
                reading = _named(found, source.name or metric)
                value = None if reading is None else self._value(metric, reading)
                values |= {} if value is None else {metric: value}
        named = self._named.keys() | self._patterns.keys()
        if wanted not in named and kind in RECORDS and self._of_records in ("", kind):
            if kind == "lines":
                seen = self._guess(kind, found.values(), self._epoch if epoch is None else epoch)
            else:
                reading = _named(found, wanted)
                value = None if reading is None else self._wanted.in_its_unit(reading)
                seen = None if value is None else (value, False)
            if seen is not None:
                values[wanted], guessed = seen
                self._of_records = self._of_records if guessed else kind
        for name, reading in found.items():
            taken = name in named or plain(name) in (plain(wanted), *EPOCH_NAMES)
            if len(values) < MAX_METRICS and not taken:
                values.setdefault(name, reading.value)
        if wanted in values:
            self._others = None
        return ProgramReport(values, epoch, kind, guessed) if values else None

    def _epoch_in(self, kind: str, found: Mapping[str, Reading], where: str) -> float | None:
        source = self._named.get(EPOCH)
        if source is None:
            return epoch_of({name: reading.value for name, reading in found.items()}, self._wanted.samples_per_epoch)
        if (source.kind, source.where) != (kind, where):
            return None
        reading = _named(found, source.name or EPOCH)
        return None if reading is None else epoch_of({EPOCH: reading.value}, None)

    def _new(self, found: Mapping[str, Reading]) -> dict[str, Reading]:
        """What has changed since the last status: trainers repeat in each the newest value that they have.

        transformers says with each evaluation how long it took, so one that found the same value is known.
        """
        before, self._status = self._status, dict(found)
        changed = {name for name, reading in found.items() if before.get(name) != reading}
        again = {name.removesuffix("runtime") for name in changed if name.endswith("_runtime")}
        return {
            name: reading
            for name, reading in found.items()
            if name in changed or any(name.startswith(prefix) for prefix in again)
        }


def _named(found: Mapping[str, Reading], name: str) -> Reading | None:
    if name in found:
        return found[name]
    return next((reading for other, reading in found.items() if plain(other) == plain(name)), None)
