"""The checkpoints of jobs, as files that this machine has."""

from __future__ import annotations

from typing import BinaryIO

from coach.core.jobs.job import Job
from coach.handler.resume_rules import NotNowError
from coach.report.model_card import checkpoint_file, chosen_epoch


def checkpoint(job: Job, epoch: str) -> BinaryIO:
    """The opened checkpoint of an epoch of `job`: best, last or a number. Raises UserError, NotNowError."""
    refuse_program(job)
    chosen = chosen_epoch(job, epoch)
    file = checkpoint_file(chosen)
    if file is None:
        raise NotNowError(
            f"the checkpoint of {chosen.name} of {job.name} is at {chosen.report.weights}, which this machine does "
            "not have; which are kept: spec.checkpoint.keepEvery, coach prune; the best and the last: --epoch best, "
            "--epoch last"
        )
    return file


def refuse_program(job: Job) -> None:
    """Raises NotNowError for a job that has no model of Coach's."""
    if job.spec.program is not None:
        raise NotNowError(f"{job.name} runs a program, which keeps its model where it chooses; coach logs {job.name}")
