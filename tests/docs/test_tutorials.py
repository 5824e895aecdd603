"""The commands of docs/start/first-run.md and guides/search.md, in their order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

FIRST, SEARCH = ROOT / "docs/start/first-run.md", ROOT / "docs/guides/search.md"


def run(page: Path, folder: Path) -> list[str]:
    """Run the page's commands on its script, in this folder; what each block printed."""
    (script,) = (one for one in blocks(page) if one.words == "file=train.py")
    # A smaller network, on one thread: it learns in as many epochs.
    (folder / "train.py").write_text(script.text.replace("800", "100"), encoding="utf-8")
    (folder / "bin").mkdir()
    for name, words in (("python", ""), ("coach", "-m coach.cli.main")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    own = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "COACH_HOME": str(folder / "home"), "COLUMNS": "150"}
    own |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = os.environ | own | {"PYTHONPATH": str(ROOT)}
    said = []
    for block in (one for one in blocks(page) if "a test runs it" in one.words):
        done = subprocess.run(
            ["bash", "-ec", block.text], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    return said


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_first_page_takes_a_script_to_its_target_and_compares_two_runs(tmp_path: Path) -> None:
    found, trained, asked = run(FIRST, tmp_path)
    assert "found val_loss" in found
    assert "train: Succeeded: val_loss" in trained
    assert "train is Succeeded: the target held" in asked
    assert "from a learning curve of" in asked and "train-2: Succeeded" in asked
    assert "program.command  python train.py" in asked and "python train.py --lr 0.4" in asked


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_search_page_takes_a_script_to_the_best_of_twenty_trials(tmp_path: Path) -> None:
    said = run(SEARCH, tmp_path)
    assert "with 3 other seeds: val_loss" in said[0] and "(95 % interval)" in said[0]
    assert "best: trial" in said[1]
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"curves.png", "parameters.png", "importance.png"}
    assert "1 USD" in said[1]
