"""Workloads from files: our own CSV of jobs, and readers of published traces. Coach ships none of the traces.

Our schema, one job a row, in any order; only the first three columns are required:

    job             name
    arrival         seconds
    work            seconds of a task; epochs where `model` is given
    kind            a name for the kind of job, such as trial-and-error
    cpu, memory, gpu              request of one worker: cores, GiB, devices (1, 0, 0)
    server_cpu, server_memory     request of one server (0, 0)
    min_workers, max_workers, min_servers, max_servers    (1, 1, 0, 0)
    model, epoch_seconds          measured speeds of this model (`coach simulate --speeds`), an epoch at 1x1 in seconds
    priority, grace               (0, 0): grace in seconds

`philly:`, `helios:`, `pai:` and `swf:` before a file's name read those traces as published (`swf:`: the Standard
Workload Format of the Parallel Workloads Archive, also compressed as `.gz`); `thesis:` reads a log of the thesis's
handler. Their jobs are tasks that hold their resources for as long as they ran there.

A file may come from anywhere: whatever is in it, the answer is its jobs or a UserError.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from coach import plugins
from coach.core.cluster import Allocation, Node
from coach.core.errors import UserError
from coach.core.policies.api.scheduling import Plan, totals
from coach.core.policies.kinds.scheduling_policy import SchedulingPolicy
from coach.simulation.dynamics.measured_speeds import find_speed
from coach.simulation.engine.cluster import Cluster
from coach.simulation.engine.event_engine import Engine
from coach.simulation.faults import Faults
from coach.simulation.metrics import OWN, Result
from coach.simulation.parallel import advancing
from coach.simulation.workload import NOTHING, Speed, Work

#: Cores that a Philly task is assumed to request for each device: the trace has neither cores nor memory.
CORES_PER_GPU = 4.0

#: The longest line of a workload that is read, in characters; and the most pods of a role of a job.
MAX_LINE, MAX_PODS = 10_000, 10_000_000

#: Columns of the Standard Workload Format, version 2.2, counted from 0. -1: unknown.
SWF_COLUMNS = 18
JOB, SUBMITTED, RUN_TIME, PROCESSORS, MEMORY, REQUESTED_PROCESSORS, REQUESTED_MEMORY, STATUS = (
    0,
    1,
    3,
    4,
    6,
    7,
    9,
    10,
)
#: Statuses of jobs; 2 to 4 are parts of a job that has a line of its own.
SWF_STATUS = {-1: "unknown", 0: "failed", 1: "completed", 5: "cancelled"}
KIB_PER_GIB = 1024.0**2

TIME = "%Y-%m-%d %H:%M:%S"


def replay(trace: str, nodes: tuple[Node, ...], policy: str, seed: int, lost: tuple[float, float]) -> Result:
    """One run of a trace under a policy. `lost`: mean seconds until a node is lost, a function. Raises UserError."""
    began = time.perf_counter()
    made = plugins.policy(policy, np.random.default_rng([seed, 1]))
    faults = Faults.of(seed, *lost)
    engine = Engine(Cluster.of(nodes), advancing(read_trace(trace)), made, seed=seed, faults=faults)
    record = engine.run()
    placement = OWN if isinstance(made, SchedulingPolicy) else "gang"
    return Result.of(record, policy, seed, engine.events, time.perf_counter() - began, placement=placement)


def read_trace(trace: str) -> list[Work]:
    """The jobs of `[KIND:]FILE` in order of arrival, the first at 0 s. Raises UserError."""
    kind, _, name = trace.rpartition(":")
    path = Path(name)
    readers: dict[str, Callable[[Path], Iterable[Work]]] = {
        "": _own, "philly": _philly, "helios": _helios, "pai": _pai, "swf": _swf, "thesis": _thesis,
    }  # fmt: skip
    if kind not in readers:
        raise UserError(
            f"--trace {trace}: there is no kind {kind!r}; use philly:, helios:, pai:, swf:, thesis: or none"
        )
    if not path.is_file():
        raise UserError(f"--trace {trace}: there is no file {name}")
    try:
        works = sorted(map(_checked, readers[kind](path)), key=lambda work: work.arrival)
    except (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError,
            csv.Error, zlib.error) as error:  # fmt: skip
        words = f"{type(error).__name__} {error}"
        raise UserError(
            f"--trace {trace} cannot be read ({words}); docs/how-to/simulate.md has the columns of each kind"
        ) from error
    if not works:
        raise UserError(f"--trace {trace} has no job that ran")
    first = works[0].arrival
    for work in works:
        work.arrival -= first
    return works


def _checked(work: Work) -> Work:
    """The job, if its numbers can be simulated. Raises ValueError."""
    least, most = work.minimum, work.maximum
    sizes = [work.arrival, work.work, work.grace, *work.worker.tolist(), *work.server.tolist()]
    if not (all(map(math.isfinite, sizes)) and work.work > 0 and min(sizes[2:]) >= 0):
        raise ValueError(f"job {work.name!r:.60}: its times and requests are {sizes}; they must be 0 or more")
    counts = (least.workers, most.workers, least.servers, most.servers)
    if not (0 < counts[0] <= counts[1] and 0 <= counts[2] <= counts[3] and max(counts) <= MAX_PODS):
        given = ", ".join(f"{count:.6g}" for count in counts)
        raise ValueError(
            f"job {work.name!r:.60} has {given} as fewest and most workers, fewest and most servers; use 1 to "
            f"{MAX_PODS} workers, and no more as fewest than as most"
        )
    return work


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _vector(*values: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(values, float)


def _own(path: Path) -> Iterator[Work]:
    for row in _rows(path):

        def number(name: str, otherwise: float, row: dict[str, str] = row) -> float:
            return float(row.get(name) or otherwise)

        model, servers = row.get("model", ""), number("min_servers", 0)
        if float(row["work"]) <= 0:
            raise ValueError(f"job {row['job']} has no work")
        yield Work(
            arrival=float(row["arrival"]),
            work=float(row["work"]),
            worker=_vector(number("cpu", 1), number("memory", 0), number("gpu", 0)),
            server=_vector(number("server_cpu", 0), number("server_memory", 0), 0) if servers else NOTHING,
            name=row["job"],
            kind=row.get("kind", ""),
            priority=int(number("priority", 0)),
            minimum=Allocation(int(number("min_workers", 1)), int(servers)),
            maximum=Allocation(
                int(number("max_workers", number("min_workers", 1))), int(number("max_servers", servers))
            ),
            speed=_measured(model, number("epoch_seconds", 60)) if model else None,
            grace=number("grace", 0),
        )


def _measured(model: str, epoch_seconds: float) -> Speed:
    shape = find_speed(model)

    def speed(plan: Plan) -> float:
        return shape(*totals(plan)) / epoch_seconds

    return speed


def _task(  # noqa: PLR0917
    name: str, kind: str, arrival: float, seconds: float, tasks: int, worker: Any
) -> Work:
    """A job of `tasks` equal tasks that start together and run for `seconds`."""
    count = Allocation(max(1, tasks), 0)
    return Work(arrival, seconds * count.workers, worker, name=name, kind=kind, minimum=count, maximum=count)


def _philly(path: Path) -> Iterator[Work]:
    """`cluster_job_log` of the Philly traces: JSON, attempts with start and end, devices by machine."""
    for job in json.loads(path.read_text()):
        gpus: list[int] = []
        seconds = 0.0
        for attempt in job["attempts"]:
            if attempt.get("start_time") and attempt.get("end_time"):
                seconds += _stamp(attempt["end_time"]) - _stamp(attempt["start_time"])
                gpus = [len(machine["gpus"]) for machine in attempt.get("detail", [])] or gpus
        if seconds > 0 and gpus:
            each = min(gpus)  # devices of one task
            yield _task(
                job["jobid"], job["status"], _stamp(job["submitted_time"]), seconds, sum(gpus) // max(1, each),
                _vector(each * CORES_PER_GPU, 0, each),
            )  # fmt: skip


def _helios(path: Path) -> Iterator[Work]:
    """`cluster_log.csv` of the Helios traces."""
    for row in _rows(path):
        nodes = max(1, int(float(row["node_num"] or 1)))
        seconds = float(row["duration"] or 0)
        if seconds > 0:
            yield _task(
                row["job_id"], row["state"], _stamp(row["submit_time"]), seconds, nodes,
                _vector(float(row["cpu_num"] or 0) / nodes, 0, float(row["gpu_num"] or 0) / nodes),
            )  # fmt: skip


def _pai(path: Path) -> Iterator[Work]:
    """The job table of the simulator published with Alibaba's GPU trace of 2020; requests are of each instance."""
    for row in _rows(path):
        seconds = float(row["duration"] or 0)
        if seconds > 0:
            yield _task(
                row["job_id"], row.get("user", ""), float(row["submit_time"]), seconds,
                int(float(row["num_inst"] or 1)),
                _vector(float(row["num_cpu"] or 0), 0, float(row["num_gpu"] or 0)),
            )  # fmt: skip


