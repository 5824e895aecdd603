"""Tables that show every cell whole, however narrow the terminal is.

Where the columns do not fit side by side, they are printed in blocks, each with the first columns again; where not even
two columns fit, each row is a list of its cells. A word of a cell, and so a number, is never cut, unless it alone is
longer than a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

#: A line under the header, nothing else.
PLAIN_BOX = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")

#: Columns between two columns of a table.
GAP = 2
#: A column that wraps is not made narrower than this, if its text is longer.
MIN_WRAPPED = 16
#: Of a row as a list: where its cells begin.
INDENT = "  "


class Screen(Console):
    """A console that leaves a broken pipe to its caller, which may have jobs to stop."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError again; rich would end the process here."""
        raise BrokenPipeError


class WholeTable(Table):
    """A table whose first `keys` columns say which row it is."""

    def __init__(self, keys: int = 1) -> None:
        super().__init__(box=PLAIN_BOX, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))
        self._keys = keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See `rich.console.Console.render`."""
        width = options.max_width
        if self.needed() <= width:
            yield from self._block(self.columns, width).__rich_console__(console, options)
            return
        blocks = self._blocks(width)
        for number, block in enumerate(blocks):
            if number:
                yield Text()
            yield from self._block(block, width).__rich_console__(console, options)
        if not blocks:
            yield from self._lists(width)

    def needed(self) -> int:
        """The least width with which all columns are side by side."""
        return self._needed(self.columns)

    def _blocks(self, width: int) -> list[list[Column]]:
        """The columns in blocks that fit, each with the keys; none if a column does not fit with them."""
        keys, left = self.columns[: self._keys], self.columns[self._keys :]
        blocks: list[list[Column]] = []
        for column in left:
            if blocks and self._needed([*blocks[-1], column]) <= width:
                blocks[-1].append(column)
            elif self._needed([*keys, column]) <= width:
                blocks.append([*keys, column])
            else:
                return []
        return blocks

    def _needed(self, columns: Sequence[Column]) -> int:
        return sum(_least(column) for column in columns) + GAP * (len(columns) - 1)

    def _block(self, columns: Sequence[Column], width: int) -> Table:
        """A table of these columns, which fit; those that wrap share what is left."""
        made = Table(box=self.box, pad_edge=False, show_edge=False, header_style="bold", padding=self.padding)
        spare = width - self._needed(columns)
        for column in columns:
            more = min(spare, _natural(column) - _least(column))
            spare -= more
            made.add_column(
                column.header,
                justify=column.justify,
                no_wrap=column.no_wrap,
                overflow="fold",
                width=_least(column) + more,
            )
        for cells in zip(*(column.cells for column in columns), strict=True):
            made.add_row(*cells)
        return made

    def _lists(self, width: int) -> Iterator[RenderableType]:
        """Each row as its first cell, and a line for each other one, wrapped between words."""
        first, *others = self.columns
        if title := str(first.header).strip():
            yield Text(title, "bold")
        names = max(cell_len(str(column.header)) for column in others)
        for number, key in enumerate(first.cells):
            yield _text(key, "bold")
            for column in others:
                cell, name = _text(list(column.cells)[number]), str(column.header)
                begin = len(INDENT) + names + GAP
                if begin + _longest_word(cell.plain) > width:
                    yield Text(INDENT + name)
                    begin = 2 * len(INDENT)
                    head = " " * begin
                else:
                    head = INDENT + name.ljust(names + GAP)
                for line in cell.wrap(_PLAIN, max(1, width - begin)) or [Text()]:
                    line.rstrip()
                    yield Text(head).append_text(line)
                    head = " " * begin


#: `Text.wrap` asks a console for the width of tabs alone.
_PLAIN = Console(width=80)


def _text(cell: RenderableType, style: str = "") -> Text:
    return Text.assemble(cell if isinstance(cell, Text) else str(cell), style=style)


def _contents(column: Column) -> Iterator[str]:
    yield str(column.header)
    for cell in column.cells:
        yield cell.plain if isinstance(cell, Text) else str(cell)


def _natural(column: Column) -> int:
    """The width of its longest cell."""
    return max(map(cell_len, _contents(column)))


def _least(column: Column) -> int:
    """The least width with which no word is cut, and the cells of a column that does not wrap are each one line."""
    if column.no_wrap:
        return _natural(column)
    return min(_natural(column), max(MIN_WRAPPED, *map(_longest_word, _contents(column))))


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
