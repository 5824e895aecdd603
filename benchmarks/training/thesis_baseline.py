"""The thesis's way of running an epoch against ours: the same job, seed, target and (w,s) path.

The thesis's handler starts a new Python process for each role and epoch, which imports MXNet and loads the data, and
looks every 5 s whether it is done (its figure: 9.3 s an epoch outside training). The double here does exactly that
with our own functions: every epoch gets new, cold ones, and each reads the data set as it is. The time to start the
processes themselves is measured and subtracted, since the thesis kept its pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import harness
from coach.core.cluster import PodId, Role
from coach.core.jobs import actions as act
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.platforms.base import EpochOrder
from coach.platforms.function_calls import KEY_VARIABLE, Direct, Unanswered
from coach.platforms.gang_client import GangClient
from coach.platforms.local.environment import Functions

POLL_SECONDS = 5.0
_numbers = itertools.count(1)


async def _cold_epoch(
    spec: TrainingJob, order: act.RunEpoch, folder: Path, functions: Functions
) -> tuple[float, float, dict[str, Any]]:
    """(seconds, of which starting the processes, worker 0's report)."""
    began = time.monotonic()
    number = next(_numbers)
    addresses: dict[PodId, str] = {}
    processes = []
    calls = Direct()
    env = {
        **os.environ,
        **functions.env,
        "COACH_DATA_CACHE": "",
        "PYTHONPATH": str(functions.folder),
        KEY_VARIABLE: "a-key-of-nobody",
    }
    for index, pod in enumerate(order.pods):
        host = f"127.60.{number % 250 + 1}.{index + 1}"
        addresses[pod] = f"{host}:8080"
        command = [str(functions.python), "-m", "training.serving.serve", pod.role.value, "--host", host]
        with (folder / f"{number}-{pod.name}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    try:
        await asyncio.gather(*(_ready(calls, address) for address in addresses.values()))
        starting = time.monotonic() - began
        client = GangClient(calls, EpochOrder(order, spec, addresses, time.time() + 600), time.time, "a-key-of-nobody")
        await asyncio.gather(*(client._start(member) for member in client.members))
        workers = [member for member in client.members if member.pod.role is Role.WORKER]
        while True:
            await asyncio.sleep(POLL_SECONDS)
            body = {"op": "status", "epoch": order.token, "wait": 0, "seen": -1}
            answers = [await client._call(member, body, 30) for member in workers]
            if any(answer["state"] in ("failed", "stopped") for answer in answers):
                raise RuntimeError(answers)
            if all(answer["state"] == "done" for answer in answers):
                return time.monotonic() - began, starting, answers[0]["report"]
    finally:
        await calls.close()
        for process in processes:
            process.kill()
            process.wait()


async def _ready(calls: Direct, address: str) -> None:
    """Wait until a function answers."""
    while True:
        with contextlib.suppress(Unanswered):
            await calls.post(address, {"op": "health"}, 30)
            return
        await asyncio.sleep(0.02)


async def _thesis_way(spec: TrainingJob, path: Job) -> dict[str, Any]:
    """Run the epochs of `path` again, each cold."""
    functions = Functions.find()
    with tempfile.TemporaryDirectory(prefix="coach-thesis-") as name:
        folder = Path(name)
        weights, position = None, 0
        total = starting = training = 0.0
        report: dict[str, Any] = {}
        for epoch in path.epochs:
            token = f"cold.{epoch.number}"
            pods = tuple(
                PodId("cold", role, index)
                for role, count in ((Role.SCHEDULER, 1), (Role.SERVER, epoch.allocation.servers))
                for index in range(count)
            ) + tuple(PodId("cold", Role.WORKER, index) for index in range(epoch.allocation.workers))
            order = act.RunEpoch(
                at=time.time(),
                job="cold",
                token=token,
                kind=epoch.kind,
                number=epoch.number,
                attempt=1,
                allocation=epoch.allocation,
                pods=pods,
                group=f"cold.g{epoch.number}",
                fraction=epoch.fraction,
                seconds=None,
                position=position,
                weights_in=weights,
                weights_out=(folder / f"{token}.ckpt").as_uri(),
                deadline=600.0,
                budget_bound=False,
                reservation=0,
                predicted_seconds=None,
            )
            seconds, start, report = await _cold_epoch(
                spec, replace(order, fraction=min(1.0, epoch.fraction)), folder, functions
            )
            weights, position = order.weights_out, position + int(report["samples"])
            total, starting = total + seconds, starting + start
            training += report["train_seconds"] + report["evaluate_seconds"]
        return {
            "completion_seconds": total - starting,
            "training_seconds": training,
            "loss": report["loss"],
        }


def rows_of(spec: TrainingJob, job: Job, repeat: int) -> list[dict[str, Any]]:
    """The row of a run of ours, and that of the same epochs run again in the thesis's way."""
    ours = {
        "way": "Coach",
        "repeat": repeat,
        "epochs": len(job.epochs),
        "completion_seconds": harness.completion(job),
        "training_seconds": sum(e.report.train_seconds + e.report.evaluate_seconds for e in job.epochs),
        "loss": job.epochs[-1].report.loss,
    }
    return [ours, ours | {"way": "thesis"} | asyncio.run(_thesis_way(spec, job))]


def write(name: str, rows: Sequence[dict[str, Any]], command: str) -> None:
    """Write results/one-machine/thesis-way.{csv,md}."""
    folder = harness.RESULTS / "one-machine"
    harness.write_csv(folder / "thesis-way.csv", rows)
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    ratios = sorted(theirs["completion_seconds"] / ours["completion_seconds"] for ours, theirs in pairs)
    listed = ", ".join(f"{ratio:.1f}x" for ratio in ratios)
    harness.write_table(
        folder / "thesis-way.md",
        f"{name}: the thesis's way of running an epoch against Coach's (medians)",
        command,
        harness.medians(rows, "way", ("epochs", "completion_seconds", "training_seconds", "loss")),
        f"Coach is {ratios[len(ratios) // 2]:.1f}x faster (pair by pair: {listed}; goal >= 3x), with the same seed, "
        "target and (w,s) path.",
    )
