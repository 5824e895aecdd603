"""Programs as jobs of a real Slurm, and the handler that pays for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs import actions as act
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from tests.slurm.cluster import SlurmCluster
from tests.slurm.runs import LEARNS, coach, job, logged, train

pytestmark = pytest.mark.timeout(180)


def paid(job: Job, records: list[Any]) -> None:
    """The ledger is exact: what was settled is what was spent, and no cent is above the budget."""
    settled = [record for record in records if isinstance(record, act.Settle)]
    assert job.ledger.spent == sum(record.amount for record in settled)
    assert job.ledger.budget is None or job.ledger.spent <= job.ledger.budget
    assert job.ledger.reserved == 0


def test_the_command_runs_a_program_as_one_slurm_job_to_its_target(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEARNS)
    options = ["--budget", "1gpuh", "--target", "val_loss=0.25", "--gpus", "1", "--slurm", "--partition=urgent"]
    done = coach(tmp_path, "run", "--platform", "slurm", *options, "--no-live", "--", "python3", "train.py")
    assert done.returncode == 0, done.stderr
    assert "val_loss 0.25 meets 0.25" in done.stdout
    said = coach(tmp_path, "logs", "train").stdout
    assert "sees 0" in said, "the GPU that Slurm gave it"
    assert "leaves with a checkpoint" in said
    (at,) = slurm.queue(form="%j %P %C %b")[-1:]
    assert at.split()[:2] == ["train", "urgent"]


def test_several_workers_get_the_variables_of_torchrun_and_a_gpu_each(slurm: SlurmCluster, tmp_path: Path) -> None:
    wanted = {"worker": {"cpu": "2", "memory": "512Mi", "gpu": 1}}
    trained, _ = train(tmp_path, job(tmp_path, workers={"min": 3, "max": 3}, resources=wanted))
    assert trained.reason is Reason.TARGET_REACHED
    for rank in range(3):
        assert re.search(rf"rank {rank} of 3 at \S+ sees 0", logged(tmp_path, rank))


def test_a_command_that_is_not_there_is_said(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = job(tmp_path)
    program = {"command": ["no-such-program"], "directory": str(tmp_path), "metrics": {"val_loss": "(x)"}}
    trained, _ = train(tmp_path, job(tmp_path, program=program))
    assert trained.reason is Reason.PROGRAM_FAILED
    assert "cannot start no-such-program: No such file" in trained.message
    assert spec.name == trained.name


def test_a_job_that_slurm_refuses_is_told_in_its_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    trained, _ = train(tmp_path, job(tmp_path, slurm={"partition": "nowhere"}))
    assert trained.reason is Reason.POD_REFUSED
    assert "invalid partition specified: nowhere" in trained.message
