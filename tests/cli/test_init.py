"""`coach init` asks until the answers make a job file that runs; a shell completes commands and names of jobs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from coach.handler.state.state_directory import StateDirectory
from tests.cli.conftest import ROOT
from tests.cli.test_commands import run
from tests.cli.test_compare_and_prune import stored

__all__ = ["stored"]

PROGRAM = """import argparse
for epoch in range(20):
    print(f"epoch {epoch} loss: {1 / (epoch + 1)}", flush=True)
"""


def answers(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def test_a_programs_answers_are_a_job_file_that_trains_to_its_target(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "", "loss", "loss=0.3", "5", "0.5USD", "0", "1", "n")
    code, out, err = run(capsys, "init")
    assert code == 0 and out.endswith("job.yaml is written; next: coach try job.yaml, then coach run job.yaml\n")
    assert [line.split(":")[0] for line in err.splitlines()] == ["  --target loss", "  --budget 5", "  --workers 0"]
    written = yaml.safe_load((there / "job.yaml").read_text())["spec"]
    assert written["program"] == {"command": ["python", "train.py"]}
    assert written["budget"] == {"amount": 0.5, "currency": "USD"}
    code, out, _ = run(capsys, "run", "job.yaml")
    assert code == 0 and "Succeeded" in out, out


def test_a_program_that_resumes_may_have_several_workers_and_a_job_file_elsewhere(
    capsys: pytest.CaptureFixture[str], there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "", "", "1-4", "y")
    assert run(capsys, "init", "train.py", "--file", "jobs/mine.yaml")[0] == 0
    spec = yaml.safe_load((there / "jobs/mine.yaml").read_text())["spec"]
    assert spec["program"] == {"command": ["python", "train.py"], "directory": "..", "resumes": True}
    assert spec["workers"] == {"min": 1, "max": 4} and "target" not in spec
    assert run(capsys, "validate", "jobs/mine.yaml")[0] == 0
    code, _, err = run(capsys, "init", "train.py", "--file", "jobs/mine.yaml")
    assert code == 2 and "jobs/mine.yaml is there already" in err


def test_a_model_files_data_is_asked_for(
    capsys: pytest.CaptureFixture[str], there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there / "model.py").write_text((ROOT / "functions/models/lenet.py").read_text())
    answers(monkeypatch, "loss=0.13", "0.02USD", "", "nowhere", str(ROOT / ".data/mnist-digits"), "idx2", "digits-json")
    code, _, err = run(capsys, "init", "model.py", "--file", "jobs/lenet.yaml")
    assert code == 0 and "nowhere: is not there" in err and "idx2: one of digits-json, idx" in err
    spec = yaml.safe_load((there / "jobs/lenet.yaml").read_text())["spec"]
    assert spec["model"] == {"file": "../model.py"} and spec["data"]["format"] == "digits-json"
    assert run(capsys, "validate", "jobs/lenet.yaml")[0] == 0


@pytest.mark.parametrize(
    ("words", "completed"), [("why o", "other"), ("compare digits ", "other digits"), ("simul", "simulate")]
)
def test_a_shell_completes_names_of_jobs_and_commands(
    home: StateDirectory, stored: Path, words: str, completed: str
) -> None:
    line = f"coach {words}"
    asked = {"_COACH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    command = [sys.executable, "-m", "coach.cli.main"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == completed.split(), done.stderr
