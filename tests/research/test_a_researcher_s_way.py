"""The researcher's way, from an empty package: the policy of the page, installed, against the shipped ones, to rows."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.processes

PAGE = ROOT / "docs/advanced/policies.md"
#: What `uv init --package` has written, with a build system that the tests have.
EMPTY = """
[project]
name = "mypackage"
version = "0.1.0"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""
#: One core, 100 s each.
TRACE = "job,arrival,work\nfirst,0,100\nsecond,10,100\nthird,20,100\n"
#: The last one goes first, each from where it was; of those that waited more than 5 s, too: the second at 20 s.
ENDS = {
    "newest-first": {"first": 300, "second": 210, "third": 120},
    "newest-first:patience=5": {"first": 200, "second": 120, "third": 300},
    "fifo": {"first": 100, "second": 200, "third": 300},
}


def _run(*words: str | Path, folder: Path, path: str = "") -> str:
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env={**os.environ, "COACH_HOME": str(folder / "home"), "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_policy_of_an_empty_package_is_installed_and_compared(tmp_path: Path) -> None:
    (module,) = (block for block in blocks(PAGE) if block.words == "file=mypackage/policies.py")
    (entry,) = (block for block in blocks(PAGE) if block.language == "toml" and "coach.policies" in block.text)
    package = tmp_path / "mypackage"
    (package / "mypackage").mkdir(parents=True)
    (package / "mypackage/__init__.py").touch()
    (package / "mypackage/policies.py").write_text(module.text)
    (package / "pyproject.toml").write_text(EMPTY + entry.text)
    # As an installer does it, into a folder of its own: other tests see no policy more.
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, folder=package)
    (wheel,) = tmp_path.glob("*.whl")

    (tmp_path / "jobs.csv").write_text(TRACE)
    rows = tmp_path / "rows.csv"
    asked = ("simulate", "--trace", "jobs.csv", "--nodes", "1x1", "--policy", ",".join(ENDS), "--jobs", rows)
    _run(sys.executable, "-m", "coach.cli.main", *asked, "--processes", "1", folder=tmp_path, path=str(wheel))
    with rows.open() as file:
        read = list(csv.DictReader(file))
    found = {policy: {row["job"]: float(row["end"]) for row in read if row["policy"] == policy} for policy in ENDS}
    assert found == ENDS
