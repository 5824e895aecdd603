"""What the benchmarks share: run jobs on this machine in a folder of their own, piece by piece; tables."""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coach.core.jobs.epoch import Epoch
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.state.codec import Record
from coach.handler.state.journal import Journal
from coach.jobfiles.load import load_jobs
from coach.platforms.local.cluster import parse_nodes
from coach.platforms.local.environment import Functions
from coach.plugins import policy
from coach_research.platforms.limited import LimitedPlatform
from coach_research.platforms.network import Bandwidth

ROOT = Path(__file__).resolve().parents[1]
#: Where tables go; COACH_RESULTS says another folder, for trying out.
RESULTS = Path(os.environ.get("COACH_RESULTS") or ROOT / "results")


def load(*files: str | Path) -> list[TrainingJob]:
    """The jobs of job files, whose paths may be relative to the checkout."""
    return [loaded.spec for loaded in load_jobs([ROOT / file for file in files])]


def changed(job: TrainingJob, **spec: Any) -> TrainingJob:
    """The job with fields of its spec (as in YAML) replaced."""
    content = job.to_json()
    return TrainingJob.from_json({**content, "spec": {**content["spec"], **spec}})


def static(job: TrainingJob, workers: int, servers: int) -> TrainingJob:
    """The job with a fixed allocation."""
    return changed(job, policy={"name": "static", "workers": workers, "servers": servers})


def run(  # noqa: PLR0917 - options with defaults
    jobs: Sequence[TrainingJob],
    nodes: str | None = None,
    bandwidth: str = "",
    allocator: str = "coach",
    history: list[Record] | None = None,
    after: Sequence[float] = (),
) -> list[Job]:
    """Run jobs together to their ends; the finished jobs, in the same order.

    `nodes` and `bandwidth` as `coach run` takes them, `allocator` as its `--policy`. Events and actions are added to
    `history`. `after`: seconds from the start to each job's submission, which do not decrease; none: all at once.
    """
    home = Path(tempfile.mkdtemp(prefix="coach-bench-"))
    try:
        limit = Bandwidth.parse(bandwidth) if bandwidth else None
        history = [] if history is None else history
        return asyncio.run(_run(jobs, nodes, limit, allocator, home, history, after or [0.0] * len(jobs)))
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def _run(  # noqa: PLR0917 - `run` has the same
    jobs: Sequence[TrainingJob],
    nodes: str | None,
    bandwidth: Bandwidth | None,
    allocator: str,
    home: Path,
    history: list[Record],
    after: Sequence[float],
) -> list[Job]:
    journal = Journal.write(home / "journal.db")
    local = LimitedPlatform(
        parse_nodes(nodes),
        Functions.find(jobs[0].spec.framework),
        lambda name: home / "logs" / name,
        lambda: handler.now(),  # noqa: PLW0108 (not there yet)
        bandwidth=bandwidth,
    )
    handler = Handler(local, journal, policy(allocator))
    handler.observers.append(lambda event, actions: history.extend((event, *actions)))
    async with handler:
        begin = time.monotonic()
        for job, due in zip(jobs, after, strict=True):
            await asyncio.sleep(due - (time.monotonic() - begin))
            handler.submit(job, (home / "checkpoints" / job.name).as_uri())
        await handler.wait(lambda: len(handler.jobs) == len(jobs) and all(job.ended for job in handler.jobs.values()))
    journal.close()
    return [handler.jobs[job.name] for job in jobs]


def completion(job: Job) -> float:
    """Seconds from the submission to the end: starting functions and probing included."""
    return (job.progress.ended_at or 0.0) - job.progress.submitted_at


def outside(job: Job) -> list[tuple[Epoch, float]]:
    """For each epoch but the first, the seconds before it in which nothing was trained or evaluated."""
    found = []
    for before, epoch in zip(job.epochs, job.epochs[1:], strict=False):
        busy_until = before.report.train_ended_at + before.report.evaluate_seconds
        found.append((epoch, max(0.0, epoch.report.train_started_at - busy_until)))
    return found


