"""README's first commands, typed on a machine that has Python and nothing of Coach."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

README = ROOT / "README.md"
FIRST_PROGRAM = ROOT / "docs/start/first-run.md"
INSTALL = ROOT / "docs/start/install.md"
RUN_HERE = "not-run: tests/packaging/test_first_commands.py runs it"


def test_a_newcomer_gets_from_a_clone_to_a_target_by_the_readmes_commands(tmp_path: Path) -> None:
    install, use = (one.text for one in blocks(README) if one.words == RUN_HERE)
    (script,) = (one.text for one in blocks(FIRST_PROGRAM) if one.words == "file=train.py")
    left_out = ("PYTHON", "VIRTUAL_ENV", "COACH_", "UV_", "XDG_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    own |= {"HOME": str(tmp_path), "COLUMNS": "120"}
    typed = f"{install.replace('REPOSITORY', str(ROOT))}\ncat > train.py <<'END'\n{script}\nEND\n{use}"
    done = subprocess.run(
        ["bash", "-ec", typed], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "found val_loss 0.3438" in done.stdout
    assert "Costs are Coach's own sum, by the price list cloud-functions; it reads no cloud's bill." in done.stdout
    assert re.search(r"^train  Succeeded +\d+ +0\.0\d+ +val_loss 0\.08 ", done.stdout, re.MULTILINE)
    assert "train is Succeeded: the target held" in done.stdout
    assert "reaches its target with a chance of 80%" in done.stdout


def test_the_page_on_installing_has_the_readmes_commands() -> None:
    def typed(page: Path) -> list[str]:
        first = next(one.text for one in blocks(page) if one.words == RUN_HERE)
        return [line.partition("#")[0].strip() for line in first.splitlines()]

    assert typed(INSTALL) == typed(README)
