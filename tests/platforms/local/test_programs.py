"""Programs as jobs: real processes that keep to no rule, and the handler that pays for them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.money import Charge
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.interactive_run import over
from coach.handler.state.journal import Journal
from coach.platforms.local.cluster import parse_nodes
from coach.platforms.local.platform import LocalPlatform
from coach.platforms.local.supervisor import descendants
from coach.plugins import policy
from coach.report.accounting import ledger
from coach.report.formatting import duration
from coach.report.history import history
from tests.forked import Forked

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

#: A second of one worker costs a thousandth.
PRICES = {"name": "test", "currency": "EUR", "vcpuSecond": 0.001, "gibSecond": 0.0, "invocation": 0.5}

#: The loop of a program that learns: epoch n, counted from 0, ends with a loss of 1 / (n + 1).
LEARNS = """
import time
for n in range(1000):
    time.sleep(0.1)
    print(f"epoch {n}: val loss: {1 / (n + 1):.4f}")
"""


def job(folder: Path, script: str, *, amount: float | None = 1.0, grace: int = 5, **spec: Any) -> TrainingJob:
    """A job that runs `script` with this Python."""
    (folder / "program.py").write_text(script)
    budget = {"unlimited": True} if amount is None else {"amount": amount, "currency": "EUR"}
    fields = {
        "program": {
            "command": [sys.executable, "program.py"],
            "directory": str(folder),
            "metrics": {"val_loss": "val loss: (\\S+)"},
        },
        "target": {"metric": "val_loss", "value": 0.25, "epochsInARow": 1},
        "budget": budget,
        "gracePeriod": grace,
        "prices": PRICES,
        "resources": {"worker": {"cpu": "1", "memory": "512Mi"}},
    }
    return TrainingJob.from_json(
        {
            "apiVersion": "coach.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "own"},
            "spec": {key: value for key, value in (fields | spec).items() if value is not None},
        }
    )


def train(
    folder: Path, spec: TrainingJob, then: Callable[[Handler], None] = lambda handler: None
) -> tuple[Job, list[Any]]:
    """Run the job to its end; the job and its records. `then` is called after each event."""

    async def main() -> Job:
        with closing(Journal.write(folder / "journal.db")) as journal:
            clock: list[Handler] = []
            platform = LocalPlatform(
                parse_nodes("1x4"),
                None,
                lambda name: folder / "logs",
                lambda: clock[0].now() if clock else 0.0,
            )
            async with Handler(platform, journal, policy("coach")) as handler:
                clock.append(handler)
                handler.observers.append(lambda event, actions: then(handler))
                handler.submit(spec, f"file://{folder}/checkpoints")
                await handler.wait(lambda: "own" in handler.jobs and over(handler.jobs["own"]))
                return handler.jobs["own"]

    found = asyncio.run(main())
    with closing(Journal.read(folder / "journal.db")) as journal:
        return found, [record for _, record in journal.records()]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Whatever a program does, none of its processes is there after its job."""
    yield
    assert not running(tmp_path)


def running(folder: Path) -> list[str]:
    """Command lines of processes whose working directory is the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder.resolve():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def paid(job: Job, records: list[Any]) -> None:
    """The ledger is exact: what was settled is what was spent, and no cent is above the budget at any time."""
    settled = [record for record in records if isinstance(record, act.Settle)]
    assert job.money.ledger.spent == sum(record.amount for record in settled)
    assert job.money.ledger.budget is None or job.money.ledger.spent <= job.money.ledger.budget
    assert job.money.ledger.reserved == 0


def test_an_unchanged_program_is_stopped_at_its_target(tmp_path: Path) -> None:
    trained, records = train(tmp_path, job(tmp_path, LEARNS))
    assert (trained.reason, trained.metric) == (Reason.TARGET_REACHED, "val_loss")
    assert trained.value(trained.full_epochs[-1]) <= 0.25
    assert [trained.value(epoch) for epoch in trained.epochs] == sorted(
        (trained.value(epoch) for epoch in trained.epochs), reverse=True
    )
    paid(trained, records)
    logged = [json.loads(line)["message"] for line in (tmp_path / "logs/own-worker-0.log").read_text().splitlines()]
    assert logged[:2] == ["epoch 0: val loss: 1.0000", "epoch 1: val loss: 0.5000"]


def test_sigterm_and_the_grace_period_let_a_program_write_its_last_checkpoint(tmp_path: Path) -> None:
    script = """
