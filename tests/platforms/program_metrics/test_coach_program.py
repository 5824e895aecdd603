"""The module for a user's own Python: one file, Python 3.8 on, nothing without Coach."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import coach.platforms.program_metrics as package
from coach.cli.main import invoke

MODULE = Path(package.__path__[0], "coach_program.py")

SCRIPT = """
import sys
import coach_program
coach_program.report(loss=0.5, epoch=1)
print(coach_program.should_stop(), coach_program.checkpoint_now())
print(*sorted({"coach", "torch", "numpy"} & set(sys.modules)))
"""


def test_the_command_prints_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["program-module"]) == 0
    assert capsys.readouterr().out == MODULE.read_text(encoding="utf-8")


def test_it_is_python_3_8_and_imports_the_standard_library_alone() -> None:
    tree = ast.parse(MODULE.read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {"json", "os", "time", "urllib.request"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]


@pytest.mark.parametrize("job", ["", "own"])
def test_without_coach_it_does_nothing_and_raises_nothing(tmp_path: Path, job: str) -> None:
    """Nor where what was said of Coach is there no more."""
    shutil.copy(MODULE, tmp_path)
    gone = {
        "COACH_JOB": job,
        "KUBEFLOW_TRAINER_SERVER_URL": "http://127.0.0.1:9/",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": "gone",
    }
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}){SCRIPT}"],
        env=gone if job else {},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False False\n\n"
