"""Slurm keeps what every platform promises of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from tests.platforms.program_contract import ProgramContract
from tests.slurm.runs import train

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("slurm")]


class TestSlurm(ProgramContract):
    python = "python3"

    def train(self, folder: Path, job: TrainingJob) -> tuple[Job, list[Any]]:
        return train(folder, job)

    def checkpoints(self, folder: Path) -> Path:
        return folder / "home/jobs/own/checkpoints"
