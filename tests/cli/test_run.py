"""`coach run` as people run it: a process of its own, real MXNet groups, signals, a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from coach.cli.main import invoke
from coach.core.jobs.epoch import EpochKind
from coach.handler.state.state_directory import StateDirectory
from tests.cli.conftest import ROOT
from tests.forked import Forked
from tests.functions.hosting import eventually, is_alive
from tests.object_store import object_store

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(300)]
borrows = pytest.mark.usefixtures("one_template")

COACH = [sys.executable, "-m", "coach.cli.main"]
#: Seconds to wait for something to be said; everything here takes a few, on a busy machine several times that.
PATIENCE = 120.0


class Started:
    """A `coach` that runs, and what it has said so far."""

    def __init__(self, *words: str) -> None:
        self.process = Forked(
            [*COACH, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self.said = ""

    def until(self, pattern: str) -> str:
        """Read on until `pattern` is said; what it was. Fails when the process ends first."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.said)):
            assert time.monotonic() < deadline, f"not said: {pattern}\n{self.said}"
            line = self.process.stdout.readline()
            assert line, f"ended with {self.process.wait()} without: {pattern}\n{self.said}"
            self.said += line
        return found[0]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Its exit code, and all it said."""
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        return self.process.wait(PATIENCE), self.said


@contextlib.contextmanager
def started(*words: str) -> Iterator[Started]:
    """`coach` with these words; killed at the end of the block if it still runs."""
    run = Started(*words)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        assert run.process.stdout is not None
        run.process.stdout.close()


def coach(*words: str) -> subprocess.CompletedProcess[str]:
    """A command to its end, in this process, which has imported everything already."""
    out, err = io.StringIO(), io.StringIO()
    # What an option sets for the processes that its command starts ends with the command.
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(os.environ):
        code = invoke(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def as_json(*words: str) -> Any:
    """What a command prints as JSON."""
    done = coach(*words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_job(path: Path, name: str = "digits", **changes: Any) -> Path:
    """A job file: a perceptron on 8x8 digits, which takes a dozen epochs of a tenth of a second."""
    role = {"cpu": "50m", "memory": "512Mi"}
    spec = {
        "model": {"file": str(ROOT / "functions/models/mlp.py")},
        "data": {"format": "digits8x8"},
        "target": {"accuracy": 0.93},
        "budget": {"amount": 0.05, "currency": "USD"},
        "workers": {"min": 1, "max": 2},
        "servers": {"min": 1, "max": 2},
        "resources": {"scheduler": role, "server": role, "worker": role},
        "optimizer": {"name": "sgd", "learningRate": 0.1},
        "miniEpoch": {"minSeconds": 0.2, "maxSeconds": 1},
    }
    content = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    path.write_text(yaml.safe_dump({**content, "spec": {**spec, **changes}}))
    return path


#: Trains until it is stopped, from its newest checkpoint on: an epoch is a short sleep.
ENDLESS = """
import os, pathlib, time
state = pathlib.Path(os.environ["COACH_CHECKPOINTS"], "epoch")
epoch = int(state.read_text()) if state.exists() else 0
while True:
    time.sleep(0.2)
    epoch += 1
    state.write_text(str(epoch))
    print(f"epoch {epoch} loss {1 / epoch:.6f}", flush=True)
"""


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A job whose program trains until it is stopped."""
    (tmp_path / "train.py").write_text(ENDLESS)
    spec = {
        "program": {"command": [sys.executable, "train.py"], "resumes": True},
        "target": {"loss": 1e-9},
        "budget": {"unlimited": True},
        "stopEarly": False,
        "gracePeriod": 1,
        "resources": {"worker": {"cpu": "50m", "memory": "64Mi"}},
    }
    content = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "endless"}}
    (tmp_path / "endless.yaml").write_text(yaml.safe_dump({**content, "spec": spec}))
    return tmp_path / "endless.yaml"


