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

import pytest
import yaml

from coach.cli.main import invoke
from coach.core.jobs.epoch import EpochKind
from coach.handler.state.state_directory import StateDirectory
from tests.cli.conftest import ROOT
from tests.functions.hosting import eventually, is_alive
from tests.object_store import object_store

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(300)]

COACH = [sys.executable, "-m", "coach.cli.main"]
#: Seconds to wait for something to be said; everything here takes a few, on a busy machine several times that.
PATIENCE = 120.0


class Started:
    """A `coach` that runs, and what it has said so far."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
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
    return subprocess.run([*COACH, *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


def as_json(*words: str) -> Any:
    """What a command prints as JSON; in this process, which has imported everything already."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert invoke([*words, "-o", "json"]) == 0
    return json.loads(printed.getvalue())


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


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A job that trains until it is stopped: it has to hold its target for ever. Its epochs take part of a second."""
    return write_job(
        tmp_path / "endless.yaml",
        "endless",
        target={"accuracy": 0.1, "epochsInARow": 1000},
        optimizer={"name": "sgd", "learningRate": 0.01},
        batchSize=16,
        budget={"unlimited": True},
        policy={"name": "static", "workers": 1, "servers": 1},
    )


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


def test_everything_in_the_state_folder_is_its_owners_alone(home: StateDirectory, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.yaml", maxEpochs=1)
    before = os.umask(0)
    try:
        coach("run", str(job))
    finally:
        os.umask(before)
    found = [home.path, *home.path.rglob("*")]
    assert {path.suffix for path in found} >= {".db", ".ckpt", ".log"}
    open_to_others = {str(path): oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077}
    assert open_to_others == {}


def test_a_job_runs_to_its_target_and_can_be_looked_at(home: StateDirectory, tmp_path: Path) -> None:
    done = coach("run", str(write_job(tmp_path / "job.yaml")), "-o", "json")
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
    assert list(home.checkpoints("digits").glob("*.ckpt"))
    assert list(home.logs("digits").glob("*.log"))
    assert_nothing_left(home)


def test_ends_that_are_not_success_have_their_exit_codes(home: StateDirectory, tmp_path: Path) -> None:
    broke = coach("run", str(write_job(tmp_path / "a.yaml", "broke", budget={"amount": 1e-6, "currency": "USD"})))
    assert broke.returncode == 3, broke.stderr
    assert "BudgetExhausted: 0.000001 USD left" in broke.stdout
    (tmp_path / "model.py").write_text("def net():\n    return None\n")
    failed = coach("run", str(write_job(tmp_path / "b.yaml", "failed", model={"file": "model.py"})))
    assert failed.returncode == 1, failed.stderr
    assert "loss()" in failed.stdout
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


def test_stopped_jobs_go_on_as_if_nothing_had_happened(home: StateDirectory, endless: Path) -> None:
    with started("run", str(endless)) as run:
        run.until(r"no budget: nothing limits what this job spends")
        run.until(r"endless: epoch 3:")
        run.signal(signal.SIGINT)
        code, said = run.end()
    assert code == 130
    assert said.count("coach resume endless") == 1
    (row,) = as_json("ps")
    assert (row["state"], row["reason"]) == ("Waiting", "Suspended")
    stopped_in = row["epoch"]
    announced = re.findall(r"stopping at the end of epoch (\d+); Ctrl-C again to stop now", said)
    assert announced in ([], [str(stopped_in)])  # between two epochs there is nothing to wait for
    assert row["reserved"] == 0
    first = as_json("show", "endless")["epochs"]

    with started("run", str(endless)) as run:
        run.until(f"resumed from the checkpoint of epoch {stopped_in}")
        run.until(f"endless: epoch {stopped_in + 2}:")
        run.signal(signal.SIGTERM)
        code, said = run.end()
    assert code == 130
    assert re.search(r"stopping epoch \d+ now|stopped; it can be resumed", said)
    second = as_json("show", "endless")["epochs"]
    assert second[: len(first)] == first
    assert_nothing_left(home)

    # Stopped twice, it has learnt what it would have learnt alone.
    with started("run", str(endless), "--policy", "static:1x1") as run:
        run.until(r"resumed from the checkpoint")
        run.signal(signal.SIGINT)
        run.signal(signal.SIGINT)
        assert run.end()[0] == 130
    renamed = endless.with_name("alone.yaml")
    renamed.write_text(endless.read_text().replace("name: endless", "name: alone"))
    with started("run", str(renamed)) as run:
        run.until(f"alone: epoch {len(second)}:")
        run.signal(signal.SIGINT)
        run.end()
    alone = as_json("show", "alone")["epochs"]
    assert [epoch["loss"] for epoch in second] == [epoch["loss"] for epoch in alone[: len(second)]]


def test_a_job_whose_model_file_was_mended_goes_on_when_that_is_accepted(home: StateDirectory, tmp_path: Path) -> None:
    good = f"import sys\nsys.path.insert(0, {str(ROOT / 'functions/models')!r})\nfrom mlp import loss, net\n"
    model = tmp_path / "mended.py"
    model.write_text(good + "nothing\n")
    job = write_job(tmp_path / "job.yaml", "mended", model={"file": "mended.py"})
    assert coach("run", str(job)).returncode == 1
    assert "coach resume mended --accept-model, after the model file was mended" in coach("why", "mended").stdout
    model.write_text(good)
    refused = coach("resume", "mended")
    assert refused.returncode == 2 and "coach resume mended --accept-model" in refused.stderr
    assert coach("resume", "mended", "--accept-model").returncode == 0
    assert as_json("show", "mended")["reason"] == "TargetReached"
    assert "the model file as it is now: SHA-256" in coach("events", "mended").stdout


#: A model whose network starts processes: in a session of its own, and one whose parent ends at once.
STARTS_PROCESSES = """
import os, subprocess, sys
sys.path.insert(0, {models!r})
from mlp import loss, net as made