def _swf(path: Path) -> Iterator[Work]:
    """A workload in the Standard Workload Format: a line a job, 18 numbers; lines that begin with `;` are comments.

    A job of n processors is n tasks of one core each. Jobs that did not run are left out. (Feitelson, Tsafrir and
    Krakov, "Experience with using the Parallel Workloads Archive", JPDC 2014.)
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", errors="replace") as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if len(line) == MAX_LINE:
                raise ValueError(f"line {number} is longer than {MAX_LINE} characters")
            if line.startswith(";") or not line.strip():
                continue
            fields = line.split()
            if len(fields) < SWF_COLUMNS:
                raise ValueError(f"line {number} has {len(fields)} columns; a job has {SWF_COLUMNS}")
            try:
                row = [float(field) for field in fields[:SWF_COLUMNS]]
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            processors = row[PROCESSORS] if row[PROCESSORS] > 0 else row[REQUESTED_PROCESSORS]
            memory = max(0.0, row[MEMORY] if row[MEMORY] > 0 else row[REQUESTED_MEMORY]) / KIB_PER_GIB
            status = SWF_STATUS.get(int(row[STATUS]))
            if status and processors > 0 and row[RUN_TIME] > 0:
                yield _task(
                    fields[JOB], status, row[SUBMITTED], row[RUN_TIME], int(processors), _vector(1, memory, 0)
                )


def _thesis(path: Path) -> Iterator[Work]:
    """A run log of the thesis's handler (not JSON: ` | ` inside its arrays): each job with its last allocation."""
    for job in re.findall(r"\{[^{}]*\}", path.read_text(errors="replace")):
        began = re.search(r'"startTime":\s*"([^"]{19})', job)
        took = re.search(r'"totalTime":\s*([0-9.eE+]+)', job)
        last = {role: re.findall(rf'"{role}":\s*\[[^\]]*?(\d+)\s*\]', job) for role in ("workers", "servers")}
        if began and took and last["workers"] and last["servers"]:
            at = Allocation(int(last["workers"][0]), int(last["servers"][0]))
            name = re.search(r'"id":\s*"([^"]*)"', job)
            yield Work(
                _stamp(began[1]), float(took[1]) * at.workers, _vector(1, 0, 0), _vector(1, 0, 0),
                name=name[1] if name else "", kind=path.parent.name, minimum=at, maximum=at,
            )  # fmt: skip


def _stamp(text: str) -> float:
    return datetime.strptime(text[:19], TIME).timestamp()