import signal, sys, time
def leave(*_):
    time.sleep(0.3)
    open("last.ckpt", "w").write("whole")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
"""
    trained, records = train(tmp_path, job(tmp_path, script + LEARNS))
    assert trained.reason is Reason.TARGET_REACHED
    assert (tmp_path / "last.ckpt").read_text() == "whole"
    paid(trained, records)
    assert [(one.signal, one.grace > 4.0) for one in records if isinstance(one, ev.ProgramSignalled)] == [
        ("SIGTERM", True)
    ]
    [last] = [one for one in records if isinstance(one, act.Settle) and one.charge is Charge.GRACE]
    assert last.amount >= 0.3 * 0.001 * 1e9, "the grace period is paid like training"
    [row] = [row for row in ledger(records, "own") if row.grace]
    assert row.grace == pytest.approx(last.amount / 1e9) and row.held < row.grace
    assert f"EUR for {duration(last.until - _at(records))} that the program took to end" in "\n".join(
        line.text for line in history(records)
    )


def test_a_program_that_ignores_sigterm_is_killed_within_what_is_paid(tmp_path: Path) -> None:
    script = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LEARNS
    trained, records = train(tmp_path, job(tmp_path, script, grace=1))
    assert trained.reason is Reason.TARGET_REACHED
    assert [one.signal for one in records if isinstance(one, ev.ProgramSignalled)] == ["SIGTERM", "SIGKILL"]
    paid(trained, records)


@pytest.mark.parametrize("early", [False, True], ids=["at its target", "in an epoch"])
def test_whoever_stops_a_program_again_while_it_ends_does_not_wait_for_its_grace_period(
    tmp_path: Path, early: bool
) -> None:
    stops: list[bool] = []

    def then(handler: Handler) -> None:
        own = handler.jobs.get("own")
        ends = own is not None and own.attempts.terminated_at is not None
        if ends not in stops and (ends or (early and own is not None and own.epochs)):
            stops.append(ends)
            handler.suspend(["own"], now=ends)

    script = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LEARNS
    aim = {"metric": "val_loss", "value": 0.0001 if early else 0.25, "epochsInARow": 1}
    stopped, records = train(tmp_path, job(tmp_path, script, grace=3600, amount=100.0, target=aim), then)
    assert stopped.reason is (Reason.SUSPENDED if early else Reason.TARGET_REACHED)
    assert [one.signal for one in records if isinstance(one, ev.ProgramSignalled)] == ["SIGTERM", "SIGKILL"]
    paid(stopped, records)


def _at(records: list[Any]) -> float:
    return next(one.at for one in records if isinstance(one, ev.ProgramSignalled))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param("import time\ntime.sleep(600)", "", id="never reports"),
        pytest.param("while True: print('x' * 1000)", "", id="prints without end"),
        pytest.param(
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)",
            "",
            id="deaf",
        ),
        pytest.param(
            "import os, time\nfor _ in range(3):\n    if os.fork() == 0: os.setsid()\ntime.sleep(600)",
            "",
            id="forks",
        ),
    ],
)
def test_the_budget_ends_what_nothing_else_ends(tmp_path: Path, script: str, words: str) -> None:
    """4 s of money; a grace period of 1 s lies within it."""
    trained, records = train(tmp_path, job(tmp_path, script, amount=0.004, grace=1))
    assert trained.reason is Reason.BUDGET_SPENT
    paid(trained, records)
    assert trained.money.ledger.spent >= 0.0025 * 1e9, "it ran while there was money"


def test_a_program_that_prints_without_end_fills_no_disk(tmp_path: Path) -> None:
    script = "import time\nbegan = time.time()\nwhile time.time() < began + 2: print('x' * 1000)\n" + LEARNS
    trained, _ = train(tmp_path, job(tmp_path, script))
    assert trained.reason is Reason.TARGET_REACHED
    assert sum(file.stat().st_size for file in (tmp_path / "logs").iterdir()) < 10 << 20


def test_a_program_that_ends_before_its_target_has_not_succeeded(tmp_path: Path) -> None:
    trained, records = train(tmp_path, job(tmp_path, "print('val loss: 0.41')"))
    assert trained.reason is Reason.TARGET_MISSED and trained.state.value == "Failed"
    assert trained.message.endswith("at val_loss 0.41; best val_loss 0.41 in epoch 1; target 0.25")
    paid(trained, records)


def test_a_program_that_never_prints_its_metric_is_told_from_one_that_misses(tmp_path: Path) -> None:
    trained, _ = train(tmp_path, job(tmp_path, "print('loss 3')"))
    assert trained.reason is Reason.TARGET_MISSED
    assert "without a report of val_loss; what it printed: coach logs own" in trained.message


def test_a_program_without_a_target_ends_by_itself(tmp_path: Path) -> None:
    trained, records = train(tmp_path, job(tmp_path, "print('val loss: 0.41')", target=None))
    assert (trained.reason, trained.state.value) == (Reason.PROGRAM_ENDED, "Succeeded")
    paid(trained, records)


def test_a_program_that_fails_says_its_last_words_and_is_not_started_again(tmp_path: Path) -> None:
    script = "print('val loss: 0.5', flush=True)\nimport time\ntime.sleep(1)\nraise KeyError('weights')"
    trained, records = train(tmp_path, job(tmp_path, script))
    assert trained.reason is Reason.PROGRAM_FAILED and trained.attempts.count == 2
    assert "exit code 1 after" in trained.message and "KeyError: 'weights'" in trained.message
    paid(trained, records)


@pytest.mark.parametrize(
    ("command", "env", "words"),
    [
        (["no-such-command"], {}, "own: no program 'no-such-command' in PATH; nothing was started"),
        (["true"], {"PATH": "/nowhere"}, "own: no program 'true' in PATH"),
        (["./program.py"], {}, "/./program.py is not a program that may be executed"),
        (["./gone.py"], {}, "own: there is no .*/./gone.py"),
    ],
)
def test_a_command_that_is_not_there_is_refused_before_it_is_submitted(
    tmp_path: Path, command: list[str], env: dict[str, str], words: str
) -> None:
    program = {"command": command, "directory": str(tmp_path), "env": env}
    with pytest.raises(UserError, match=words):
        train(tmp_path, job(tmp_path, "", program=program))
    with closing(Journal.read(tmp_path / "journal.db")) as journal:
        assert not journal.jobs()


def test_a_program_that_cannot_start_says_why(tmp_path: Path) -> None:
    program = {"command": ["true"], "directory": str(tmp_path / "gone")}
    trained, _ = train(tmp_path, job(tmp_path, "", program=program))
    assert trained.reason is Reason.PROGRAM_FAILED
    assert "No such file or directory" in trained.message


def test_a_machine_that_starts_no_process_fails_the_job_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_words: str, **_options: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    trained, records = train(tmp_path, job(tmp_path, LEARNS))
    assert trained.reason is Reason.INTERNAL and "Resource temporarily unavailable" in trained.message
    paid(trained, records)


def test_a_loss_that_is_no_number_ends_the_job(tmp_path: Path) -> None:
    script = LEARNS.replace("{1 / (n + 1):.4f}", "{float('nan') if n > 12 else 1 / (1 + n / 9):.4f}")
    trained, records = train(tmp_path, job(tmp_path, script))
    assert trained.reason is Reason.LOSS_NOT_FINITE
    paid(trained, records)


def test_more_memory_than_requested_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    script = "import os, time\nos.fork()\nx = b'x' * (400 << 20)\ntime.sleep(60)"
    trained, records = train(tmp_path, job(tmp_path, script))
    assert trained.reason is Reason.OUT_OF_MEMORY
    assert "resources.worker.memory" in trained.message
    paid(trained, records)


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    script = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    os._exit(0)
os.wait()
print("val loss: 0.2", flush=True)
"""
    trained, _ = train(tmp_path, job(tmp_path, script))
    assert trained.reason is Reason.TARGET_REACHED
    assert "it left processes behind, which were ended: python" in (tmp_path / "logs/own-worker-0.log").read_text()


