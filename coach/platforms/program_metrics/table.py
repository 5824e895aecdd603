"""Tables that a program prints: a line of names, and lines with as many numbers below it."""

from __future__ import annotations

import re
from dataclasses import replace

from coach.platforms.program_metrics.text import Reading, tokens_of, whole

#: Cells of a row.
MAX_CELLS = 64
_BARS = re.compile(r"\s*[|\u2502\u2503]\s*")
#: How the cells of a row may be parted, in the order in which it is tried.
_BETWEEN = (_BARS, re.compile(r"\s*\t\s*"), re.compile(r"\s*[,;]\s*"), re.compile(r"\s{2,}"), re.compile(r"\s+"))
_RULE = re.compile(r"[-=+|:\s\u2500-\u257f]*")
_HAS_NUMBER = re.compile(r"(?:^|[\s,;|\u2502\u2503])[-+.]?[0-9]")
#: A progress bar behind the names, or the numbers, as Ultralytics prints it.
_BAR = re.compile(r":?\s*[0-9]+%\|.*")
_HEADING = re.compile(r"[^\W\d_][^=:{}]{0,40}|#")


class Table:
    """The table whose rows come now, if there is one."""

    def __init__(self) -> None:
        self._names: dict[int, list[str]] = {}  #: of each way in which its line of names can be parted

    def row(self, line: str, word: str) -> list[Reading] | None:
        """The numbers of a row with their names; None where the line is none. A table has `word` in a name.

        Where a number begins is its column.
        """
        if not self._names and word not in line.lower():
            return None
        line = _BAR.sub("", line)
        if _RULE.fullmatch(line):
            return None
        for way, names in self._names.items():
            cells = _cells(line, way)
            if len(cells) != len(names):
                continue
            found = [(name, whole(cell, 0, len(cell))) for name, cell in zip(names, cells, strict=True)]
            read = [_of(name, column, one) for column, (name, one) in enumerate(found) if one is not None]
            if 2 * len(read) >= len(cells):
                return read
        if not _HAS_NUMBER.search(line):
            ways = {way: _cells(line, way) for way in range(len(_BETWEEN))}
            found_names = {way: cells for way, cells in ways.items() if 1 < len(cells) <= MAX_CELLS}
            if any(all(map(_HEADING.fullmatch, cells)) for cells in found_names.values()):
                self._names = {way: cells for way, cells in found_names.items() if all(map(_HEADING.fullmatch, cells))}
        return None


def _cells(line: str, way: int) -> list[str]:
    cells = _BETWEEN[way].split(line.strip(), maxsplit=2 * MAX_CELLS)
    return [cell for cell in cells if cell] if _BETWEEN[way] is _BARS else cells


def _of(name: str, column: int, reading: Reading) -> Reading:
    return replace(reading, tokens=tokens_of(name), name=name, begin=column)
