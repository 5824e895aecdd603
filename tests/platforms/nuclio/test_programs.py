"""Nuclio runs functions alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import PodError
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api
from coach.platforms.nuclio.platform import NuclioPlatform
from tests.docs.pages import ROOT
from tests.platforms.kubernetes.test_platform import SIZE, training_job


def test_a_program_is_refused_with_the_way_to_run_it(tmp_path: Path) -> None:
    settings = Settings("coach-functions:9", handler="h")
    platform = NuclioPlatform(ROOT / "functions", Api.connect, settings, lambda _: tmp_path, lambda: 0.0)
    whole = training_job().to_json()
    spec = {key: whole["spec"][key] for key in ("target", "budget")}
    program = {"program": {"command": ["x"]}, "image": "me/train:1", "model": None, "data": None}
    job = TrainingJob.from_json({**whole, "spec": {**spec, **program}})
    with pytest.raises(PodError, match="Nuclio runs functions, and a program is none") as refused:
        asyncio.run(platform.gang(SIZE, job))
    assert refused.value.reason is Reason.POD_REFUSED