def test_reports_that_come_faster_than_they_count_are_one(tmp_path: Path) -> None:
    script = "import time\nfor n in range(1, 20001): print(f'val loss: {5000 / n}')\ntime.sleep(5)"
    trained, records = train(tmp_path, job(tmp_path, script))
    assert trained.reason is Reason.TARGET_REACHED
    assert len(trained.epochs) < 200 and len(records) < 4000, "of 20,000 that it printed"


def test_a_reservation_is_a_slice_of_time_that_is_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows when a program reports: 3 s of money are reserved at a time, of 30; it reports after 5."""
    monkeypatch.setattr("coach.core.lifecycle.forecast.SHORTEST_SLICE_SECONDS", 2.0)
    monkeypatch.setattr("coach.core.lifecycle.forecast.EXTEND_SECONDS", 1.0)
    script = "import time\ntime.sleep(5)\nprint('val loss: 0.1', flush=True)\ntime.sleep(60)"
    trained, records = train(tmp_path, job(tmp_path, script, amount=0.03, grace=1))
    assert trained.reason is Reason.TARGET_REACHED
    reserved = [one.reservation for one in records if isinstance(one, act.RunEpoch | act.ExtendEpoch)]
    assert len(reserved) > 3 and reserved == sorted(reserved)
    assert max(reserved) < 0.01 * 1e9
    paid(trained, records)


def test_a_time_limit_ends_a_program_that_reports_nothing(tmp_path: Path) -> None:
    trained, records = train(tmp_path, job(tmp_path, "import time\ntime.sleep(600)", amount=None, timeLimit=2, grace=1))
    assert trained.reason is Reason.TIME_LIMIT
    paid(trained, records)


def suspended_once(folder: Path, spec: TrainingJob, *, now: bool) -> Job:
    """The job, suspended after its first epoch and resumed when nothing of its program runs."""
    done: list[str] = []

    def then(handler: Handler) -> None:
        mine = handler.jobs.get("own")
        if mine is not None and len(mine.epochs) == 1 and not done:
            done.append("suspended")
            handler.suspend(["own"], now=now)
        if mine is not None and done == ["suspended"] and over(mine):
            done.append("resumed")
            assert not running(folder)
            handler.resume("own")

    async def main() -> Job:
        with closing(Journal.write(folder / "journal.db")) as journal:
            platform = LocalPlatform(parse_nodes("1x4"), None, lambda name: folder / "logs", time.time)
            async with Handler(platform, journal, policy("coach")) as handler:
                handler.observers.append(lambda event, actions: then(handler))
                handler.submit(spec, f"file://{folder}/c")
                await handler.wait(lambda: len(done) == 2 and over(handler.jobs["own"]))
                return handler.jobs["own"]

    return asyncio.run(main())


@pytest.mark.parametrize("resumes", [False, True])
def test_a_suspended_program_ends_at_once_and_goes_on_where_it_can(tmp_path: Path, resumes: bool) -> None:
    trained = suspended_once(tmp_path, resuming(tmp_path) if resumes else job(tmp_path, LEARNS), now=False)
    assert trained.reason is Reason.TARGET_REACHED
    with closing(Journal.read(tmp_path / "journal.db")) as journal:
        records = [record for _, record in journal.records()]
    back = [record.message for record in records if isinstance(record, act.RollBack)]
    assert back == ([] if resumes else ["the program starts from its beginning"])
    assert [epoch.number for epoch in trained.epochs] == list(range(1, len(trained.epochs) + 1))
    assert not resumes or starts(tmp_path) == [0, 1]
    paid(trained, records)


@pytest.mark.parametrize("now", [False, True])
def test_what_a_suspended_program_reports_while_it_leaves_counts_when_it_goes_on(tmp_path: Path, now: bool) -> None:
    leaves = "if 'leaving' in globals(): raise SystemExit"  # with the epoch that it is in
    spec = resuming(tmp_path, leaves)
    script = tmp_path / "program.py"
    head = "import signal\ndef leave(*_):\n    global leaving; leaving = True\nsignal.signal(signal.SIGTERM, leave)\n"
    script.write_text(head + script.read_text())
    trained = suspended_once(tmp_path, spec, now=now)
    assert trained.reason is Reason.TARGET_REACHED
    assert len(starts(tmp_path)) == 2
    reported = [epoch.report.at_epoch for epoch in trained.epochs]
    assert reported == [float(number) for number in range(len(reported))], "each counts, once"


#: The same, from its newest checkpoint on.
RESUMES = """
import os, time
from pathlib import Path
checkpoint = Path(os.environ["COACH_CHECKPOINTS"], "epoch")
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("starts at", done)
for n in range(done, 1000):
    time.sleep(0.7)
    print(f"epoch {n}: val loss: {1 / (n + 1):.4f}")
    checkpoint.write_text(str(n + 1))
    HERE
