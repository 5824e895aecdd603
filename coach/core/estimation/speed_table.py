"""Measured tables in CSV: rows with their line numbers, and the speeds in them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from io import StringIO
from statistics import median
from typing import NamedTuple

from coach.core.errors import UserError
from coach.core.estimation.drift import weighted_median

#: The columns of a table of speeds: one row a configuration, each worker's speed in `worker_speed`, separated by `;`.
SPEED_COLUMNS = {"model", "servers", "workers", "worker_speed"}
#: Columns of which a table may have several values for one model: each combination then counts as a model of its own.
WAYS = ("sync_mode", "batch_size")
#: A total speed below this share of the model's median counts as missing.
HOLE = 0.01
#: Maximum characters of a cell: a curve of a million values.
LONGEST_CELL = 1 << 24


class CsvRow(NamedTuple):
    """A row, and its place: file and line."""

    place: str
    cells: dict[str, str]

    def number(self, column: str, cell: str) -> float:
        """`cell`, a part of the row's `column`, as a number."""
        try:
            return float(cell)
        except ValueError:
            raise UserError(f"{self.place}: {column} is {cell.strip()!r}, wanted a number") from None

    def count(self, column: str) -> int:
        """The row's `column` as a whole number from 1 on."""
        number = self.number(column, self.cells[column])
        if not number >= 1 or not number.is_integer():
            seen = self.cells[column]
            raise UserError(f"{self.place}: {column} is {seen!r}, wanted a whole number from 1 on")
        return int(number)


class MeasuredModel(NamedTuple):
    """A model's speeds by (workers, servers), in the table's unit, and the configurations without a usable speed."""

    speeds: dict[tuple[int, int], float]
    holes: tuple[tuple[int, int], ...]


def lines_of(text: str, origin: str) -> Iterator[CsvRow]:
    """The rows of a CSV with a header. Raises UserError."""
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.DictReader(StringIO(text, newline=""))
    try:
        for row in rows:
            # A short row has None in its missing cells; the excess cells of a long one are under the key None.
            cells = {name: cell or "" for name, cell in row.items() if isinstance(name, str)}
            yield CsvRow(f"{origin}:{rows.line_num}", cells)
    except csv.Error as error:
        raise UserError(f"cannot read {origin}: line {rows.line_num}: {error}") from None


def measured_models(lines: Sequence[CsvRow]) -> dict[str, MeasuredModel]:
    """The job's speed by model and configuration: the sum of its workers' speeds. Raises UserError.

    Several measurements of one configuration are combined as in a job.
    """
    by_model: dict[str, list[CsvRow]] = {}
    for line in lines:
        by_model.setdefault(line.cells["model"], []).append(line)
    measured: dict[str, dict[tuple[int, int], list[float]]] = {}
    for model, mine in by_model.items():
        ways = [way for way in WAYS if len({line.cells.get(way) for line in mine}) > 1]
        for line in mine:
            name = ", ".join([model, *filter(None, map(line.cells.get, ways))])
            at = line.count("workers"), line.count("servers")
            measured.setdefault(name, {}).setdefault(at, []).append(_total(line))
    return {name: _without_holes(points) for name, points in measured.items()}


def _total(line: CsvRow) -> float:
    return sum(line.number("worker_speed", v) for v in line.cells["worker_speed"].split(";") if v.strip())


def _without_holes(points: dict[tuple[int, int], list[float]]) -> MeasuredModel:
    positive = [v for of in points.values() for v in of if math.isfinite(v) and v > 0]
    threshold = HOLE * median(positive) if positive else 0.0
    usable = {at: [v for v in of if math.isfinite(v) and v > threshold] for at, of in points.items()}
    # A single measurement is taken to the bit: the thesis's solver reacts to a change of the last digit.
    speeds = {at: of[0] if len(of) == 1 else weighted_median(of) for at, of in usable.items() if of}
    return MeasuredModel(speeds, tuple(at for at, of in usable.items() if not of))
