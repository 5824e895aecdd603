"""Metrics of programs from each source, with real processes: files, lines of JSON, requests; and their epochs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs import actions as act
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.report.history import history
from tests.platforms.local.test_programs import job, nothing_is_left, paid, starts, train
from tests.platforms.program_metrics.test_coach_program import MODULE
from tests.platforms.program_metrics.test_files import RECORDED

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

__all__ = ["nothing_is_left"]


def reporting(folder: Path, script: str, metrics: dict[str, str], **spec: Any) -> TrainingJob:
    """A job that runs the script until val_loss is 0.25, which comes from where `metrics` says."""
    program = {"command": [sys.executable, "program.py"], "directory": str(folder), "metrics": metrics}
    program |= spec.pop("program", {})
    return job(folder, script, program=program, **spec)


def curve(trained: Job) -> list[tuple[float, float]]:
    """Passes over the data and the metric of each report."""
    return [(epoch.epochs_trained, trained.value(epoch)) for epoch in trained.epochs]


CSV = """
import time
with open("metrics.csv", "w", buffering=1) as file:
    print("epoch,step,train_loss,val_loss", file=file)
    for n in range(1000):
        print(f"{n},{n * 9},0.1,", file=file)
        print(f"{n},{n * 9},,{1 / (n + 1)}", file=file)
        time.sleep(0.7)
"""
TRAINER_STATE = """
import json, os, time
history = []
for n in range(1, 1000):
    history.append({"epoch": n / 2, "loss": 0.1, "step": n})
    history.append({"epoch": n / 2, "eval_loss": 1 / n, "step": n})
    os.makedirs(f"out/checkpoint-{n}")
    with open(f"out/checkpoint-{n}/trainer_state.json", "w") as file:
        json.dump({"log_history": history}, file)
    time.sleep(0.7)
"""
EVENTS = f"""
import os, time
os.makedirs("runs/a")
whole = open({str(RECORDED / "events.out.tfevents.tensorboardX")!r}, "rb").read()
with open("runs/a/events.out.tfevents.1", "wb", buffering=0) as file:
    for at in range(0, len(whole), 20):
        file.write(whole[at:at + 20])
        time.sleep(0.1)
time.sleep(600)
"""
LINES = """
import json, time
for n in range(1000):
    print("step", n, json.dumps({"epoch": n, "val/loss": 1 / (n + 1), "lr": 0.1}))
    time.sleep(0.7)
