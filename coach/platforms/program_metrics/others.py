"""What a program prints where its metric is not found, and the `--metric` that would take it."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence

from coach.platforms.program_metrics.base import readings_of
from coach.platforms.program_metrics.records import records
from coach.platforms.program_metrics.table import Table
from coach.platforms.program_metrics.text import Reading, clean, readings, words_of

#: Names that are remembered; that are said.
MAX_NAMES, SAID = 200, 6
#: After so many lines with numbers, but without the metric, it is said what there is.
ASKED_AFTER = frozenset({5, 50, 500, 5000})
#: What is said of a program that prints nothing.
SILENT = (
    "it has printed nothing so far: many programs keep what they print as long as no terminal reads it; have it "
    "flushed, or start it with stdbuf -oL (Perl: $| = 1)"
)
#: Names of what is no metric.
_COUNTS = frozenset({"epoch", "step", "iter", "lr", "learning_rate"})
_NUMBER = r"([-+.eE0-9]+)"


class Others:
    """The numbers with names that a program has printed."""

    def __init__(self) -> None:
        self.lines = 0  #: with such a number
        self._sources: dict[str, str] = {}
        self._table = Table()

    def add(self, line: str) -> None:
        """Look at a line."""
        line = clean(line)
        found, rest = records(line)
        sources = {name: f"lines#{name}" for record in found for name in readings_of(record)}
        row = self._table.row(rest, "")
        if row is None:
            sources |= {_shown(reading): _pattern(rest, reading) for reading in readings(rest)}
        else:
            sources |= {reading.name: _column(rest, reading.begin) for reading in row}
        self.lines += bool(sources)
        for name, source in sources.items():
            if len(self._sources) < MAX_NAMES:
                self._sources.setdefault(name, source)

    @property
    def sources(self) -> Mapping[str, str]:
        """By name, what `--metric` takes."""
        return self._sources

    def hint(self, metric: str) -> str:
        """What there is in place of the metric."""
        found = by_likeness(metric, self._sources)
        names = ", ".join(list(found)[:SAID])
        return f"no {metric} in {self.lines} lines with numbers; there is {names}; {advice(found)}"


def undecided(metric: str, names: Sequence[str], sources: Mapping[str, str]) -> str:
    """What is said where several numbers may be the metric."""
    of_first = next((source for name, source in sources.items() if name == names[0]), names[0])
    what = f"{metric} may be {' or '.join(names[:SAID])}, so none counts"
    return f"{what}; to take the first: --metric {shlex.quote(of_first)}"


def advice(sources: Mapping[str, str]) -> str:
    """How to take the first of these."""
    return f"to take one of them: --metric {shlex.quote(next(iter(sources.values())))}"


def by_likeness(metric: str, sources: Mapping[str, str]) -> dict[str, str]:
    """The sources in another order: what has the name that is most like the metric's comes first."""
    wanted = " ".join(words_of(metric))

    def unlike(name: str) -> tuple[bool, float]:
        return name.lower() in _COUNTS, -difflib.SequenceMatcher(
            None, " ".join(words_of(name.partition(" in ")[0])), wanted
        ).ratio()

    return dict(sorted(sources.items(), key=lambda item: unlike(item[0])))


def _shown(reading: Reading) -> str:
    known = not reading.context or reading.context in reading.words
    return reading.name if known else f"{reading.name} ({reading.context})"


def _pattern(line: str, reading: Reading) -> str:
    """A regular expression for the number after this name."""
    before = re.escape(line[reading.begin : reading.at]).replace("\\ ", " ").replace("\\\t", "\\t")
    before = re.sub(r"(?<![\w.])[0-9]+(?![\w.])", r"\\d+", before)
    part = re.search(rf"\b{reading.context}\b", line[: reading.begin], re.IGNORECASE) if reading.context else None
    return f"{part[0]}.*?{before}{_NUMBER}" if part else before + _NUMBER


def _column(line: str, column: int) -> str:
    """A regular expression for a column of a table, from 0 on."""
    mark = next((mark for mark in "|\u2502\u2503,;\t" if mark in line), "")
    if not mark:
        return rf"^\s*(?:\S+\s+){{{column}}}{_NUMBER}"
    cell = rf"[^{re.escape(mark)}]*{re.escape(mark)}"
    first = cell if line.lstrip().startswith(mark) else ""
    return rf"^{first}(?:{cell}){{{column}}}\s*{_NUMBER}"
