"""The scripts of docs/guides/program.md under a budget: one as it is, one that goes on from its checkpoints."""

import difflib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coach.platforms.local import pytorch_runtime
from tests.cli.test_run import COACH, coach, started
from tests.docs.pages import ROOT, blocks
from tests.platforms.program_metrics.test_coach_program import MODULE

PAGE = ROOT / "docs/guides/program.md"
BEFORE, AFTER = ROOT / "examples/pytorch/digits/before.py", ROOT / "examples/programs/digits.py"
ASKS = ROOT / "examples/programs/digits_asks.py"
GROUP_OF, REGROUPS = ROOT / "examples/programs/digits_group.py", ROOT / "examples/programs/digits_regroups.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder, and the digits where the scripts look for them."""
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def difference(before: Path, after: Path) -> str:
    old, new = (path.read_text(encoding="utf-8").splitlines() for path in (before, after))
    changes = difflib.unified_diff(old, new, n=1, lineterm="")
    lines = [line for line in changes if not line.startswith(("---", "+++"))]
    return "\n".join(re.sub(r"^@@.*", "@@", line) for line in lines) + "\n"


@pytest.mark.parametrize(("before", "after"), [(BEFORE, AFTER), (AFTER, ASKS), (GROUP_OF, REGROUPS)])
def test_the_page_shows_what_changes_from_depth_to_depth(before: Path, after: Path) -> None:
    (shown,) = (each for each in blocks(PAGE) if each.words == f"file={after.relative_to(ROOT)}")
    assert shown.text == difference(before, after), difference(before, after)
    assert "coach" not in AFTER.read_text(encoding="utf-8").replace("COACH_CHECKPOINTS", "")


@pytest.mark.pytorch
@pytest.mark.timeout(300)
def test_an_unchanged_script_is_stopped_at_its_target() -> None:
    python = str(pytorch_runtime.torch().python)
    done = coach("run", "--budget", "0.05USD", "--target", "accuracy=0.9", "--no-live", "--", python, str(BEFORE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Succeeded: accuracy 0.9" in done.stdout


@pytest.mark.pytorch
@pytest.mark.timeout(300)
def test_a_killed_coach_costs_a_program_that_resumes_its_last_epoch_at_most(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHS", "30")
    python = str(pytorch_runtime.torch().python)
    words = ["run", "--budget", "0.05USD", "--target", "accuracy=0.95", "--set", "target.epochsInARow=3", "--resumes"]
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


def run_in(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`coach run` of a script with these words, in a folder of its own that has the digits."""
    (folder / ".data").symlink_to(ROOT / ".data")
    return subprocess.run(
        [*COACH, "run", "--budget", "0.05USD", "--no-live", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.pytorch
@pytest.mark.timeout(300)
def test_a_program_that_asks_leaves_with_a_checkpoint(home: Path, tmp_path: Path) -> None:
    shutil.copy(ASKS, tmp_path)
    (tmp_path / "coach_program.py").write_bytes(MODULE.read_bytes())
    python = str(pytorch_runtime.torch().python)
    done = run_in(tmp_path, "--target", "accuracy=0.9", "--resumes", "--", python, ASKS.name, EPOCHS="30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((home / "jobs").glob("digits-asks/**/digits.pt")), "written when it was asked to end"


@pytest.mark.pytorch
@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("script", [GROUP_OF, REGROUPS])
def test_a_group_of_two_trains_with_the_module_and_without(tmp_path: Path, script: Path) -> None:
    """That such a group changes in the same process: tests/platforms/local/test_program_groups.py."""
    shutil.copy(script, tmp_path)
    (tmp_path / "coach_program.py").write_bytes(MODULE.read_bytes())
    words = ["--target", "accuracy=0.85", "--workers", "2", "--set", "program.batch=per-job", "--resumes", "--cpu", "1"]
    done = run_in(tmp_path, *words, "--", str(pytorch_runtime.torch().python), script.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Succeeded: accuracy" in done.stdout


@pytest.mark.pytorch
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("package", "target", "metric"),
    [
        ("transformers", "eval_loss=0.4", ""),
        ("transformers", "eval_loss=0.4", "status"),
        ("transformers", "eval_loss=0.4", "trainer-state:out-transformers"),
        ("lightning", "val_loss=0.35", "csv:logs"),
        ("keras", "val_loss=0.4", ""),
        ("keras", "val_loss=0.4", "csv:training.csv"),
        ("accelerate", "val_loss=0.4", "--workers=2"),
        ("jax", "val_loss=0.4", "--workers=2"),
    ],
)
def test_unchanged_scripts_of_other_libraries_are_stopped_at_their_targets(
    tmp_path: Path, package: str, target: str, metric: str
) -> None:
    """Where the Python with torch has them; what they say is recorded, too: tests/platforms/program_metrics."""
    python = pytorch_runtime.torch().python
    backend = {**os.environ, "KERAS_BACKEND": "torch"}
    found = subprocess.run([python, "-c", f"import {package}"], env=backend, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"{python} has no {package}")
    script = str(ROOT / f"examples/programs/digits_{package}.py")
    given = [metric] if metric.startswith("--") else ["--metric", metric] if metric else []
    done = run_in(tmp_path, "--target", target, *given, "--", str(python), script, KERAS_BACKEND="torch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Succeeded: {target.partition('=')[0]} 0." in done.stdout


#: A group whose loop ends as the page says.
GROUP = """
import time
import coach_program
import torch

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
HERE
for epoch in range(1, 1000):
    time.sleep(0.1)
    coach_program.report(loss=1 / epoch, epoch=epoch)
    if one_should_stop():
        break
print(f"worker {rank} leaves after {epoch}")
"""


@pytest.mark.pytorch
@pytest.mark.timeout(300)
def test_a_group_that_asks_leaves_after_the_same_step(home: Path, tmp_path: Path) -> None:
    (shown,) = (each for each in blocks(PAGE) if "all_reduce" in each.text)
    script = GROUP.replace("HERE", shown.text)
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    (tmp_path / "coach_program.py").write_bytes(MODULE.read_bytes())
    python = str(pytorch_runtime.torch().python)
    done = run_in(tmp_path, "--target", "loss=0.2", "--workers", "2", "--", python, "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [(home / f"jobs/train/logs/train-worker-{rank}.log").read_text(encoding="utf-8") for rank in (0, 1)]
    left = [re.findall(r"worker \d leaves after (\d+)", log) for log in logs]
    assert len(left[0]) == 1 and left[0] == left[1], logs