"""


def resuming(folder: Path, here: str = "", **spec: Any) -> TrainingJob:
    """A job that runs RESUMES, with one more line at the end of its loop."""
    script = RESUMES.replace("HERE", here)
    program = {"command": [sys.executable, "program.py"], "directory": str(folder), "resumes": True}
    program["metrics"] = {"val_loss": "val loss: (\\S+)"}
    return job(folder, script, program=program, **spec)


def starts(folder: Path) -> list[int]:
    """The epochs that the program started at."""
    lines = (folder / "logs/own-worker-0.log").read_text().splitlines()
    said = [json.loads(line)["message"] for line in lines]
    return [int(line.split()[2]) for line in said if line.startswith("starts at")]


def test_a_program_that_resumes_loses_nothing_when_it_is_killed(tmp_path: Path) -> None:
    trained, records = train(tmp_path, resuming(tmp_path, "if n == 1: os.kill(os.getpid(), 9)"))
    assert trained.reason is Reason.TARGET_REACHED
    assert starts(tmp_path) == [0, 2]
    assert len(trained.epochs) == 4, "no report is lost, none counts twice"
    assert not any(isinstance(record, act.RollBack) for record in records)
    paid(trained, records)


def test_a_program_that_fails_at_once_again_and_again_is_given_up(tmp_path: Path) -> None:
    trained, records = train(tmp_path, resuming(tmp_path, "if n == 1: raise SystemExit(3)").model_copy())
    assert trained.reason is Reason.TARGET_REACHED
    (tmp_path / "journal.db").unlink()
    again = job(tmp_path, "raise SystemExit(3)", program=resuming(tmp_path).to_json()["spec"]["program"])
    trained, records = train(tmp_path, again)
    assert trained.reason is Reason.PROGRAM_FAILED and trained.attempts.count == 3
    assert "3 attempts in a row failed" in trained.message
    paid(trained, records)


def test_workers_find_each_other_as_under_torchrun(tmp_path: Path) -> None:
    script = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(at) as server:
        seen = sorted(server.accept()[0].recv(10).decode() for _ in range(world - 1))
    print("val loss:", 0.2 if seen == ["1", "2"] else 9, flush=True)
    time.sleep(600)
while True:
    try:
        socket.create_connection(at).send(str(rank).encode())
        break
    except OSError:
        time.sleep(0.05)
print("val loss: 0.0001")  # only the first worker's reports count
time.sleep(600)
"""
    trained, records = train(tmp_path, job(tmp_path, script, workers={"min": 3}))
    assert trained.reason is Reason.TARGET_REACHED
    assert trained.value(trained.epochs[-1]) == 0.2
    paid(trained, records)


