"""The commands of docs/tutorials/search.md, in their order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/tutorials/search.md"


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_page_takes_a_script_to_the_best_of_twenty_trials(tmp_path: Path) -> None:
    (script,) = (one for one in blocks(PAGE) if one.words == "file=train.py")
    (tmp_path / "train.py").write_text(script.text, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    for name, words in (("python", ""), ("coach", "-m coach.cli.main")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    own = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "COACH_HOME": str(tmp_path / "home"), "COLUMNS": "150"}
    environment = os.environ | own | {"PYTHONPATH": str(ROOT)}
    said = []
    for block in (one for one in blocks(PAGE) if one.language == "bash"):
        done = subprocess.run(
            ["bash", "-ec", block.text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert "with 3 other seeds: val_loss" in said[0] and "(95 % interval)" in said[0]
    assert "best: trial" in said[1]
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"curves.png", "parameters.png", "importance.png"}
    assert "1 USD" in said[1]