def processes_of(home: StateDirectory) -> list[str]:
    """Command lines of processes that know this state folder: everything a run has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(home.path).encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def assert_nothing_left(home: StateDirectory) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := processes_of(home):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


# -- to the end -------------------------------------------------------------------------------------------------------


def test_a_job_runs_to_its_target_and_can_be_looked_at_by_its_owner_alone(home: StateDirectory, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        done = coach("run", str(write_job(tmp_path / "job.yaml")), "-o", "json")
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["name"], row["state"], row["reason"]) == ("digits", "Succeeded", "TargetReached")
    assert row["accuracy"] >= 0.93
    assert 0 < row["spent"] < row["budget"]
    assert "1 job on this-machine" in done.stderr
    assert re.search(r"digits: mini-epoch 1 \(\d+ % of the data\): 1x1 loss", done.stderr)
    assert [found["name"] for found in as_json("ps")] == ["digits"]
    shown = as_json("show", "digits")
    assert {epoch["kind"] for epoch in shown["epochs"]} == {"probe", "full"}
    assert sum(epoch["cost"] for epoch in shown["epochs"]) == pytest.approx(row["spent"])
    found = [home.path, *home.path.rglob("*")]
    assert {path.suffix for path in found} >= {".db", ".ckpt", ".log"}
    assert {str(path): oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077} == {}
    assert_nothing_left(home)


def test_ends_that_are_not_success_have_their_exit_codes(home: StateDirectory, tmp_path: Path) -> None:
    words = ("run", "--target", "loss=0.1", "--name")
    broke = coach(*words, "broke", "--budget", "0.000001USD", "--", "sleep", "600")
    assert broke.returncode == 3, broke.stderr
    assert "BudgetExhausted: 0.000001 USD left" in broke.stdout
    failed = coach(*words, "failed", "--budget", "1USD", "--", "false")
    assert failed.returncode == 1, failed.stderr
    assert {row["name"]: row["state"] for row in as_json("ps")} == {
        "broke": "BudgetExhausted",
        "failed": "Failed",
    }
    assert as_json("ps")[0]["spent"] <= 1e-6


def test_a_platform_that_does_not_work_ends_with_5_and_keeps_no_job(
    home: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COACH_FUNCTIONS_PYTHON", sys.executable)  # has no MXNet
    broken = coach("run", str(write_job(tmp_path / "job.yaml")))
    assert broken.returncode == 5
    assert "cannot import MXNet" in broken.stderr
    assert "Traceback" not in broken.stderr
    assert as_json("ps") == []
    assert_nothing_left(home)


# -- stopping and going on --------------------------------------------------------------------------------------------


#: A model whose batches wait, so that an epoch can be hit, and whose network starts processes: one in a session of its
#: own, and one whose parent ends at once.
UNHURRIED = """
import os, subprocess, sys, time
sys.path.insert(0, {models!r})
from mlp import loss as plain, net as made

def note(pid):
    with open({pids!r}, "a") as file:
        file.write(f"{{pid}}\\n")

