"""Which optimizers there are is asked of the Python that is used, once for each version."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach.core.spec.training import Framework
from coach.handler.known_optimizers import optimizers_here
from coach.jobfiles.load import load_jobs
from coach.platforms.local import catalogue, pytorch_runtime

JOB = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: a}
spec:
  framework: pytorch
  model: {file: model.py}
  data: {format: custom}
  target: {loss: 0.35}
  budget: {unlimited: true}
  optimizer: {name: adafactor, lr: 0.01}
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Python whose framework has Adafactor; it writes a line into `asked` each time that it is asked."""
    (tmp_path / "version.py").write_text("1")
    said = {"file": str(tmp_path / "version.py"), "schedules": {}}
    said["optimizers"] = {"Adafactor": {"arguments": {"beta2_decay": "a number"}, "required": []}}
    (tmp_path / "said.json").write_text(json.dumps(said))
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho >> {tmp_path}/asked\ncat {tmp_path}/said.json\n")
    path.chmod(0o755)
    monkeypatch.setenv(pytorch_runtime.VARIABLE, str(path))
    monkeypatch.setenv("COACH_CACHE", str(tmp_path / "cache"))
    catalogue.catalogue.cache_clear()
    yield path
    catalogue.catalogue.cache_clear()


def test_an_optimizer_that_the_frameworks_version_has_is_taken(python: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    (tmp_path / "job.yaml").write_text(JOB)
    [loaded] = load_jobs([tmp_path / "job.yaml"], knows=optimizers_here)
    assert loaded.spec.spec.optimizer.name == "adafactor"


def test_a_python_is_asked_again_only_when_its_framework_has_changed(python: Path, tmp_path: Path) -> None:
    for version in range(2):
        os.utime(tmp_path / "version.py", ns=(version, version))
        for _ in range(3):
            catalogue.catalogue.cache_clear()  # as in another process
            assert "Adafactor" in optimizers_here(Framework.PYTORCH).optimizers
        assert len((tmp_path / "asked").read_text().splitlines()) == version + 1


def test_a_python_without_the_framework_knows_nothing(python: Path) -> None:
    python.write_text("#!/bin/sh\nexit 1\n")
    assert optimizers_here(Framework.PYTORCH) is None
