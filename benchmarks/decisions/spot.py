"""Spot machines under a deadline and a budget: Coach's elastic rule, Uniform Progress, and greedy, on published traces.

    git clone the repository skypilot-org/spot-traces to a folder outside this one, then
    python -m benchmarks.decisions.spot FOLDER/availability/1-node/aws-02-15-2023 [--write results/spot.md]

48 h of work of one worker, from a start every 72 h of each trace. Spot costs 0.33 of on-demand, a change 0.1 h: the
setting of "Can't Be Late" (NSDI 2024, section 6). Costs are in shares of 48 h of one on-demand worker.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coach.core.policies.spot import Terms, elastic
from coach_research.policies.uniform_progress import greedy, uniform_progress
from coach_research.spot_traces import Choose, Ran, Trace, bound, run

WORK, DEADLINES, EVERY_HOURS = 48.0, (52.0, 60.0, 72.0, 92.0), 72.0
SPOT, CHANGE = 0.33, 0.1
#: Speed with n workers in multiples of one's, as each more loses a tenth of its own: an assumption.
SPEEDS = (1.0, 1.9, 2.7, 3.4)
#: What the paper's authors print for one worker: greedy, Uniform Progress, and who knows the trace.
PUBLISHED = {
    52.0: (0.749, 0.607, 0.539),
    60.0: (0.640, 0.553, 0.493),
    72.0: (0.560, 0.546, 0.471),
    92.0: (0.495, 0.519, 0.433),
}


@dataclass(frozen=True)
class Row:
    """A policy with its speeds and budget, in shares of what one on-demand worker costs."""

    name: str
    choose: Choose
    workers: int = 1
    budget: float = math.inf


ROWS = (
    Row("greedy, 1 worker", greedy),
    Row("Uniform Progress, 1 worker", uniform_progress),
    Row("Coach, 1 worker", elastic),
    Row("Coach, 1 to 2 workers", elastic, 2),
    Row("Coach, 1 to 4 workers", elastic, 4),
    Row("Coach, 1 to 4 workers, budget 1.02", elastic, 4, 1.02),
    Row("Coach, 1 to 4 workers, budget 0.60", elastic, 4, 0.60),
)


def runs(row: Row, traces: Sequence[Trace], deadline: float, every: float) -> list[Ran]:
    """One run of each start in each trace."""
    return [
        run(row.choose, trace, start, WORK, deadline, terms(trace, row.workers), row.budget * WORK)
        for trace, start in starts(traces, every)
    ]


def starts(traces: Sequence[Trace], every: float) -> list[tuple[Trace, int]]:
    """The traces with the ticks at which a job begins."""
    return [
        (trace, start)
        for trace in traces
        for start in range(0, len(trace.machines) - math.ceil(DEADLINES[-1] / trace.step), round(every / trace.step))
    ]


def terms(trace: Trace, workers: int) -> Terms:
    """The paper's prices and change, with as many workers at most."""
    return Terms(SPOT, 1.0, CHANGE, trace.step, SPEEDS[:workers])


def table(traces: Sequence[Trace], every: float) -> str:
    """Markdown: a policy a row; of each deadline the mean cost, the highest, how many were late, and over budget."""
    heads = " | ".join(f"{deadline:g} h" for deadline in DEADLINES)
    lines = [
        f"{len(starts(traces, every))} runs of {WORK:g} h of work a cell: {len(traces)} zones, a start every {every:g} "
        "h. Mean cost (highest) in on-demand costs; late, over budget.",
        "",
        f"| policy | {heads} |",
        f"| --- |{' ---: |' * len(DEADLINES)}",
    ]
    for row in ROWS:
        cells = []
        for deadline in DEADLINES:
            found = runs(row, traces, deadline, every)
            costs = np.array([one.cost for one in found]) / WORK
            late, over = sum(one.work > 1e-9 for one in found), int((costs > row.budget + 1e-9).sum())
            cells.append(f"{costs.mean():.3f} ({costs.max():.2f}); {late}, {over}")
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    free = [
        f"{np.mean([bound(one, at, WORK, deadline, terms(one, 1)) for one, at in starts(traces, every)]) / WORK:.3f}"
        for deadline in DEADLINES
    ]
    lines.append(f"| bound for 1 worker that knows the trace | {' | '.join(free)} |")
    for number, name in enumerate(("greedy", "Uniform Progress", "bound")):
        lines.append(f"| published: {name} | {' | '.join(f'{PUBLISHED[each][number]:.3f}' for each in DEADLINES)} |")
    return "\n".join(lines)


def together(traces: Sequence[Trace]) -> str:
    """How often more machines are to be had where one is: what the elastic rows assume of the traces of one machine."""
    lines = ["| zone | 1 machine | of these 2 | 4 | 8 |", "| --- |" + " ---: |" * 4]
    for trace in traces:
        one = trace.machines[trace.machines >= 1]
        more = " | ".join(f"{(one >= count).mean():.1%}" for count in (2, 4, 8))
        lines.append(f"| {trace.name} | {len(one) / len(trace.machines):.1%} | {more} |")
    return "\n".join(lines)


def given(description: str | None, several: bool = False) -> argparse.Namespace:
    """What the command line says; `traces` are those of the folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the traces of one machine")
    if several:
        parser.add_argument("--several", type=Path, help="the folder of the traces of 16 machines")
    parser.add_argument("--every", type=float, default=EVERY_HOURS, help="hours between two starts")
    parser.add_argument("--write", type=Path)
    found = parser.parse_args()
    found.traces = read(found.folder)
    if not found.traces:
        parser.error(f"{found.folder}: no traces (*.json); clone skypilot-org/spot-traces, and name its folder")
    return found


def read(folder: Path) -> list[Trace]:
    """All traces of a folder."""
    return [Trace.read(path) for path in sorted(folder.glob("*.json"))]


def say(text: str, file: Path | None) -> None:
    """Print a page, or write it."""
    if file is None:
        print(text)
    else:
        file.write_text(text)


def main() -> None:
    """Print the table, or write it."""
    asked = given(__doc__, several=True)
    text = f"# Spot machines under a deadline\n\n{table(asked.traces, asked.every)}\n"
    if asked.several is not None:
        several = together(read(asked.several))
        text += f"\nWhere one machine is to be had (16-node traces of the same repository):\n\n{several}\n"
    say(text, asked.write)


if __name__ == "__main__":
    main()