def net():
    note(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    subprocess.run(["sh", "-c", "(trap '' TERM; setsid sleep 601 & echo $! >> {pids})"], check=True)
    return made()

def loss():
    entropy = plain()
    return lambda outputs, labels: time.sleep(0.02) or entropy(outputs, labels)
"""


def write_unhurried(folder: Path, name: str, **changes: Any) -> Path:
    """A job of that model, which trains until it is stopped; its processes are in the file `pids`."""
    pids = str(folder / "pids")
    (folder / "unhurried.py").write_text(UNHURRIED.format(models=str(ROOT / "functions/models"), pids=pids))
    fixed = {
        "model": {"file": "unhurried.py"},
        "target": {"accuracy": 0.1, "epochsInARow": 1000},
        "budget": {"unlimited": True},
        "policy": {"name": "static", "workers": 1, "servers": 1},
    }
    return write_job(folder / f"{name}.yaml", name, **{**fixed, **changes})


def pids_of(job: Path) -> list[int]:
    """The processes that the job's model has started."""
    return [int(each) for each in job.with_name("pids").read_text().split()]


def test_stopped_and_killed_jobs_go_on_as_if_nothing_had_happened(home: StateDirectory, tmp_path: Path) -> None:
    job = write_unhurried(tmp_path, "slow")
    with started("run", str(job)) as run:
        run.until(r"no budget: nothing limits what this job spends")
        run.until(r"slow: epoch 1:")
        run.signal(signal.SIGINT)
        code, said = run.end()
    assert code == 130
    assert said.count("coach resume slow") == 1
    (row,) = as_json("ps")
    assert (row["state"], row["reason"], row["reserved"]) == ("Waiting", "Suspended", 0)
    stopped_in = row["epoch"]
    announced = re.findall(r"stopping at the end of epoch (\d+); Ctrl-C again to stop now", said)
    assert announced in ([], [str(stopped_in)])  # between two epochs there is nothing to wait for
    first = as_json("show", "slow")["epochs"]
    assert_nothing_left(home)

    with started("run", str(job)) as run:
        run.until(f"resumed from the checkpoint of epoch {stopped_in}")
        run.until(f"slow: epoch {stopped_in + 1}:")
        assert any(map(is_alive, pids_of(job)))
        run.signal(signal.SIGKILL)
        assert run.end()[0] == -signal.SIGKILL
    eventually(lambda: not any(map(is_alive, pids_of(job))))
    assert_nothing_left(home)
    (row,) = as_json("ps")
    assert (row["state"], row["reason"]) == ("Waiting", "HandlerStopped")
    assert "its handler ended without stopping it" in row["message"]
    assert as_json("show", "slow")["epochs"][: len(first)] == first

    with started("run", str(job)) as run:
        run.until(f"resumed from the checkpoint of epoch {row['epoch']}")
        run.until(f"slow: epoch {row['epoch'] + 1}:")
        run.signal(signal.SIGTERM)
        code, said = run.end()
    assert code == 130
    assert re.search(r"stopping epoch \d+ now|stopped; it can be resumed", said)
    shown = as_json("show", "slow")
    assert [epoch["epoch"] for epoch in shown["epochs"]] == list(range(1, shown["epoch"] + 1))
    assert shown["ledger"][-1]["spent"] == pytest.approx(shown["spent"])

    # Stopped and killed, it has learnt what it would have learnt alone.
    alone = coach("run", str(write_unhurried(tmp_path, "alone", maxEpochs=shown["epoch"])))
    assert alone.returncode == 1, alone.stderr
    losses = [[epoch["loss"] for epoch in as_json("show", name)["epochs"]] for name in ("slow", "alone")]
    assert losses[0] == losses[1]


@borrows
def test_a_job_whose_model_file_was_mended_goes_on_when_that_is_accepted(home: StateDirectory, tmp_path: Path) -> None:
    good = f"import sys\nsys.path.insert(0, {str(ROOT / 'functions/models')!r})\nfrom mlp import loss, net\n"
    model = tmp_path / "mended.py"
    model.write_text(good + "nothing\n")
    soon = {"accuracy": 0.3, "epochsInARow": 1}
    job = write_job(tmp_path / "job.yaml", "mended", model={"file": "mended.py"}, target=soon)
    assert coach("run", str(job)).returncode == 1
    assert "coach resume mended --accept-model, after the model file was mended" in coach("why", "mended").stdout
    model.write_text(good)
    refused = coach("resume", "mended")
    assert refused.returncode == 2 and "coach resume mended --accept-model" in refused.stderr
    assert coach("resume", "mended", "--accept-model").returncode == 0
    assert as_json("show", "mended")["reason"] == "TargetReached"
    assert "the model file as it is now: SHA-256" in coach("events", "mended").stdout


@borrows
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def net():\n    return nothing\n", "in net"),
        pytest.param("import nothing\n", "import nothing", marks=pytest.mark.full),
        pytest.param("def net():\n    return (\n", "SyntaxError: '(' was never closed", marks=pytest.mark.full),
    ],
)
def test_the_logs_of_a_job_whose_model_raised_have_the_traceback_and_its_end_says_so(
    home: StateDirectory, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "raises.py").write_text(f"{text}\n\ndef loss():\n    return None\n")
    ran = coach("run", str(write_job(tmp_path / "job.yaml", "raises", model={"file": "raises.py"})))
    assert ran.returncode == 1 and "(its traceback: coach logs raises)" in ran.stdout
    logs = coach("logs", "raises").stdout
    assert "Traceback (most recent call last):" in logs and said in logs
    assert f'File "{tmp_path}/raises.py", line' in logs and "training/" not in logs


def test_what_a_model_file_has_started_ends_with_its_job_and_events_say_it(
    home: StateDirectory, tmp_path: Path
) -> None:
    job = write_unhurried(tmp_path, "daemons", target={"accuracy": 0.1, "epochsInARow": 1})
    assert coach("run", str(job)).returncode == 0
    assert len(pids_of(job)) >= 2 and not any(map(is_alive, pids_of(job)))
    said = coach("events", "daemons").stdout
    assert "epoch 1: its code left 2 processes running (2 sleep); they end with its workers" in said


def test_hanging_up_ends_a_run_cleanly(home: StateDirectory, endless: Path) -> None:
    with started("run", str(endless)) as run:
        run.until(r"endless: epoch 1:")
        run.signal(signal.SIGHUP)
        assert run.end()[0] == 130
    assert_nothing_left(home)


def test_two_runs_at_once_have_a_journal_and_a_name_each(home: StateDirectory, endless: Path) -> None:
    with started("run", str(endless)) as first:
        first.until(r"endless: epoch 1:")
        with started("run", str(endless)) as second:
            second.until(r"endless: there is one already, which another handler runs: this one is called endless-2")
            second.until(r"endless-2: epoch 1:")
            assert {row["name"]: row["state"] for row in as_json("ps")} == {
                "endless": "Training",
                "endless-2": "Training",
            }
            for run in (first, second):
                run.signal(signal.SIGINT)
            assert [run.end()[0] for run in (first, second)] == [130, 130]
    assert [path.name for path in home.journals()] == ["journal.db", "journal-2.db"]
    assert_nothing_left(home)


def test_a_reader_that_goes_away_stops_the_run_cleanly(home: StateDirectory, endless: Path) -> None:
    with started("run", str(endless)) as run:
        run.until(r"endless: epoch 1:")
        assert run.process.stdout is not None
        run.process.stdout.close()
        assert run.process.wait(PATIENCE) == 130
    (row,) = as_json("ps")
    assert (row["reason"], row["reserved"]) == ("Suspended", 0)


