"""The scripts of docs/guides/model.md, as they were and as Coach trains them."""

import difflib
import os
import re
import subprocess
from pathlib import Path

import pytest

from coach.platforms.local import pytorch_runtime
from tests.cli.test_run import coach
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/guides/model.md"
EXAMPLES = sorted(path.parent for path in (ROOT / "examples/pytorch").glob("*/job.yaml"))
each_example = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_there_are_three() -> None:
    assert [folder.name for folder in EXAMPLES] == ["digits", "language_model", "table"]


@each_example
def test_at_most_ten_lines_are_written_and_all_others_stay_or_fall_away(folder: Path) -> None:
    found = list(difflib.ndiff(lines(folder / "before.py"), lines(folder / "model.py")))
    written = [line for line in found if line.startswith("+ ") and line[2:].strip()]
    assert 0 < len(written) <= 10
    assert "coach" not in (folder / "model.py").read_text(encoding="utf-8").lower()


@each_example
def test_the_page_shows_the_difference(folder: Path) -> None:
    (shown,) = (each for each in blocks(PAGE) if each.words == f"file={folder.relative_to(ROOT)}")
    whole = difflib.unified_diff(lines(folder / "before.py"), lines(folder / "model.py"), n=1, lineterm="")
    changes = [line for line in whole if not line.startswith(("---", "+++"))]
    wanted = "\n".join(re.sub(r"^@@.*", "@@", line) for line in changes) + "\n"
    assert shown.text == wanted, wanted


@pytest.mark.pytorch
@each_example
def test_the_script_runs_without_coach(folder: Path, tmp_path: Path) -> None:
    (tmp_path / ".data").symlink_to(ROOT / ".data")
    python = str(pytorch_runtime.torch().python)
    environment = {**os.environ, "EPOCHS": "1", "OMP_NUM_THREADS": "1"}
    command = [python, str(folder / "before.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"epoch 1: (accuracy|loss) [\d.]+\n", done.stdout)


@pytest.mark.pytorch
@pytest.mark.timeout(600)  # on a machine that is six times too busy the digits take three minutes
@each_example
def test_its_job_is_tried_and_reaches_its_target(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    tried = coach("try", str(folder / "job.yaml"))
    assert tried.returncode == 0 and "samples/s" in tried.stdout, tried.stdout + tried.stderr
    done = coach("run", str(folder / "job.yaml"), "--no-live")
    assert done.returncode == 0, done.stdout + done.stderr
    name = folder.name.replace("_", "-")
    model = tmp_path / "model.pt"
    assert coach("model", name, "-o", str(model)).returncode == 0
    net = re.search(r"model\.py:(\w+)", (folder / "job.yaml").read_text(encoding="utf-8"))
    (loading,) = (each.text for each in blocks(PAGE) if each.info == "python pytorch")
    assert net is not None
    code = re.sub(r"\bNet\b", net[1], loading).replace('"digits.pt"', repr(str(model)))
    python = str(pytorch_runtime.torch().python)
    subprocess.run([python, "-c", code], cwd=folder, check=True)
