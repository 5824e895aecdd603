"""Coach's own CSV: one job a row, in any order; only the first three columns are required.

Jobs that arrive at the same second are in the queue in the order of the file.

    job             name, another one in each row
    arrival         seconds
    work            seconds of a task; epochs where `model` is given
    kind            a name for the kind of job, such as trial-and-error
    cpu, memory, gpu              request of one worker: cores, GiB, devices (1, 0, 0)
    server_cpu, server_memory     request of one server (0, 0)
    min_workers, max_workers, min_servers, max_servers    (1, min, 0, min)
    model, epoch_seconds          measured speeds of this model (`coach simulate --speeds`), an epoch at 1x1 in seconds
    priority, grace               (0, 0): grace in seconds
    partition                     the nodes that it may have: those called PARTITION/NAME (`kind`)
    restart                       seconds without training after a start, a change of its allocation or of its nodes (0)
    checkpoint                    seconds of training, or epochs, between two checkpoints (0: it never loses any work)
    speed_by_kind                 its speed on nodes of a kind, such as A100=2 T4=0.5 (1)

A job's tasks run side by side: with `min_workers` tasks it takes `work` seconds, with k times as many 1/k of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches

from coach.core.cluster import Allocation
from coach.core.errors import UserError
from coach.simulation.dynamics.measured_speeds import MeasuredSpeed, find_speed
from coach_research.traces.draft import MAX_AMOUNT, MAX_PODS, Draft, shown, vector
from coach_research.traces.text import AMOUNT, PODS, SECONDS, Number, Row, rows
from coach_research.workload import NOTHING, Plan, Work, totals

COLUMNS = (
    "job", "arrival", "work", "kind", "cpu", "memory", "gpu", "server_cpu", "server_memory", "min_workers",
    "max_workers", "min_servers", "max_servers", "model", "epoch_seconds", "priority", "grace",
    "partition", "restart", "checkpoint", "speed_by_kind",
)  # fmt: skip

WORK = Number("seconds above 0", above=True)
SERVERS = Number(f"a whole number from 0 to {MAX_PODS}", most=MAX_PODS, whole=True)
FACTOR = Number("a factor above 0", most=MAX_AMOUNT, above=True)
PRIORITY = Number("a whole number", least=-1e9, most=1e9, whole=True)


def read_own(draft: Draft) -> None:
    """Read the file into `draft`. Raises UserError at the first mistake."""
    for row in rows(draft, ""):
        if not draft.works:
            _say_columns(draft, row)
        draft.keep(_work(draft, row), row.line, _not_read(row))


def _say_columns(draft: Draft, row: Row) -> None:
    for name in row.cells.keys() - set(COLUMNS):
        close = get_close_matches(name, COLUMNS, 1)
        draft.assume(f"column {shown(name)} is not read" + (f" (did you mean {close[0]}?)" if close else ""))
    if "cpu" not in row.cells:
        draft.assume("1 core for each worker, as there is no column cpu")


def _not_read(row: Row) -> list[str]:
    """What is said of a job whose cells mean nothing together."""
    said = []
    if row.cells.get("epoch_seconds") and not row.cells.get("model"):
        said.append("epoch_seconds is not used, as it has no model")
    return said


def _work(draft: Draft, row: Row) -> Work:
    name, model = row.cells["job"], row.cells.get("model", "")
    if not name:
        raise row.mistake("job", "use a name")
    if name in draft.lines:
        raise row.mistake("job", f"line {draft.lines[name]} has a job of that name already")
    least = Allocation(int(row.number("min_workers", PODS, 1)), int(row.number("min_servers", SERVERS, 0)))
    most = Allocation(
        int(row.number("max_workers", PODS, least.workers)),
        int(row.number("max_servers", SERVERS, least.servers)),
    )
    for role, low, high in (("workers", *_pair(least, most, 0)), ("servers", *_pair(least, most, 1))):
        if low > high:
            raise row.mistake(f"max_{role}", f"use min_{role}, which is {low}, or more")
    work, restart = row.number("work", WORK), row.number("restart", SECONDS, 0)
    return Work(
        arrival=row.number("arrival", SECONDS),
        work=work if model else work * least.workers,
        worker=vector(row.number("cpu", AMOUNT, 1), row.number("memory", AMOUNT, 0), row.number("gpu", AMOUNT, 0)),
        server=vector(row.number("server_cpu", AMOUNT, 0), row.number("server_memory", AMOUNT, 0), 0)
        if most.servers
        else NOTHING,
        name=name,
        kind=row.cells.get("kind", ""),
        priority=int(row.number("priority", PRIORITY, 0)),
        minimum=least,
        maximum=most,
        speed=_speed(row, model, row.number("epoch_seconds", WORK, 60)) if model else None,
        grace=row.number("grace", SECONDS, 0),
        partition=row.cells.get("partition", ""),
        start_seconds=restart,
        rescale_seconds=restart,
        migration_seconds=restart,
        # The engine counts the seconds of one worker.
        checkpoint=row.number("checkpoint", SECONDS, 0) * (1 if model else least.workers),
        kinds=_by_kind(row),
    )


def _by_kind(row: Row) -> dict[str, float]:
    """Its speed by kind of node."""
    found = {}
    for part in row.cells.get("speed_by_kind", "").split():
        kind, _, factor = part.partition("=")
        try:
            found[kind] = float(factor)
        except ValueError:
            found[kind] = math.nan
        if not kind or not FACTOR.holds(found[kind]):
            raise row.mistake("speed_by_kind", "use KIND=FACTOR, such as A100=2 T4=0.5, with factors above 0")
    return found


def _pair(least: Allocation, most: Allocation, at: int) -> tuple[int, int]:
    return least[at], most[at]


def _speed(row: Row, model: str, epoch_seconds: float) -> Speed:
    try:
        return Speed(find_speed(model), epoch_seconds)
    except UserError as error:
        raise row.mistake("model", str(error)) from error


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a job with a model: as measured, where an epoch at 1x1 takes `epoch_seconds`."""

    shape: MeasuredSpeed
    epoch_seconds: float

    def __call__(self, plan: Plan) -> float:
        """Epochs/s under `plan`."""
        return self.shape(*totals(plan)) / self.epoch_seconds