# -- on a terminal ----------------------------------------------------------------------------------------------------


class Terminal:
    """The few things of a terminal that the live display uses, so that a test sees what a person would see."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|\x1b", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part.startswith("\x1b["):
                self._control(part)
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + part + line[self.column + len(part) :]
                self.column += len(part)

    def _control(self, part: str) -> None:
        number, kind = part[2:-1], part[-1]
        if kind == "A":
            self.row -= int(number or 1)
            assert self.row >= 0
        elif kind == "K":
            assert number == "2", part
            self.lines[self.row] = ""
        else:
            assert kind in "mhl", f"not expected of the display: {part!r}"


@borrows
def test_the_live_display_stays_in_its_place_and_leaves_no_trace(
    home: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS")
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(slave)
    process = Forked(
        [*COACH, "run", str(write_unhurried(tmp_path, "slow"))],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    terminal = Terminal()
    highest = 0
    stopped = seen_training = False
    deadline = time.monotonic() + PATIENCE
    try:
        while process.poll() is None or select.select([master], [], [], 0)[0]:
            assert time.monotonic() < deadline, "\n".join(terminal.lines)
            if not select.select([master], [], [], 0.1)[0]:
                continue
            terminal.feed(os.read(master, 65536).decode())
            shown = "\n".join(terminal.lines)
            assert shown.count("NAME ") <= 1, "a display was left behind"
            highest = max(highest, len(terminal.lines))
            seen_training |= "Training" in shown and "━" in shown
            if not stopped and re.search(r"\d\d epoch 2: 1x1", shown):
                os.write(master, b"\n\n")  # what is typed meanwhile does not tear the display
                os.kill(process.pid, signal.SIGINT)
                stopped = True
        assert process.wait() == 130
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        os.close(master)
        os.close(slave)
    assert seen_training
    assert highest < 30
    text = "\n".join(line.rstrip() for line in terminal.lines)
    assert text.startswith("1 job on this-machine")
    assert "Ctrl-C" not in text
    assert re.search(r"(STATE|slow) +Waiting", text)
    assert text.count("coach resume slow") == 1
    assert "epoch 1: 1x1" in text  # the display is gone, the events stay


#: Puts a data set and a model file into the object store.
PUTS_INTO_STORE = """
import numpy, sklearn.datasets
from training import storage
x, y = sklearn.datasets.load_digits(return_X_y=True)
x = (x / 16).reshape(-1, 1, 8, 8).astype("float32")
with storage.writing("s3://bucket/digits.npz") as file:
    numpy.savez(file, x_train=x[:1400], y_train=y[:1400], x_test=x[1400:], y_test=y[1400:])
with storage.writing("s3://bucket/models/mlp.py") as file:
    file.write(open("functions/models/mlp.py", "rb").read())
"""


@pytest.mark.full
def test_a_job_trains_from_and_into_an_object_store_and_goes_on_there_after_a_kill(tmp_path: Path) -> None:
    with object_store(tmp_path / "store") as store:
        environment = {**os.environ, "PYTHONPATH": "functions"}
        subprocess.run(
            [ROOT / ".venv-functions/bin/python", "-c", PUTS_INTO_STORE], cwd=ROOT, env=environment, check=True
        )
        job = write_job(
            tmp_path / "job.yaml",
            "stored",
            model={"file": "s3://bucket/models/mlp.py"},
            data={"uri": "s3://bucket/digits.npz", "format": "npz"},
            checkpoint={"uri": "s3://bucket/checkpoints"},
            target={"accuracy": 0.999, "epochsInARow": 9},
            maxEpochs=12,
        )
        with started("run", str(job)) as run:
            run.until(r"stored: epoch 3:")
            run.signal(signal.SIGKILL)
        before = trained("stored")
        assert coach("resume", "stored").returncode == 1, "the number of its epochs is at its end"
        epochs = trained("stored")
        assert epochs[: len(before)] == before and len(epochs) == 12
        left = [name for name in store.objects() if name.endswith(".ckpt")]
        assert 2 <= len(left) <= 4 and all(name.startswith("checkpoints/stored/") for name in left), left
        assert coach("prune", "stored", "--all", "--yes").returncode == 0
        assert not [name for name in store.objects() if name.endswith(".ckpt")]
        assert not list((tmp_path / "home").rglob("*.ckpt"))


def trained(name: str) -> list[tuple[int, float]]:
    """The whole epochs of a job so far, and their losses; on a slow machine it has mini-epochs, too."""
    home = StateDirectory.default()
    if name not in (past := home.past()):
        return []
    return [(epoch.ordinal, epoch.report.loss) for epoch in past[name].job.epochs if epoch.kind is EpochKind.FULL]
