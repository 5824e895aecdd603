"""The wheel, installed into an environment of its own far from any checkout, runs a job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.required import missing

ROOT = Path(__file__).parents[2]
#: Seconds for what installs, and for a small job.
LONG = 240

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

JOB = """
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: far}
spec:
  model: {file: model.py}
  data: {format: digits8x8}
  target: {accuracy: 0.5, epochsInARow: 1}
  budget: {amount: 0.05, currency: USD}
  workers: {min: 1, max: 1}
  servers: {min: 1, max: 1}
  policy: {name: static, workers: 1, servers: 1}
  maxEpochs: 20
  batchSize: 32
  optimizer: {name: sgd, learningRate: 0.1, momentum: 0.9}
"""

TORCH_MODEL = """
import torch
from torch import nn

def net():
    return nn.Linear(4, 2)

loss = nn.CrossEntropyLoss()

def data(split):
    x = torch.randn(640, 4, generator=torch.Generator().manual_seed(len(split)))
    return x, (x.sum(dim=1) > 0).long()
"""


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel, and a folder with a job."""

    python: Path
    folder: Path
    uv: Path

    def coach(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `coach` of the wheel in the job's folder. `PATH` has no uv unless it is given."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "COACH_"))
        }
        kept |= {"COACH_HOME": str(self.folder / "home"), "COACH_CACHE": str(self.folder / "cache")}
        kept["PATH"] = os.pathsep.join(folder for folder in os.get_exec_path() if not (Path(folder) / "uv").exists())
        return subprocess.run(
            [str(self.python.with_name("coach")), *arguments],
            cwd=self.folder, env=kept | environment, capture_output=True, text=True, timeout=LONG, check=False,
        )  # fmt: skip


def _uv() -> Path:
    found = shutil.which("uv") or str(ROOT / ".cache/uv/bin/uv")
    if not Path(found).exists():
        missing("no uv: make setup")
    return Path(found)


def _run(*command: str | Path, folder: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """An environment with the locked versions and the wheel."""
    folder, uv = tmp_path_factory.mktemp("far"), _uv()
    python = folder / "venv/bin/python"
    _run(uv, "venv", "--quiet", "--python", sys.executable, folder / "venv")
    _run(uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", "requirements/coach.txt")
    _run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", wheel)
    (folder / "job.yaml").write_text(JOB)
    shutil.copy(ROOT / "functions/models/mlp.py", folder / "model.py")
    yield Installed(python, folder, uv)
    shutil.rmtree(folder)


def test_the_wheel_carries_every_function_and_what_they_need(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        locked = archive.read("coach/bundled/functions.txt").decode()
    tracked = _run("git", "ls-files", "functions").split()
    assert {f"coach/bundled/{name}" for name in tracked} <= names
    page = _run("git", "ls-files", "coach/service/page/static").split()
    assert "coach/service/page/static/licences.txt" in page and set(page) <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert locked == (ROOT / "requirements/functions.txt").read_text()
    assert "--hash=sha256:" in locked and "://" not in locked


def test_what_the_wheel_says_it_needs_is_all_that_is_locked_for_it(installed: Installed) -> None:
    _run(installed.uv, "pip", "check", "--python", installed.python)


def test_the_papers_policies_and_commands_are_a_second_package(installed: Installed, tmp_path: Path) -> None:
    simulate = ("simulate", "job.yaml", "--policy", "tetris", "--nodes", "1x2")
    refused = installed.coach(*simulate)
    assert refused.returncode == 2 and "pip install ./research" in refused.stderr
    assert "experiment" not in installed.coach("--help").stdout
    _run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        tmp_path,
        folder=ROOT / "research",
    )
    (second,) = tmp_path.glob("*.whl")
    _run(installed.uv, "pip", "install", "--quiet", "--python", installed.python, "--no-deps", second)
    try:
        done = installed.coach(*simulate)
        assert done.returncode == 0 and "tetris" in done.stdout, done.stderr
        assert "thesis-load" in installed.coach("experiment").stdout
        assert "dl2" in installed.coach("simulate", "job.yaml", "--policy", "dl2", "--nodes", "1x2").stdout
    finally:
        _run(installed.uv, "pip", "uninstall", "--quiet", "--python", installed.python, "coach-research")


def test_before_the_first_use_doctor_says_what_will_come(installed: Installed) -> None:
    checks = json.loads(installed.coach("doctor", "-o", "json").stdout)
    (functions,) = [check for check in checks if check["name"] == "functions"]
    assert functions["status"] == "warning"
    assert "coach run" in functions["next_step"]


@pytest.mark.full
@pytest.mark.mxnet
def test_it_runs_a_job_with_a_python_for_the_functions_that_is_there(installed: Installed) -> None:
    python = os.environ.get("COACH_FUNCTIONS_PYTHON") or str(ROOT / ".venv-functions/bin/python")
    done = installed.coach("run", "job.yaml", "--no-live", COACH_FUNCTIONS_PYTHON=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first use" not in done.stderr
    assert not list((installed.folder / "cache").glob("functions-*"))


@pytest.mark.pytorch
def test_it_runs_a_pytorch_job_with_the_torch_that_is_there(installed: Installed) -> None:
    (installed.folder / "torch_model.py").write_text(TORCH_MODEL)
    job = JOB.replace("file: model.py", "file: torch_model.py").replace("format: digits8x8", "format: custom")
    job = job.replace("  servers: {min: 1, max: 1}\n", "").replace(", servers: 1", "")
    (installed.folder / "torch.yaml").write_text(job.replace("name: far", "name: torch"))
    path = f"{installed.uv.parent}{os.pathsep}{os.environ['PATH']}"
    done = installed.coach("run", "torch.yaml", "--no-live", PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first use" not in done.stderr


@pytest.mark.full
@pytest.mark.mxnet
def test_first_use_makes_the_functions_python_and_runs_a_job_with_it(installed: Installed) -> None:
    path = f"{installed.uv.parent}{os.pathsep}{os.environ['PATH']}"
    done = installed.coach("run", "job.yaml", "--no-live", PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first use" in done.stderr
    (made,) = [path for path in (installed.folder / "cache").glob("functions-*") if path.is_dir()]
    assert (made / "bin/python").exists()
    shown = json.loads(installed.coach("ps", "-o", "json").stdout)
    assert shown[-1]["state"] == "Succeeded"
    again = installed.coach("doctor", "-o", "json")
    (mxnet,) = [check for check in json.loads(again.stdout) if check["name"] == "MXNet"]
    assert mxnet["status"] == "ok" and "MXNet 1.9.1" in mxnet["found"]