class Rows:
    """The finished runs of a benchmark, a row of a CSV file each, which is written at once: a run is never lost."""

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path = path
        self._keys = keys
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            with path.open(newline="") as file:
                self.rows = list(csv.DictReader(file))

    def has(self, *key: Any) -> bool:
        """Whether the run of this key is there."""
        return any(all(row[k] == str(v) for k, v in zip(self._keys, key, strict=True)) for row in self.rows)

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Add finished runs."""
        self.rows += [{key: str(value) for key, value in row.items()} for row in rows]
        write_csv(self.path, self.rows)

    def of(self, **values: Any) -> list[dict[str, Any]]:
        """The rows with these values."""
        return [row for row in self.rows if all(row[k] == str(v) for k, v in values.items())]

    def median(self, value: str, **of: Any) -> float:
        """The median of `value` over the rows `of` these values."""
        return statistics.median(float(row[value]) for row in self.of(**of))


def piecewise(description: str | None, repeats: int = 3) -> argparse.ArgumentParser:
    """A parser with the options of a benchmark that is done run by run (`measure`)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats)
    words = "RUNS runs (one); exit code 3 when none is left"
    parser.add_argument("--next", type=int, nargs="?", const=1, metavar="RUNS", help=words)
    parser.add_argument("--tables", action="store_true", help="only write the tables anew")
    return parser


def measure(
    rows: Rows,
    wanted: Iterable[Sequence[Any]],
    run: Callable[..., Mapping[str, Any]],
    write: Callable[[], None],
    options: argparse.Namespace,
) -> None:
    """Do the runs in `wanted` (keys of `rows`, in their order) that are not there yet, as `options` say.

    `run(*key)` gives a row, which is kept at once; `write` writes tables of what is there so far.
    """
    if options.tables:
        write()
        return
    missing = [key for key in wanted if not rows.has(*key)]
    if options.next and not missing:
        raise SystemExit(3)
    for key in missing[: options.next]:
        row = run(*key)
        rows.add(row)
        print(row, file=sys.stderr, flush=True)
        write()


def medians(
    rows: Iterable[Mapping[str, Any]],
    by: str,
    values: Sequence[str],
    average: Callable[[Iterable[float]], float] = statistics.median,
) -> list[dict[str, Any]]:
    """One row for each value of `by`, in order of appearance: medians (or `average`) of `values`, how many rows."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[by], []).append(row)
    return [
        {by: key, "runs": len(group)} | {v: average(float(r[v]) for r in group) for v in values}
        for key, group in groups.items()
    ]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as CSV, with the first row's keys as header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows that write_csv wrote, as texts; none without a file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Columns of a table: how many were measured, and their median and bounds."""
    return {
        "measured": len(values),
        "median": f"{statistics.median(values):.2f}",
        "least": f"{min(values):.2f}",
        "most": f"{max(values):.2f}",
    }


def write_table(path: Path, title: str, command: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> None:
    """Rows as a Markdown table, with the command that made it and the machine it ran on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = list(rows[0])
    cells = [[_cell(row[key]) for key in header] for row in rows]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    lines = [
        f"# {title}",
        "",
        f"`{command}` on {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "",
        *(_line(line, widths) for line in [header, ["-" * width for width in widths], *cells]),
    ]
    path.write_text("\n".join([*lines, *(["", note] if note else [])]) + "\n")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def verdict(rows: Sequence[Mapping[str, Any]], before: int) -> int:
    """Say how many runs with faults had losses; 1 where one of this call had: all after the first `before`.

    What an earlier call found is in its table, and does not fail this one.
    """
    lost, new = [row for row in rows if row["lost"]], [row for row in rows[before:] if row["lost"]]
    print(f"{len(rows)} runs so far, {len(lost)} with losses", file=sys.stderr)
    print(f"{len(rows) - before} of them now, {len(new)} with losses", file=sys.stderr)
    return int(bool(new))
