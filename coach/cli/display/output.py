"""The formats of `-o`, and functions that print rows in each of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from coach.cli.display.whole_table import WholeTable

#: The header of a column: a word, or a word and `right` or `wrap`. Other columns are not wrapped.
Header = str | tuple[str, str]
#: Columns of an output that is no terminal, without COLUMNS.
WIDTH_WITHOUT_TERMINAL = 120
#: From this many columns on, the ETA's bounds and more space between columns fit.
WIDE = 100


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def console(*, stderr: bool = False) -> Console:
    """The terminal, or plain text of a fixed width without one."""
    from coach.cli.display.whole_table import Screen

    stream = sys.stderr if stderr else sys.stdout
    width = None
    if not stream.isatty():
        width = int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdigit() else WIDTH_WITHOUT_TERMINAL
    return Screen(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def table(columns: Mapping[Header, Iterable[str | Text]], keys: int = 1) -> WholeTable:
    """A table of the cells of each column, by its header.

    `keys`: how many of the first columns say which row it is.
    """
    from coach.cli.display.whole_table import WholeTable

    made = WholeTable(keys)
    for header in columns:
        name, justify = header if isinstance(header, tuple) else (header, "left")
        right: Literal["left", "right"] = "right" if justify == "right" else "left"
        made.add_column(name, justify=right, no_wrap=justify != "wrap")
    for row in zip(*columns.values(), strict=True):
        made.add_row(*row)
    return made


def printed(output: Format, rows: Iterable[Any], names: type[Any] | Sequence[str], document: Any = None) -> bool:
    """Print rows (dataclasses, dictionaries) for programs; False where a person reads.

    `names`: the columns of csv, or the type of the rows. `document`: what json has instead of the rows.
    """
    found = map(fields, rows)
    if output is Format.JSON:
        print_json(list(found) if document is None else document)
    elif output is Format.CSV:
        from coach.report.row_types import columns, write_csv

        write_csv(sys.stdout, columns(names) if isinstance(names, type) else names, found)
    return output is not Format.TABLE


def fields(row: Any) -> dict[str, Any]:
    """A row (a dataclass, or a pydantic model) by its columns' names."""
    if isinstance(row, dict):
        return row
    found: dict[str, Any] = row.model_dump() if hasattr(row, "model_dump") else asdict(row)
    return found


def print_json(value: Any) -> None:
    """JSON on stdout, indented; what is not known is null."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
