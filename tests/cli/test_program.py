"""Programs on the command line: what stands behind `--`, and what it stands for."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from coach.cli.main import invoke
from coach.cli.program import loaded, name_of, options, split, target_of
from tests.jobfiles.reading import read_jobs
from tests.platforms.program_metrics.test_coach_program import MODULE


def given(**changes: Any) -> dict[str, Any]:
    return options(**({"budget": "1USD", "target": "eval_loss=0.3"} | changes))


def behind(command: list[str]) -> Any:
    """What the command line hands over of `coach run -- COMMAND`."""
    return SimpleNamespace(obj=command, info_name="run")


@pytest.mark.parametrize(
    ("words", "own", "program"),
    [
        (["run", "a.yaml"], ["run", "a.yaml"], None),
        (
            ["run", "--budget", "1USD", "--", "x", "--lr", "1"],
            ["run", "--budget", "1USD"],
            ["x", "--lr", "1"],
        ),
        (["run", "--", "x", "--", "y"], ["run"], ["x", "--", "y"]),
        (["try", "--"], ["try"], []),
        (["ps", "--", "x"], ["ps", "--", "x"], None),
        ([], [], None),
    ],
)
def test_the_program_is_all_that_follows_the_first_two_dashes(
    words: list[str], own: list[str], program: list[str] | None
) -> None:
    assert split(words) == (own, program)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--lr", "0.1"], "train"),
        (["python", "-m", "runs.train_gpt2", "--config", "x"], "train-gpt2"),
        (["bash", "/opt/x/Run Me.sh"], "run-me"),
        (["./a.out"], "out"),
        (["julia", "x.jl"], "julia"),
        (["--"], "program"),
        (["Ünïcode.py"], "n-code"),
        (["python", f"{'long' * 20}.py"], "long" * 10),
    ],
)
def test_a_job_is_named_after_its_script(command: list[str], name: str) -> None:
    assert name_of(command) == name


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("loss=0.3", {"loss": 0.3}),
        ("accuracy>=0.9", {"accuracy": 0.9}),
        ("eval_loss=0.3", {"metric": "eval_loss", "value": 0.3}),
        ("reward>=-200", {"metric": "reward", "value": -200.0, "goal": "maximize"}),
        (" x <= 2e3 ", {"metric": "x", "value": 2000.0, "goal": "minimize"}),
        ("loss>=1", {"metric": "loss", "value": 1.0, "goal": "maximize"}),
    ],
)
def test_a_target_is_a_metric_a_sign_and_a_number(text: str, target: dict[str, Any]) -> None:
    assert target_of(text) == target | {"epochsInARow": 1}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("accuracy=90", {"metric": "accuracy", "value": 90.0}),
        ("accuracy=90%", {"accuracy": 0.9}),
        ("wer=5.5%", {"metric": "wer", "value": 0.055}),
        ("logloss=0.3", {"metric": "logloss", "value": 0.3}),
        ("eval-mlogloss=0.3", {"metric": "eval-mlogloss", "value": 0.3}),
        ("valid_1's rmse=60", {"metric": "valid_1's rmse", "value": 60.0}),
        ("val/acc 1 = 0.6", {"metric": "val/acc 1", "value": 0.6}),
    ],
)
def test_a_target_may_be_in_per_cent_and_its_name_as_it_is_printed(text: str, target: dict[str, Any]) -> None:
    assert target_of(text) == target | {"epochsInARow": 1}


def test_a_dry_run_prints_a_job_file_that_reads_again_as_the_same_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)")
    words = [
        "--budget",
        "0.5gpuh",
        "--target",
        "F1=0.8",
        "--metric",
        'f1 "([0-9.]+)"',
        "--workers",
        "2",
        "--gpus",
        "1",
    ]
    words += [
        "--cpu",
        "2",
        "--memory",
        "3Gi",
        "--name",
        "my-job",
        "--set",
        "timeLimit=2h",
        "--set",
        "target.epochsInARow=2",
    ]
    command = ["python", "train.py", "it's", "--lr=0.1", "ä b", ""]
    assert invoke(["run", *words, "--dry-run", "--", *command]) == 0
    printed = capsys.readouterr().out
    found = loaded(
        behind(command),
        None,
        given(
            **{"budget": "0.5gpuh", "target": "F1=0.8", "metric": 'f1 "([0-9.]+)"', "workers": "2", "gpus": 1},
            **{"cpu": "2", "memory": "3Gi", "name": "my-job"},
        ),
        ["timeLimit=2h", "target.epochsInARow=2"],
    )
    assert found is not None
    [again] = read_jobs(printed)
    assert again == found.spec
    spec = again.spec
    assert spec.program is not None and list(spec.program.command) == command
    assert spec.program.directory == f"file://{tmp_path}" and spec.program.sha256
    assert (spec.metric, spec.target_value, spec.goal.value, spec.curve) == (
        "F1",
        0.8,
        "maximize",
        "accuracy",
    )
    assert spec.limits.smallest == spec.limits.largest == (2, 0)
    assert spec.target is not None and spec.target.epochs_in_a_row == 2, "1 without --set"
    assert spec.time_limit == 7200 and spec.price_book.invocation == 0


def test_without_a_target_nothing_ends_a_program_early() -> None:
    found = loaded(behind(["x"]), None, options(budget="1USD"))
    assert found is not None and not found.spec.spec.stop_early and found.spec.spec.target is None


def test_what_comes_on_standard_input_is_said_to_reach_no_program(tmp_path: Path) -> None:
    words = ["run", "--budget", "1USD", "--target", "loss=1", "--dry-run", "--", "true"]
    for content, said in ((b"1 2 3\n", True), (b"", False)):
        done = subprocess.run(
            [sys.executable, "-m", "coach.cli.main", *words], input=content, capture_output=True, check=True
        )
        assert (b"a program gets nothing there; name what it reads as a file" in done.stderr) == said


def test_workers_that_change_are_a_smallest_and_a_largest_number_of_a_program_that_resumes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["run", "--budget", "5USD", "--dry-run", "--workers", "1-3", "--set", "program.batch=per-job"]
    assert invoke([*words, "--resumes", "--", "true"]) == 0
    [job] = read_jobs(capsys.readouterr().out)
    assert (job.spec.limits.smallest.workers, job.spec.limits.largest.workers) == (1, 3)
    assert job.spec.program is not None and job.spec.program.batch == "per-job"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("print('eval loss: 0.5')\nimport time\ntime.sleep(60)", 0, "found eval_loss 0.5 after"),
        ("print('epoch 3')\nprint('eval loss: 0.5')\ninput()", 0, "found eval_loss 0.5 in epoch 3 after"),
        ("print({'eval_loss': 0.5})\ninput()", 0, "by JSON or a dictionary that it prints"),
        (
            "import runpy, os\nmodule = runpy.run_path(os.environ['MODULE'])\n"
            "os.stat(os.environ['COACH_CHECKPOINTS'])\nmodule['report'](eval_loss=0.5, epoch=2)\ninput()",
            0,
            "found eval_loss 0.5 in epoch 2 after",
        ),
        (
            "import os\nos.makedirs('logs/version_7')\n"
            "open('logs/version_7/metrics.csv', 'w').write('epoch,train/loss,eval/loss\\n0,,0.5\\n')",
            2,
            "to take one of them: --metric 'csv:logs/version_*/metrics.csv#eval/loss'",
        ),
        ("print('val loss = 0.5')", 2, "to take one of them: --metric 'val loss = ([-+.eE0-9]+)'"),
        ("print('log: eval loss 0.5')\ninput()", 0, "in: log: eval loss 0.5"),
        (
            "print('head1/eval_loss 0.5 head2/eval_loss 0.4')",
            2,
            "eval_loss may be head1/eval_loss or head2/eval_loss, so none counts; to take the first: --metric ",
        ),
        ("import sys\nsys.exit('no data')", 2, "it reported no eval_loss before it ended with exit code 1"),
    ],
)
def test_a_program_is_tried_until_its_first_report(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODULE", str(MODULE))
    (tmp_path / "train.py").write_text(script)
    ended = invoke(["try", "--target", "eval_loss=0.1", "--", sys.executable, "train.py"])
    said = capsys.readouterr()
    assert ended == code, said
    assert words in said.out + said.err


#: Goes on from its newest checkpoint.
GOES_ON = """
import os, pathlib, time
state = pathlib.Path(os.environ["COACH_CHECKPOINTS"], "epoch")
epoch = int(state.read_text()) if state.exists() else 0
while True:
    time.sleep(0.5)
    epoch += 1
    state.write_text(str(epoch))
    print(f"epoch {epoch} eval_loss {1 / epoch:.4f}", flush=True)
