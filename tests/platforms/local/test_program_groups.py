"""Programs whose group changes in the same process: `coach_program.group_changed()`, with real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.report.history import history
from tests.platforms.local.test_program_changes import changing, keeping, said
from tests.platforms.local.test_programs import nothing_is_left, paid, train
from tests.platforms.program_metrics.test_coach_program import MODULE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
__all__ = ["nothing_is_left"]

#: Two workers are 1.9 times as fast as one, and a third gains nothing. They say when their group changed.
PROGRAM = """
import json, os, sys, time
from pathlib import Path
import coach_program
checkpoint = Path(os.environ["COACH_CHECKPOINTS"], "epoch")
n, began = int(checkpoint.read_text()) if checkpoint.exists() else 0, time.monotonic()
while n < 1000:
    if coach_program.group_changed():
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        n = int(checkpoint.read_text()) if checkpoint.exists() else 0
        print(json.dumps({"pid": os.getpid(), "rank": rank, "world": world, "from": n}), flush=True)
    HERE
    time.sleep(1.5 / min(world, 1.9))
    n += 1
    if rank == 0:
        checkpoint.write_text(str(n))
        coach_program.report(val_loss=1 / n, epoch=n)
"""


def regrouping(folder: Path, here: str = "", **spec: Any) -> TrainingJob:
    """A job of one to three workers that runs PROGRAM, until a loss of 1/14."""
    (folder / "coach_program.py").write_bytes(MODULE.read_bytes())
    program = {"command": [sys.executable, "program.py"], "directory": str(folder), "resumes": True}
    return changing(folder, PROGRAM.replace("HERE", here or "pass"), **{"program": program} | spec)


def test_a_program_that_asks_for_its_group_changes_workers_in_the_same_process(tmp_path: Path) -> None:
    answers: list[list[str]] = []
    trained, records = train(tmp_path, regrouping(tmp_path), keeping(answers))
    assert trained.reason is Reason.TARGET_REACHED
    for line in history(records):
        print(line.text)
    for one in answers[-1]:
        print(one)
    for n in range(3):
        print(n, said(tmp_path, n) if (tmp_path / f"logs/own-worker-{n}.log").exists() else None)
    for epoch in trained.epochs:
        print(epoch.number, epoch.group, epoch.allocation, round(epoch.seconds, 2), epoch.starts, epoch.report.workers_lost, epoch.report.at_epoch)
    print(trained.times)
    paid(trained, records)
    assert 0
