"""Jobs as lines: for each refresh of the live display, and for `ps` where its table does not fit.

Pure: rows, progress and lines in; texts out, each at most as wide as the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from coach.cli.display import tables
from coach.core.jobs.reasons import State
from coach.report import formatting
from coach.report.history import Line
from coach.report.status import JobRow

#: From this many columns on, the ETA's bounds and more space between columns fit.
WIDE = 100
#: Lines below the jobs, at most.
MAX_LINES = 6
MIN_NAME = 8
GAP = 2
BAR = 32
RUNNING = (State.TRAINING, State.PROBING)
HEADERS = ("NAME", "STATE", "EPOCH", "", "W×S", "SPENT / BUDGET", "ETA")
STATE_AT, RIGHT = 1, 2


@dataclass(frozen=True, slots=True)
class Running:
    """The progress of a job's running epoch. `total` 0: not known yet."""

    epoch: int
    mini: bool
    state: str
    samples: int
    total: int


def screen(
    rows: Sequence[JobRow],
    running: Mapping[str, Running],
    lines: Sequence[Line],
    hint: str,
    size: tuple[int, int],
) -> Text:
    """The whole live display for a terminal of `size` (columns, lines), lower than that."""
    width, height = size
    shown, hidden = _that_fit(rows, height - 4)
    parts = job_lines(shown, running, width)
    if hidden:
        parts.append(_cut(Text(f"and {formatting.count(hidden, 'more job')}: coach ps", "dim"), width))
    room = min(MAX_LINES, height - len(parts) - 3)
    if lines and room > 0:
        several = len(rows) > 1
        parts += [Text(), *(_happened(line, several, width) for line in lines[-room:])]
    parts.append(_cut(Text(hint, "dim"), width))
    return Text("\n").join(parts)


def job_lines(
    rows: Sequence[JobRow], running: Mapping[str, Running], width: int, *, ended: bool = False
) -> list[Text]:
    """A header, and for each job a line, and another that says why or how far its epoch is.

    `ended`: also jobs that have ended without success get the second line.
    """
    wide = width >= WIDE
    headers = [*HEADERS[:3], tables.metric_header(rows), *HEADERS[4:]]
    cells = [
        [
            row.name,
            row.state,
            str(row.epoch),
            tables.progress(row, rows),
            tables.size(row),
            tables.money(row),
            tables.eta(row, interval=wide),
        ]
        for row in rows
    ]
    if not wide:
        headers, *cells = ([_tight(cell) for cell in line] for line in [headers, *cells])
    widths = [max(cell_len(line[i]) for line in [headers, *cells]) for i in range(len(headers))]
    gap = GAP if max(MIN_NAME, widths[0]) + sum(widths[1:]) + GAP * (len(widths) - 1) <= width else 1
    widths[0] = max(MIN_NAME, min(widths[0], width - sum(widths[1:]) - gap * (len(widths) - 1)))
    parts = [_columns(headers, widths, width, "bold", gap=gap)]
    for row, texts in zip(rows, cells, strict=True):
        parts.append(
            _columns(texts, widths, width, state=tables.STATE_STYLE.get(State(row.state), ""), gap=gap)
        )
        if not State(row.state).ended or (ended and row.state != State.SUCCEEDED):
            parts.append(_doing(row, running.get(row.name), width))
    return parts


def _tight(cell: str) -> str:
    return cell.replace(" → ", "→").replace(" / ", "/")


def _columns(
    texts: Sequence[str],
    widths: Sequence[int],
    width: int,
    style: str = "",
    *,
    state: str = "",
    gap: int = GAP,
) -> Text:
    line = Text(style=style)
    for i, (text, column) in enumerate(zip(texts, widths, strict=True)):
        cut = text if cell_len(text) <= column else set_cell_size(text, column - 1) + "…"
        fill = " " * (column - cell_len(cut))
        line.append(fill + cut if i == RIGHT else cut + fill, state if i == STATE_AT else "")
        line.append(" " * gap)
    line.rstrip()
    return _cut(line, width)


def _doing(row: JobRow, now: Running | None, width: int) -> Text:
    """The second line: a bar inside the epoch, or why there is none."""
    reason = tables.reason(row)
    if now is None or not now.total:
        return _cut(Text(f"  {reason}", "dim"), width)
    what = f"  {'mini-epoch' if now.mini else 'epoch'} {now.epoch}  "
    share = min(1.0, now.samples / now.total)
    done = f"  {now.samples:>{len(f'{now.total:,}')},} / {now.total:,}  "
    length = max(8, min(BAR, width - cell_len(what) - cell_len(done) - 12))
    full = round(share * length)
    return _cut(
        Text.assemble(
            (what, "dim"),
            ("━" * full, "cyan"),
            ("─" * (length - full), "dim"),
            (done + (reason if now.state == "training" else now.state), "dim"),
        ),
        width,
    )


def _happened(line: Line, several: bool, width: int) -> Text:
    who = f"{line.job}: " if line.job and several else ""
    return _cut(Text.assemble((formatting.clock(line.at) + " ", "dim"), who + line.text), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
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
