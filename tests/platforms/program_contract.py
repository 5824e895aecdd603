"""What every platform promises of a program, as tests: a platform's own class says how a job is run to its end."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob

#: A second of one worker costs a thousandth.
PRICES = {"name": "test", "currency": "EUR", "vcpuSecond": 0.001, "gibSecond": 0.0, "invocation": 0.5}

#: A program that resumes: epoch n ends with a loss of 1 / n. It counts its starts.
LEARNS = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(os.environ["COACH_CHECKPOINTS"]), int(os.environ.get("RANK", "0"))
with open(folder / f"starts-{rank}", "a") as starts:
    starts.write(os.environ.get("WORLD_SIZE", "alone") + "\\n")
def leave(*_):
    (folder / f"left-{rank}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
at = folder / "epoch"
done = int(at.read_text()) if at.exists() else 0
for epoch in range(done + 1, 1000):
    time.sleep(0.3)
    print(f"epoch {epoch}: val loss: {1 / epoch:.4f}", flush=True)
    if rank == 0:
        at.with_suffix(".new").write_text(str(epoch))
        at.with_suffix(".new").replace(at)
"""
#: Fifty epochs: to measure two workers is worth a restart, on a machine where that takes seconds too.
LONG = {"metric": "val_loss", "value": 0.02, "epochsInARow": 1}


class ProgramContract(ABC):
    """The tests. A platform's class inherits them."""

    #: By which the nodes start a program.
    python = sys.executable

    @abstractmethod
    def train(self, folder: Path, job: TrainingJob) -> tuple[Job, list[Any]]:
        """Run a job in a state folder below `folder` to its end; the job, and its journal's records."""

    @abstractmethod
    def checkpoints(self, folder: Path) -> Path:
        """The job's folder for checkpoints."""

    def job(self, folder: Path, script: str, *, resumes: bool = False, **spec: Any) -> TrainingJob:
        """A job that runs a script."""
        (folder / "own.py").write_text(script)
        program = {
            "command": [self.python, "own.py"],
            "directory": str(folder),
            "metrics": {"val_loss": "val loss: (\\S+)"},
            "resumes": resumes,
        }
        fields = {
            "program": program,
            "target": {"metric": "val_loss", "value": 0.25, "epochsInARow": 1},
            "budget": {"amount": 1.0, "currency": "EUR"},
            "gracePeriod": 2,
            "prices": PRICES,
            "resources": {"worker": {"cpu": "1", "memory": "512Mi"}},
        }
        whole = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "own"}}
        return TrainingJob.from_json({**whole, "spec": fields | spec})

    def trained(self, folder: Path, script: str, **spec: Any) -> tuple[Job, list[Any]]:
        """A job run to its end, whose money is exact."""
        job, records = self.train(folder, self.job(folder, script, **spec))
        assert job.money.ledger.spent == sum(record.amount for record in records if isinstance(record, act.Settle))
        assert job.money.ledger.budget is None or job.money.ledger.spent <= job.money.ledger.budget
        assert job.money.ledger.reserved == 0
        return job, records

    def test_a_program_ends_at_its_target_with_its_grace_period(self, tmp_path: Path) -> None:
        job, _ = self.trained(tmp_path, LEARNS)
        assert job.reason is Reason.TARGET_REACHED
        assert job.value(job.full_epochs[-1]) == 0.25
        assert (self.checkpoints(tmp_path) / "left-0").exists()

    def test_several_workers_know_each_other(self, tmp_path: Path) -> None:
        job, _ = self.trained(tmp_path, LEARNS, workers={"min": 2, "max": 2})
        assert job.reason is Reason.TARGET_REACHED
        for rank in range(2):
            assert (self.checkpoints(tmp_path) / f"starts-{rank}").read_text() == "2\n"

    @pytest.mark.parametrize(
        ("script", "reason", "words"),
        [
            ("print('val loss: 0.9')", Reason.TARGET_MISSED, "0.9"),
            ("import sys; print('no data'); sys.exit(3)", Reason.PROGRAM_FAILED, "no data"),
            ("import os; os.kill(os.getpid(), 11)", Reason.PROGRAM_FAILED, "SIGSEGV"),
            ("print('val loss: nan')\nimport time\ntime.sleep(60)", Reason.LOSS_NOT_FINITE, ""),
        ],
    )
    def test_a_program_ends_its_job(self, tmp_path: Path, script: str, reason: Reason, words: str) -> None:
        job, _ = self.trained(tmp_path, script)
        assert job.reason is reason
        assert words in job.message

    def test_a_program_that_fails_goes_on_from_its_checkpoint(self, tmp_path: Path) -> None:
        script = LEARNS + "    if epoch == 2 and len((folder / 'starts-0').read_text()) == 6: sys.exit(1)\n"
        job, records = self.trained(tmp_path, script, resumes=True)
        assert job.reason is Reason.TARGET_REACHED
        assert (self.checkpoints(tmp_path) / "starts-0").read_text() == "alone\nalone\n"
        reported = [record.report.at_epoch for record in records if isinstance(record, ev.EpochFinished)]
        assert reported == sorted(set(reported)), "no report counts twice"

    def test_a_deaf_program_without_reports_ends_with_its_money(self, tmp_path: Path) -> None:
        script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
        job, _ = self.trained(tmp_path, script, budget={"amount": 0.012, "currency": "EUR"}, gracePeriod=1)
        assert job.reason is Reason.BUDGET_SPENT

    def test_what_a_program_reports_while_it_leaves_counts_once(self, tmp_path: Path) -> None:
        script = LEARNS.replace("    sys.exit(0)", "    global leaving; leaving = True")
        script += "    if 'leaving' in globals(): sys.exit(0)\n"  # with the epoch that it is in
        job, records = self.trained(tmp_path, script, workers={"min": 1, "max": 2}, resumes=True, target=LONG)
        assert job.reason is Reason.TARGET_REACHED
        assert len((self.checkpoints(tmp_path) / "starts-0").read_text().split()) > 1, "it left"
        reported = [record.report.at_epoch for record in records if isinstance(record, ev.EpochFinished)]
        assert reported == list(range(1, 51))

    def test_workers_change_by_restart(self, tmp_path: Path) -> None:
        job, _ = self.trained(tmp_path, LEARNS, workers={"min": 1, "max": 2}, resumes=True, target=LONG)
        assert job.reason is Reason.TARGET_REACHED
        assert {epoch.allocation.workers for epoch in job.epochs} == {1, 2}
