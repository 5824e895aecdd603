"""The text of a trace's file, plain or compressed by gzip: by lines, whole, or as the rows of a CSV table.

Whatever is in the file, the answer is its text or a UserError.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TextIO, cast

from coach_research.traces.draft import MAX_AMOUNT, MAX_PODS, MAX_SECONDS, Draft, shown

#: The longest line that is read, in characters, and the longest text (a compressed file may be far shorter).
MAX_LINE, MAX_TEXT = 10_000, 1 << 30

#: Characters that are read at once.
CHUNK = 1 << 20

GZIP = b"\x1f\x8b"

#: A NUL, or a byte that is no UTF-8 (as `surrogateescape` reads it).
NO_TEXT = re.compile("[\0\udc80-\udcff]")


def lines(draft: Draft, *, strict: bool = True) -> Iterator[str]:
    """Each line, its end included; not `strict`: bytes that are no UTF-8 are no mistake. Raises UserError."""
    for number, line in enumerate(_parts(draft, strict, lambda file: file.readline(MAX_LINE)), 1):
        if len(line) == MAX_LINE:
            raise draft.mistake(number, f"the line is longer than {MAX_LINE} characters")
        yield line


def whole(draft: Draft, *, strict: bool = True) -> str:
    """The whole text, as `lines` reads it. Raises UserError."""
    return "".join(_parts(draft, strict, lambda file: file.read(CHUNK)))


def _parts(draft: Draft, strict: bool, read: Callable[[TextIO], str]) -> Iterator[str]:
    characters, number = 0, 1
    errors = "surrogateescape" if strict else "replace"
    try:
        with draft.path.open("rb") as raw:
            opened = gzip.open if raw.read(len(GZIP)) == GZIP else open
        with cast(TextIO, opened(draft.path, "rt", encoding="utf-8-sig", errors=errors)) as file:
            draft.opened.push(file)  # a mistake further on leaves this generator suspended
            while part := read(file):
                characters += len(part)
                if characters > MAX_TEXT:
                    raise draft.mistake(0, f"its text is longer than {MAX_TEXT:,} characters")
                if wrong := NO_TEXT.search(part):
                    byte = ord(wrong[0]) & 0xFF
                    line = number + part.count("\n", 0, wrong.start())
                    raise draft.mistake(line, f"this is no UTF-8 text (byte 0x{byte:02x})")
                yield part
                number += part.count("\n")
    except UnicodeDecodeError as error:
        raise draft.mistake(number, f"this is no UTF-8 text (byte 0x{error.object[error.start]:02x})") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise draft.mistake(number, f"the compressed file is broken behind this line ({error})") from error
    except OSError as error:
        raise draft.mistake(0, f"cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Number:
    """What a number of a table may be: `words` for people, and its limits (`above`: more than `least`)."""

    words: str
    least: float = 0.0
    most: float = MAX_SECONDS
    above: bool = False
    whole: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` may be it; NaN never is."""
        return (
            self.least <= value <= self.most
            and not (self.above and value <= self.least)
            and not (self.whole and value != math.floor(value))
        )


SECONDS = Number("seconds, 0 or more")
AMOUNT = Number("a number, 0 or more", most=MAX_AMOUNT)
PODS = Number(f"a whole number from 1 to {MAX_PODS}", least=1, most=MAX_PODS, whole=True)
#: Of published traces, whose jobs are left out where a number makes no sense.
ANY = Number("a finite number", least=-MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a CSV table, from the line `line` of its file."""

    draft: Draft
    line: int
    cells: Mapping[str, str]

    def number(self, column: str, of: Number, otherwise: float | None = None) -> float:
        """The number of a column; `otherwise` where the cell is empty or missing. Raises UserError."""
        text = self.cells.get(column, "")
        if not text and otherwise is not None:
            return otherwise
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not of.holds(value):
            raise self.mistake(column, f"use {of.words}")
        return value

    def mistake(self, column: str, right: str) -> Exception:
        """The error of a cell, with what would be right."""
        text = self.cells.get(column, "")
        return self.draft.mistake(self.line, f'column {column}: "{shown(text)}" is given; {right}')


#: The columns that each kind of CSV needs, by its prefix.
NEEDED: Mapping[str, frozenset[str]] = {
    "": frozenset({"job", "arrival", "work"}),
    "helios": frozenset({"job_id", "state", "submit_time", "duration", "node_num", "cpu_num", "gpu_num"}),
    "pai": frozenset({"job_id", "submit_time", "duration", "num_inst", "num_cpu", "num_gpu"}),
    "sacct": frozenset({"JobID", "State", "Submit"}),
}


def rows(draft: Draft, kind: str, separator: str = ",") -> Iterator[Row]:
    """The rows of a CSV with a header. Raises UserError for other separators, missing columns, broken rows."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    table = csv.reader(lines(draft), strict=True, delimiter=separator, quoting=quoting)
    header: list[str] = []
    try:
        for cells in table:
            if len(cells) < 2 and not "".join(cells).strip():
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                _check_header(draft, table.line_num, header, kind, separator)
                continue
            if len(cells) != len(header):
                counts = f"{len(cells)} fields, the header has {len(header)}"
                raise draft.mistake(table.line_num, f"the row has {counts}")
            yield Row(draft, table.line_num, dict(zip(header, map(str.strip, cells), strict=True)))
    except csv.Error as error:
        raise draft.mistake(table.line_num, f"this is no CSV ({error})") from error
    if not header:
        raise draft.mistake(0, "the file is empty; its first line should be a header with the columns' names")


def _check_header(draft: Draft, line: int, header: list[str], kind: str, expected: str) -> None:
    missing = NEEDED[kind] - set(header)
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise draft.mistake(line, f"column {shown(twice[0])} is there twice")
    if not missing:
        return
    first = header[0]
    if first.startswith("JobID|"):
        raise draft.mistake(line, f"this is of sacct -P; did you mean sacct:{draft.path}?")
    for separator, words in ((";", '";"'), ("\t", "tabs"), ("|", '"|"'), (",", '","')):
        if separator != expected and len(header) == 1 and separator in first and not first.startswith((";", "[", "{")):
            raise draft.mistake(line, f'fields are separated by {words}; a CSV with "{expected}" is expected')
    meant = [f"{other}:{draft.path}" if other else f"{draft.path} without a prefix"
             for other, needed in NEEDED.items() if needed <= set(header)]  # fmt: skip
    if first.startswith(";") or len(first.split()) > 10:
        meant = [f"swf:{draft.path}"]
    elif first.startswith(("[", "{")):
        meant = [f"philly:{draft.path} (JSON)", f"thesis:{draft.path} (a run log)"]
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    names = ", ".join(sorted(missing))
    raise draft.mistake(line, f'the header has no column {names}; it begins with "{shown(first)}"{hint}')
