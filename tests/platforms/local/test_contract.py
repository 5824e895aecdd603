"""This machine keeps what every platform promises of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from tests.platforms.local.test_programs import train
from tests.platforms.program_contract import ProgramContract

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


class TestThisMachine(ProgramContract):
    def train(self, folder: Path, job: TrainingJob) -> tuple[Job, list[Any]]:
        return train(folder, job)

    def checkpoints(self, folder: Path) -> Path:
        return folder / "checkpoints"
