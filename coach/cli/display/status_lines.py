"""Jobs as lines: for each refresh of the live display, and for `ps` where its table does not fit.

Pure: rows and progress in; texts out, each at most as wide as the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from coach.cli.display import tables
from coach.cli.display.output import WIDE
from coach.core.jobs.reasons import State
from coach.platforms.base import Progress
from coach.report import formatting
from coach.report.history import Line
from coach.report.row_types import JobRow

MIN_NAME = 8
GAP = 2
BAR = 32
RUNNING = (State.TRAINING, State.PROBING)
#: Columns that a terminal too narrow for all leaves out, the first one first.
FIRST_TO_GO = ("ETA", "W×S", "EPOCH", "SPENT / BUDGET", "STATE")


@dataclass(frozen=True, slots=True)
class Running:
    """The progress of a job's running epoch, such as `mini-epoch 2`."""

    epoch: str
    progress: Progress


def screen(
    rows: Sequence[JobRow],
    running: Mapping[str, Running],
    hint: str,
    size: tuple[int, int],
) -> Text:
    """The whole live display for a terminal of `size` (columns, lines), lower than that."""
    width, height = size
    note = 0 if all_columns_fit(rows, width) else 1
    shown, hidden = _that_fit(rows, height - 4 - note)
    parts = job_lines(shown, running, width)
    if hidden:
        parts.append(_cut(Text(f"and {formatting.count(hidden, 'more job')}: coach ps", "dim"), width))
    parts.append(_cut(Text(hint, "dim"), width))
    return Text("\n").join(parts)


def job_lines(rows: Sequence[JobRow], running: Mapping[str, Running], width: int, *, ended: bool = False) -> list[Text]:
    """A header, and for each job a line, and another that says why or how far its epoch is.

    `ended`: also jobs that have ended without success get the second line. Columns that do not fit are left out whole;
    the last line names them.
    """
    columns, left_out = _shown(rows, width)
    headers = list(columns)
    cells = list(columns.values())
    widths = [max(map(cell_len, [head, *cell])) for head, cell in columns.items()]
    gap = GAP if max(MIN_NAME, widths[0]) + sum(widths[1:]) + GAP * (len(widths) - 1) <= width else 1
    widths[0] = max(MIN_NAME, min(widths[0], width - sum(widths[1:]) - gap * (len(widths) - 1)))
    parts = [_columns(headers, headers, widths, width, "bold", gap=gap)]
    for row, *texts in zip(rows, *cells, strict=True):
        style = tables.STATE_STYLE.get(State(row.state), "")
        parts.append(_columns(headers, texts, widths, width, state=style, gap=gap))
        if not State(row.state).ended or (ended and row.state != State.SUCCEEDED):
            parts.append(_doing(row, running.get(row.name), width))
    if rows and left_out:
        parts.append(_cut(Text(f"not shown: {', '.join(left_out)}", "dim"), width))
    return parts


def all_columns_fit(rows: Sequence[JobRow], width: int) -> bool:
    """Whether `job_lines` leaves no column out."""
    return not _shown(rows, width)[1]


def _shown(rows: Sequence[JobRow], width: int) -> tuple[dict[str, list[str]], list[str]]:
    """The cells of each column that fits, by its header, and the headers of the others."""
    wide = width >= WIDE
    found = tables.job_columns(rows, interval=wide)
    tight = (lambda text: text) if wide else _tight
    columns = {tight(head): list(map(tight, cells)) for head, cells in found.items()}
    left_out = []
    for head in map(tight, FIRST_TO_GO):
        name, *others = [max(map(cell_len, [head, *cells])) for head, cells in columns.items()]
        if min(MIN_NAME, name) + sum(others) + len(others) <= width:
            break
        del columns[head]
        left_out.append(head)
    return columns, left_out


def _tight(cell: str) -> str:
    return cell.replace(" → ", "→").replace(" / ", "/")


def _columns(
    headers: Sequence[str],
    texts: Sequence[str],
    widths: Sequence[int],
    width: int,
    style: str = "",
    *,
    state: str = "",
    gap: int = GAP,
) -> Text:
    line = Text(style=style)
    for head, text, column in zip(headers, texts, widths, strict=True):
        cut = text if cell_len(text) <= column else set_cell_size(text, column - 1) + "…"
        fill = " " * (column - cell_len(cut))
        line.append(fill + cut if head == "EPOCH" else cut + fill, state if head == "STATE" else "")
        line.append(" " * gap)
    line.rstrip()
    return _cut(line, width)


def _doing(row: JobRow, now: Running | None, width: int) -> Text:
    """The second line: a bar inside the epoch, or why there is none."""
    reason = tables.reason(row)
    if now is None or not now.progress.total:
        return _cut(Text(f"  {reason}", "dim"), width)
    what, samples, total = f"  {now.epoch}  ", now.progress.samples, now.progress.total
    share = min(1.0, samples / total)
    done = f"  {samples:>{len(f'{total:,}')},} / {total:,}  "
    length = max(8, min(BAR, width - cell_len(what) - cell_len(done) - 12))
    full = round(share * length)
    return _cut(
        Text.assemble(
            (what, "dim"),
            ("━" * full, "cyan"),
            ("─" * (length - full), "dim"),
            (done + (reason if now.progress.state == "training" else now.progress.state), "dim"),
        ),
        width,
    )


def event_line(line: Line, *, several: bool) -> Text:
    """One event, with its job's name where there are `several`."""
    who = f"{line.job}: " if line.job and several else ""
    return Text.assemble((formatting.clock(line.at) + " ", "dim"), who + line.text)


def _cut(text: Text, width: int) -> Text:
    """`text`, or as many of its words as fit, so that no number is cut."""
    if text.cell_len > width:
        room = set_cell_size(text.plain, max(0, width - 2))
        words = room if text.plain[len(room) :].startswith(" ") else room[: room.rfind(" ") + 1]
        text.right_crop(len(text.plain) - len(words.rstrip()))
        text.append(" …" if words.strip() else "…")
    return text


def _that_fit(rows: Sequence[JobRow], room: int) -> tuple[list[JobRow], int]:
    """The rows that fit into the lines, running jobs first, in their own order; and how many are left out."""
    order = sorted(rows, key=lambda row: (State(row.state) not in RUNNING, State(row.state).ended))
    kept = set()
    for row in order:
        room -= 1 if State(row.state).ended else 2
        if room < 0:
            break
        kept.add(row.name)
    return [row for row in rows if row.name in kept], len(rows) - len(kept)
