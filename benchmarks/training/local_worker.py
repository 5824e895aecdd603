"""What a function on this machine costs: to start it, between two epochs, to replace a killed one, in memory.

    python -m benchmarks.training.local_worker --repeats 10 --version after

Adds rows to results/local-worker.csv and writes results/local-worker.md, the medians of each version. Versions are
compared by running them in turn, each in its own checkout, with COACH_RESULTS naming one folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import harness
from coach.core.cluster import Allocation, Pod, PodId, Resources, Role
from coach.core.jobs.actions import RunEpoch
from coach.core.jobs.epoch import EpochKind
from coach.core.spec.job import TrainingJob
from coach.platforms.base import EpochOrder
from coach.platforms.function_calls import Direct
from coach.platforms.local.cluster import parse_nodes
from coach.platforms.local.environment import Functions
from coach.platforms.local.platform import LocalPlatform

EPOCHS = 20
TITLE = "One function on one machine (medians)"
NOTE = """A gang is a scheduler, a server and a worker in MXNet, on a handler's platform of its own in each run.

- *open*: until the framework is imported. *start 3*: until all three of a gang answer. Before there were six spares;
  the first gang found three, the third none.
- *processes*, *memory*: all below the handler with one idle gang; of shared pages each process has its part.
- *pause*: of an epoch's order on a formed group, what is not training, evaluating and storing.
- *kill*: from SIGKILL to the process that answers until another one answers, and until that has the framework.

*before* is commit 2a2d8f5b: a host, a wrapper and a zygote for each function. Both ran in turn, at a load average of
15 to 21 on the 2 cores; do not read the difference of the pauses as an advantage."""
COMMAND = "python -m benchmarks.training.local_worker --repeats 10 --version NAME"
ROLES = (Role.SCHEDULER, Role.SERVER, Role.WORKER)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--version", default="after", help="what the rows are called")
    options = parser.parse_args()
    rows = harness.Rows(harness.RESULTS / "local-worker.csv", ["version"])
    for _ in range(options.repeats):
        row = asyncio.run(_measure())
        rows.add({"version": options.version, **{key: round(value, 4) for key, value in row.items()}})
        table = harness.medians(rows.rows, "version", list(row))
        harness.write_table(harness.RESULTS / "local-worker.md", TITLE, COMMAND, table, NOTE)


async def _measure() -> dict[str, float]:
    """One platform from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="coach-bench-") as name:
        folder = Path(name)
        lost: dict[PodId, asyncio.Event] = {}
        platform = LocalPlatform(parse_nodes(None), Functions.find(), lambda job: folder / job, time.time)
        began = time.monotonic()
        await platform.open(SimpleNamespace(pod_lost=lambda pod, *_: lost[pod].set()))  # type: ignore[arg-type]
        opened = time.monotonic() - began
        try:
            starts = [await _start(platform, job) for job in ("first", "second", "third")]
            await platform.release([pod for _, pods in starts[:2] for pod in pods])
            row = {
                "open s": opened,
                "start 3, first ms": 1e3 * starts[0][0],
                "start 3, third ms": 1e3 * starts[2][0],
            }
            addresses = starts[2][1]
            await asyncio.gather(*(_idle(platform._calls, address) for address in addresses.values()))
            row |= _memory(platform)
            row["pause ms"] = 1e3 * await _pause(platform, addresses, folder)
            worker = next(pod for pod in addresses if pod.role is Role.WORKER)
            lost[worker] = asyncio.Event()
            began = time.monotonic()
            os.kill(_process(platform, worker), signal.SIGKILL)
            await lost[worker].wait()
            address = (await platform.deploy(_pod(worker), _job(worker.job))).address
            row["kill to answer ms"] = 1e3 * (time.monotonic() - began)
            await _idle(platform._calls, address)
            row["kill to warm ms"] = 1e3 * (time.monotonic() - began)
            return row
        finally:
            await platform.close()


def _process(platform: LocalPlatform, pod: PodId) -> int:
    """The process that answers."""
    return platform._processes[pod].pid


def _job(name: str) -> TrainingJob:
    job = harness.load("jobs/lenet-digits.yaml")[0].to_json()
    model = {"file": (harness.ROOT / "functions/models/mlp.py").as_uri()}
    spec = {**job["spec"], "model": model, "data": {"format": "digits8x8"}}
    return TrainingJob.from_json({**job, "metadata": {"name": name}, "spec": spec})


def _pod(pod: PodId) -> Pod:
    return Pod(pod, "this-machine", Resources(0.1, 0.3, 0.0))


async def _start(platform: LocalPlatform, job: str) -> tuple[float, dict[PodId, str]]:
    """Seconds until a gang of three answers, and where."""
    pods = [PodId(job, role, 0) for role in ROLES]
    spec = _job(job)
    began = time.monotonic()
    deployed = await asyncio.gather(*(platform.deploy(_pod(pod), spec) for pod in pods))
    seconds = time.monotonic() - began
    return seconds, {pod: made.address for pod, made in zip(pods, deployed, strict=True)}


async def _idle(calls: Direct, address: str) -> None:
    """Until the function's zygote is warm."""
    while json.loads((await calls.post(address, {"op": "health"}, 10))[1])["state"] != "idle":
        await asyncio.sleep(0.002)


async def _pause(platform: LocalPlatform, addresses: dict[PodId, str], folder: Path) -> float:
    """Median seconds of an epoch's order on a formed group beyond training, evaluating and storing."""
    job = _job(next(iter(addresses)).job)
    pauses: list[float] = []
    position, weights = 0, None
    for number in range(1, EPOCHS + 1):
        out = (folder / f"{number}.ckpt").as_uri()
        order = RunEpoch(
            at=time.time(),
            job=job.name,
            token=f"{job.name}.{number}",
            kind=EpochKind.FULL,
            number=number,
            attempt=1,
            allocation=Allocation(1, 1),
            pods=tuple(addresses),
            group=f"{job.name}.g1",
            fraction=0.1,
            seconds=None,
            position=position,
            weights_in=weights,
            weights_out=out,
            deadline=60.0,
            budget_bound=False,
            reservation=0,
            predicted_seconds=None,
        )
        began = time.monotonic()
        report, _ = await platform.run_epoch(EpochOrder(order, job, addresses, time.time() + 60), _nothing)
        seconds = time.monotonic() - began
        pauses.append(seconds - report.train_seconds - report.evaluate_seconds - report.checkpoint_seconds)
        position, weights = position + report.samples, out
    return statistics.median(pauses[1:])  # the first one forms the group


def _nothing(_: Any) -> None:
    """Progress is not shown."""


def _memory(platform: LocalPlatform) -> dict[str, float]:
    """Processes below this one, and what they hold of the machine's memory, shared pages divided among their users."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
    found, left = set[int](), {os.getpid()}
    while left:
        left = {pid for pid, parent in parents.items() if parent in left}
        found |= left
    sizes = [_size(pid) for pid in found]
    return {"processes": float(len(found)), "memory MiB": sum(sizes)}


def _size(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