"""


@pytest.mark.processes
@pytest.mark.full
def test_of_two_programs_one_has_the_spot_node_and_the_other_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GOES_ON)
    line = "- {{name: {}, cpu: 1, memory: 2Gi, offer: '{}'}}\n"
    offers = line.format("cheap", "aws/m8i-flex.large:spot"), line.format("dear", "aws/m8i-flex.large")
    (tmp_path / "cluster.yaml").write_text(f"nodes:\n{''.join(offers)}")
    first: dict[str, Any] = {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "first"},
        "spec": {
            "program": {"command": [sys.executable, "train.py"], "resumes": True},
            "target": {"metric": "eval_loss", "value": 0.08, "epochsInARow": 1},
            "budget": {"amount": 0.01, "currency": "USD"},
            "prices": "nodes",
            "spot": {"deadline": "10m"},
            "gracePeriod": "2s",
            "maxEpochs": 20,
            "resources": {"worker": {"cpu": "1", "memory": "512Mi"}},
        },
    }
    second = deepcopy(first)
    second["metadata"]["name"] = "second"
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump_all([first, second]))
    command = [sys.executable, "-m", "coach.cli.main", "run", "jobs.yaml", "--nodes", "cluster.yaml"]
    environment = {**os.environ, "COACH_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    said = done.stdout + done.stderr
    of_second = [row.partition(" second: ")[2] for row in said.splitlines() if " second: " in row]
    begins = ("takes on-demand nodes: ", "waits for spot nodes: ", "takes spot nodes, ")
    changes = [row for row in of_second if row.startswith(begins)]
    assert [row.startswith(begin) for row, begin in zip(changes, begins, strict=True)] == [True] * 3, said
    assert "first: takes on-demand" not in said
