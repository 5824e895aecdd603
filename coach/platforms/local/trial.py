"""Trying a job's training in one process of its own Python (functions/training/trial.py), for `coach try`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coach.core.cluster import Role
from coach.core.spec.job import TrainingJob
from coach.platforms.gang_client import training_fields
from coach.platforms.local.environment import Functions


@dataclass
class Trial:
    """What a trial found. Of a failed one `error` says why, or `crash` that the process died by itself."""

    phase: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, float]] = field(default_factory=list)
    samples: int = 0  #: of each step
    evaluation: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  #: what a user should know of the loss
    memory: float = 0.0  #: GiB, the most that the process held
    error: dict[str, str] = field(default_factory=dict)
    crash: str = ""

    @property
    def good(self) -> bool:
        """Whether all of it ran."""
        return not self.error and not self.crash

    @property
    def samples_per_second(self) -> float:
        """Of the last step: the first one also allocates memory and chooses kernels."""
        return self.samples / self.steps[-1]["seconds"]


def run(functions: Functions, job: TrainingJob, began: Callable[[str], None]) -> Trial:
    """Try `job`; `began` is called with each phase as it begins."""
    spec = job.spec
    threads = max(1, int(spec.resources.of(Role.WORKER).cpu))
    memory = spec.resources.of(Role.WORKER).memory
    fields = training_fields(spec) | {"threads": threads, "memory": memory}
    reader, lifeline = os.pipe()
    python = str(functions.python)
    keeper = [python, "-m", "training.keeper", "--lifeline", str(reader), "--"]
    found = Trial()
    with subprocess.Popen(
        [*keeper, python, "-X", "faulthandler", "-m", "training.trial"],
        cwd=functions.folder,
        env=functions.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(reader,),
    ) as process:
        os.close(reader)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(fields))
            process.stdin.close()
            for line in process.stdout:
                for key, value in json.loads(line).items():
                    setattr(found, key, value)
                    if key == "phase":
                        began(value)
            code = process.wait()
        finally:
            os.close(lifeline)  # then nothing is left of it
    if code and not found.error:
        found.crash = f"signal {signal.Signals(code - 128).name}" if code > 128 else f"exit code {code}"
    return found
