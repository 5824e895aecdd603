"""The scripts of docs/how-to/run-a-program.md under a budget: one as it is, one that goes on from its checkpoints."""

import difflib
import re
from pathlib import Path

import pytest

from coach.platforms.local import pytorch_runtime
from tests.cli.test_run import coach, started
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/run-a-program.md"
BEFORE, AFTER = ROOT / "examples/pytorch/digits/before.py", ROOT / "examples/programs/digits.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder, and the digits where the scripts look for them."""
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def difference() -> str:
    old, new = (path.read_text(encoding="utf-8").splitlines() for path in (BEFORE, AFTER))
    changes = difflib.unified_diff(old, new, n=1, lineterm="")
    lines = [line for line in changes if not line.startswith(("---", "+++"))]
    return "\n".join(re.sub(r"^@@.*", "@@", line) for line in lines) + "\n"


def test_the_page_shows_what_a_program_that_resumes_has_in_addition() -> None:
    (shown,) = (each for each in blocks(PAGE) if each.words == "file=examples/programs/digits.py")
    assert shown.text == difference(), difference()
    assert "coach" not in AFTER.read_text(encoding="utf-8").replace("COACH_CHECKPOINTS", "")


@pytest.mark.pytorch
@pytest.mark.timeout(300)
def test_an_unchanged_script_is_stopped_at_its_target() -> None:
    python = str(pytorch_runtime.torch().python)
    done = coach(
        "run", "--budget", "0.05USD", "--target", "accuracy=0.9", "--no-live", "--", python, str(BEFORE)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Succeeded: accuracy 0.9" in done.stdout


@pytest.mark.pytorch
@pytest.mark.timeout(300)
def test_a_killed_coach_costs_a_program_that_resumes_its_last_epoch_at_most(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHS", "30")
    python = str(pytorch_runtime.torch().python)
    words = ["run", "--budget", "0.05USD", "--target", "accuracy=0.95", "--epochs-in-a-row", "3", "--resumes"]
    words += ["--no-live", "--", python, str(AFTER)]
    with started(*words) as run:
        run.until("epoch 2:")
        run.process.kill()
    done = coach(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 1:" not in done.stdout, "it goes on"
    log = (home / "jobs/digits/logs/digits-worker-0.log").read_text(encoding="utf-8")
    reports = [int(number) for number in re.findall(r"epoch (\d+): accuracy", log)]
    assert reports[-1] >= 3 and len(reports) - len(set(reports)) <= 1, reports