def note(pid):
    with open({pids!r}, "a") as file:
        file.write(f"{{pid}}\\n")

def net():
    note(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    subprocess.run(["sh", "-c", "(trap '' TERM; setsid sleep 601 & echo $! >> {pids})"], check=True)
    return made()
"""


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


@pytest.fixture
def daemons(tmp_path: Path) -> Path:
    """A job whose network starts processes, which the file `pids` has."""
    text = STARTS_PROCESSES.format(models=str(ROOT / "functions/models"), pids=str(tmp_path / "pids"))
    (tmp_path / "daemons.py").write_text(text)
    changes = {
        "model": {"file": "daemons.py"},
        "workers": {"min": 1, "max": 1},
        "servers": {"min": 1, "max": 1},
    }
    return write_job(tmp_path / "daemons.yaml", "daemons", **changes)


def test_what_a_model_file_has_started_ends_with_its_job_and_events_say_it(home: StateDirectory, daemons: Path) -> None:
    assert coach("run", str(daemons)).returncode == 0
    pids = [int(each) for each in daemons.with_name("pids").read_text().split()]
    assert len(pids) >= 2 and not any(map(is_alive, pids))
    said = coach("events", "daemons").stdout
    assert "epoch 1: its code left 2 processes running (2 sleep); they end with its workers" in said


def test_what_a_model_file_has_started_ends_with_a_killed_handler(home: StateDirectory, daemons: Path) -> None:
    daemons.write_text(daemons.read_text().replace("target: {accuracy: 0.93}", "target: {accuracy: 1.0}"))
    with started("run", str(daemons)) as run:
        run.until(r"daemons: epoch 1:")
        pids = [int(each) for each in daemons.with_name("pids").read_text().split()]
        assert any(map(is_alive, pids))
        run.signal(signal.SIGKILL)
        assert run.end()[0] == -signal.SIGKILL
    eventually(lambda: not any(map(is_alive, pids)))
    assert_nothing_left(home)


def test_a_killed_handler_leaves_no_process_and_its_job_goes_on(home: StateDirectory, endless: Path) -> None:
    with started("run", str(endless)) as run:
        run.until(r"endless: epoch 2:")
        run.signal(signal.SIGKILL)
        assert run.end()[0] == -signal.SIGKILL
    assert_nothing_left(home)
    (row,) = as_json("ps")
    assert (row["state"], row["reason"]) == ("Waiting", "HandlerStopped")
    assert "its handler ended without stopping it" in row["message"]
    with started("run", str(endless)) as run:
        run.until(f"resumed from the checkpoint of epoch {row['epoch']}")
        run.until(f"endless: epoch {row['epoch'] + 1}:")
        run.signal(signal.SIGHUP)
        assert run.end()[0] == 130
    shown = as_json("show", "endless")
    assert [epoch["epoch"] for epoch in shown["epochs"]] == list(range(1, shown["epoch"] + 1))
    assert shown["ledger"][-1]["spent"] == pytest.approx(shown["spent"])


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


def test_the_live_display_stays_in_its_place_and_leaves_no_trace(
    home: StateDirectory, endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS")
    endless.write_text(endless.read_text().replace("batchSize: 16", "batchSize: 4"))  # time to see a bar
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [*COACH, "run", str(endless)],
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
            if not stopped and re.search(r"\d\d epoch 3: 1x1", shown):
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
    assert re.search(r"(STATE|endless) +Waiting", text)
    assert text.count("coach resume endless") == 1
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