"""
STATUS = """
import datetime, json, os, ssl, time, urllib.request
server = os.environ["KUBEFLOW_TRAINER_SERVER_URL"]
token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read().strip()
context = ssl.create_default_context(cafile=os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
def send(token, **metrics):
    status = {"metrics": [{"name": name, "value": str(value)} for name, value in metrics.items()]}
    status["lastUpdatedTime"] = datetime.datetime.now(datetime.timezone.utc).isoformat()
    headers = {"Authorization": "Bearer " + token}
    data = json.dumps({"trainerStatus": status}).encode()
    try:
        urllib.request.urlopen(urllib.request.Request(server, data, headers), timeout=5, context=context)
    except urllib.error.HTTPError as error:
        print(error.code)
for n in range(1, 1000):
    send("not mine", val_loss=0.001, current_epoch=n)
    send(token, val_loss=1 / n, current_epoch=n)
    time.sleep(0.7)
"""


@pytest.mark.parametrize(
    ("script", "source", "step"),
    [
        pytest.param(CSV, "csv:metrics.csv", 1, id="Lightning's CSV"),
        pytest.param(TRAINER_STATE, "trainer-state:out#eval_loss", 0.5, id="transformers' state"),
        pytest.param(LINES, "lines", 1, id="lines of JSON"),
        pytest.param(LINES, "", 1, id="lines of JSON, unsaid"),
        pytest.param(STATUS, "status", 1, id="Kubeflow's status"),
        pytest.param(STATUS, "", 1, id="Kubeflow's status, unsaid"),
    ],
)
def test_a_metric_comes_from_where_the_job_file_says(tmp_path: Path, script: str, source: str, step: float) -> None:
    trained, records = train(tmp_path, reporting(tmp_path, script, {"val_loss": source} if source else {}))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert curve(trained)[-1] == pytest.approx((4 * step, 0.25))
    assert all(at == pytest.approx(step / value) for at, value in curve(trained)), "at the epoch that it named"
    assert not list((tmp_path / "logs").glob("*token*"))
    shown = [line.text for line in history(records)]
    assert step == 1 or any("(the program's epoch 2): 1 worker" in text for text in shown)
    paid(trained, records)


def test_event_files_of_tensorboard_are_followed(tmp_path: Path) -> None:
    target = {"metric": "val_loss", "value": 0.4, "epochsInARow": 1}
    spec = reporting(tmp_path, EVENTS, {"val_loss": "tensorboard:runs#Loss/val"}, target=target)
    trained, records = train(tmp_path, spec)
    assert trained.reason is Reason.TARGET_REACHED
    assert curve(trained)[-1] == pytest.approx((3, 1 / 3))
    paid(trained, records)


def test_a_file_that_is_written_at_the_very_end_counts(tmp_path: Path) -> None:
    script = "open('a.csv', 'w').write('val_loss\\n0.2\\n')"
    trained, _ = train(tmp_path, reporting(tmp_path, script, {"val_loss": "csv:a.csv"}))
    assert trained.reason is Reason.TARGET_REACHED


def test_a_program_whose_output_is_closed_still_reports(tmp_path: Path) -> None:
    script = "import os\nos.close(1)\nos.close(2)\n" + CSV
    trained, _ = train(tmp_path, reporting(tmp_path, script, {"val_loss": "csv:metrics.csv"}))
    assert trained.reason is Reason.TARGET_REACHED


@pytest.mark.full
def test_a_hundred_megabytes_without_a_line_hide_no_report(tmp_path: Path) -> None:
    script = """
with open("a.csv", "w") as file:
    print("epoch,val_loss", file=file)
    for _ in range(100):
        file.write("x" * (1 << 20))
        print("y" * (1 << 20), end="")
    print("\\n3,0.5\\n4,nan,\\n5", file=file)
print()
import time
time.sleep(600)
"""
    trained, records = train(tmp_path, reporting(tmp_path, script, {"val_loss": "csv:a.csv"}))
    assert trained.reason is Reason.LOSS_NOT_FINITE
    assert trained.message.startswith("val_loss nan")
    paid(trained, records)


#: It writes its checkpoint after each second epoch, and is killed after its third.
REPEATS = """
import os, time
from pathlib import Path
checkpoint = Path(os.environ["COACH_CHECKPOINTS"], "epoch")
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("starts at", done)
for n in range(done, 1000):
    time.sleep(0.7)
    print(f"epoch {n}: val loss: {1 / (n + 1):.4f}")
    if n % 2:
        checkpoint.write_text(str(n + 1))
    if n == 2 and done == 0:
        time.sleep(0.7)
        os.kill(os.getpid(), 9)
"""


def test_an_epoch_that_a_restart_repeats_does_not_count_twice(tmp_path: Path) -> None:
    spec = reporting(
        tmp_path,
        REPEATS,
        {"val_loss": "val loss: (\\S+)"},
        program={"resumes": True},
        target=None,
        maxEpochs=5,
    )
    trained, records = train(tmp_path, spec)
    assert starts(tmp_path) == [0, 2]
    assert curve(trained) == [(n + 1, pytest.approx(1 / (n + 1), abs=1e-4)) for n in range(5)]
    assert [one.after_epoch for one in records if isinstance(one, act.RunEpoch)][-1] == 3
    paid(trained, records)


#: A loop that asks; it says how it was ended.
ASKS = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(MODULE.parent)!r})
import coach_program
signal.signal(signal.SIGTERM, lambda *_: (print("SIGTERM"), sys.exit(1)))
for n in range(1000):
    time.sleep(0.3)
    coach_program.report(val_loss=1 / (n + 1), epoch=n + 1)
    if coach_program.should_stop():
        open("checkpoint", "w").write("whole")
        print("leaves after", n + 1)
        break
    HERE
"""


def test_a_program_that_asks_ends_by_itself(tmp_path: Path) -> None:
    trained, records = train(tmp_path, reporting(tmp_path, ASKS.replace("HERE", ""), {}))
    assert trained.reason is Reason.TARGET_REACHED
    assert trained.value(trained.epochs[-1]) <= 0.25
    assert all(at == pytest.approx(1 / value) for at, value in curve(trained))
    assert (tmp_path / "checkpoint").read_text() == "whole"
    log = (tmp_path / "logs/own-worker-0.log").read_text()
    assert "leaves after" in log and "SIGTERM" not in log
    paid(trained, records)


def test_a_program_that_asked_once_and_never_again_gets_sigterm_later(tmp_path: Path) -> None:
    script = ASKS.replace("HERE", "while True: time.sleep(0.2); coach_program.report(val_loss=0.1)")
    trained, records = train(tmp_path, reporting(tmp_path, script, {}, grace=2))
    assert trained.reason is Reason.TARGET_REACHED
    assert "SIGTERM" in (tmp_path / "logs/own-worker-0.log").read_text()
    paid(trained, records)