def test_a_worker_that_dies_takes_the_others_with_it(tmp_path: Path) -> None:
    script = """
import os, time
if os.environ["RANK"] == "1":
    raise SystemExit("no memory for me")
time.sleep(600)
"""
    trained, records = train(tmp_path, job(tmp_path, script, workers={"min": 2}))
    assert trained.reason is Reason.PROGRAM_FAILED
    assert trained.message.startswith("worker 1: exit code 1") and "no memory for me" in trained.message
    paid(trained, records)


def test_a_killed_handler_leaves_no_process(tmp_path: Path) -> None:
    """SIGKILL to the handler while its program, and a child in a session of its own, run."""
    script = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("val loss: 9", flush=True)
time.sleep(600)
"""
    job(tmp_path, script)
    words = [
        "run",
        "--budget",
        "1USD",
        "--target",
        "val_loss=0.1",
        "--no-live",
        "--",
        sys.executable,
        "program.py",
    ]
    with Forked(
        [sys.executable, "-m", "coach.cli.main", *words],
        cwd=tmp_path,
        env={**os.environ, "COACH_HOME": str(tmp_path / "home")},
        stdout=subprocess.PIPE,
        text=True,
    ) as handler:
        assert handler.stdout is not None
        while "epoch 1:" not in (line := handler.stdout.readline()):
            assert line, "it ended before its first epoch"
        below = descendants(handler.pid)
        assert len(below) >= 3, below
        handler.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while (left := [pid for pid in below if Path(f"/proc/{pid}").exists()]) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, [below[pid] for pid in left]


def test_a_program_with_an_image_is_refused_here_with_the_reason(tmp_path: Path) -> None:
    spec = job(tmp_path, LEARNS, image="me/train:1")
    ended, records = train(tmp_path, spec)
    assert ended.reason is Reason.POD_REFUSED
    assert "a program on this machine runs without one (me/train:1 is for a cluster)" in ended.message
    assert not [record for record in records if isinstance(record, act.RunEpoch)]


def test_a_program_that_prints_another_metric_is_said_to_while_it_runs(tmp_path: Path) -> None:
    script = (
        "import time\nfor n in range(9):\n    print(f'epoch {n} validation_loss={1 / (n + 1)}')\n    time.sleep(0.1)\n"
    )
    wanted = job(tmp_path, script)
    program = wanted.spec.program
    assert program is not None
    spec = wanted.spec.model_copy(update={"program": program.model_copy(update={"metrics": {}})})
    trained, records = train(tmp_path, wanted.model_copy(update={"spec": spec}))
    [said] = [one for one in records if isinstance(one, ev.MetricNotFound)]
    assert said.message.startswith("no val_loss in 5 lines with numbers; there is validation_loss")
    shown = [one.message for one in records if isinstance(one, act.SetStatus) and one.reason is Reason.METRIC_NOT_FOUND]
    assert shown == [said.message] and trained.reason is Reason.TARGET_MISSED


def test_what_is_found_without_a_source_ends_a_job_in_its_second_epoch(tmp_path: Path) -> None:
    script = "print('val_loss: 0.1')\n" + LEARNS
    wanted = job(tmp_path, script)
    program = wanted.spec.program
    assert program is not None
    spec = wanted.spec.model_copy(update={"program": program.model_copy(update={"metrics": {}})})
    trained, records = train(tmp_path, wanted.model_copy(update={"spec": spec}))
    assert trained.reason is Reason.TARGET_REACHED and trained.message.startswith("val_loss 0.2")
    first = next(one.report for one in records if isinstance(one, ev.EpochFinished))
    # On a busy machine both come within half a second, and are one report.
    assert first.guessed and first.line in ("val_loss: 0.1", "epoch 0: val loss: 1.0000")


def test_epochs_that_are_reported_at_once_all_count(tmp_path: Path) -> None:
    script = "import time\nfor n in range(1, 7): print(f'epoch {n}: val loss: {2 - n / 10}', flush=True)\ntime.sleep(1)"
    trained, _ = train(tmp_path, job(tmp_path, script))
    assert [epoch.report.at_epoch for epoch in trained.epochs] == [1, 2, 3, 4, 5, 6]


def test_a_report_that_reaches_the_target_is_not_replaced_by_the_next(tmp_path: Path) -> None:
    loop = "for n in range(99): print(f'epoch {n}: val loss: {0.1 if n == 60 else 9}', flush=True)"
    script = f"import time\n{loop}\ntime.sleep(9)"
    trained, _ = train(tmp_path, job(tmp_path, script))
    assert trained.reason is Reason.TARGET_REACHED


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 79 GiB",
            "Tried to allocate 2.00 GiB",
        ),
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes.",
            "1024 bytes",
        ),
        ("CUDA error: CUDA_ERROR_OUT_OF_MEMORY: Speicher reicht nicht", "CUDA_ERROR_OUT_OF_MEMORY"),
    ],
    ids=["PyTorch", "XLA", "CUDA"],
)
def test_too_little_memory_of_a_gpu_is_a_reason_of_its_own_and_is_not_tried_again(
    tmp_path: Path, said: str, kept: str
) -> None:
    spec = job(tmp_path, f"raise SystemExit({said!r})").to_json()
    spec["spec"]["program"]["resumes"] = True
    trained, _ = train(tmp_path, TrainingJob.from_json(spec))
    assert (trained.reason, trained.attempts.count) == (Reason.DEVICE_MEMORY, 1)
    assert kept in trained.message and "smaller batches" in trained.message
