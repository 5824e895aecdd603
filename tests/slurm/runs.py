"""Programs on Slurm, run by a handler in this process or by the real command."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.interactive_run import over
from coach.handler.session import submit_new
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.slurm.platform import SlurmPlatform
from coach.plugins import policy
from tests.docs.pages import ROOT

#: A second of one worker costs a thousandth.
PRICES = {"name": "test", "currency": "EUR", "vcpuSecond": 0.001, "gibSecond": 0.0, "invocation": 0.5}

#: A program that resumes: epoch n ends with a loss of 1 / n; it says what Slurm and Coach told it.
LEARNS = """
import os, pathlib, signal, sys, time
at = pathlib.Path(os.environ["COACH_CHECKPOINTS"], "epoch")
env, rank = os.environ.get, int(os.environ.get("RANK", "0"))
print("rank", rank, "of", env("WORLD_SIZE"), "at", env("MASTER_ADDR"), "sees", env("CUDA_VISIBLE_DEVICES"))
def leave(*_):
    print("leaves with a checkpoint", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
done = int(at.read_text()) if at.exists() else 0
for epoch in range(done + 1, 1000):
    time.sleep(0.3)
    print(f"epoch {epoch}: val loss: {1 / epoch:.4f}", flush=True)
    if rank == 0:
        at.with_suffix(".new").write_text(str(epoch))
        at.with_suffix(".new").replace(at)
"""


def job(folder: Path, script: str = LEARNS, *, amount: float | None = 1.0, target: float = 0.2, grace: int = 5,
        resumes: bool = False, name: str = "own", **spec: Any) -> TrainingJob:  # fmt: skip
    """A job that runs `script`."""
    (folder / f"{name}.py").write_text(script)
    fields = {
        "program": {
            "command": ["python3", f"{name}.py"],
            "directory": str(folder),
            "metrics": {"val_loss": "val loss: (\\S+)"},
            "resumes": resumes,
        },
        "target": {"metric": "val_loss", "value": target, "epochsInARow": 1},
        "budget": {"unlimited": True} if amount is None else {"amount": amount, "currency": "EUR"},
        "gracePeriod": grace,
        "prices": PRICES,
        "resources": {"worker": {"cpu": "1", "memory": "512Mi"}},
    }
    return TrainingJob.from_json(
        {
            "apiVersion": "coach.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {key: value for key, value in (fields | spec).items() if value is not None},
        }
    )


Then = Callable[[Handler, Any], object]


class Stopped(Exception):
    """What a test raises in `then`, to leave a handler as if it were killed."""


def train(folder: Path, *specs: TrainingJob, then: Then = lambda handler, event: None) -> tuple[Job, list[Any]]:
    """Run jobs to their ends; the first one, and the journal's records. `then` is called after each event.

    Called again, it goes on with what the one before has left.
    """
    home = StateDirectory(folder / "home")

    async def main() -> Job:
        with closing(Journal.write(home.journal(1))) as journal:
            clock: list[Handler] = []
            platform = SlurmPlatform(
                home.path, home.handler_id(), home.logs, home.checkpoints, lambda: clock[0].now() if clock else 0.0
            )
            left: list[Exception] = []

            def after(event: Any, actions: Any) -> None:
                try:
                    then(handler, event)
                except Stopped as stopped:
                    left.append(stopped)

            async with Handler(platform, journal, policy("coach")) as handler:
                clock.append(handler)
                handler.observers.append(after)
                for spec in specs:
                    if spec.name not in handler.jobs:
                        submit_new(handler, home, spec, {}, ())

                def ended() -> bool:
                    return all(spec.name in handler.jobs and over(handler.jobs[spec.name]) for spec in specs)

                await handler.wait(lambda: bool(left) or ended())
                if left:
                    handler.leave_programs()
                return handler.jobs[specs[0].name]

    home.handler_id()
    found = asyncio.run(main())
    with closing(Journal.read(home.journal(1))) as journal:
        return found, [record for _, record in journal.records()]


def logged(folder: Path, worker: int = 0, name: str = "own") -> str:
    """What a worker has printed, as Coach logs it."""
    return (folder / f"home/jobs/{name}/logs/{name}-worker-{worker}.log").read_text()


def shim(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of Slurm that misbehaves; `$REAL` is the real one, `$COUNT` how often it was called before."""
    real = shutil.which(name)
    folder.mkdir(exist_ok=True)
    count = folder / f"{name}.count"
    head = f"#!/bin/sh\nREAL={real}; COUNT=$(cat {count} 2>/dev/null || echo 0); echo $((COUNT + 1)) > {count}\n"
    (folder / name).write_text(head + script)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def coach(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The real command, in a folder."""
    more = {"COACH_HOME": str(folder / "home"), **(env or {})}
    return subprocess.run(
        [str(ROOT / ".venv/bin/coach"), *words],
        cwd=folder,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
    )
