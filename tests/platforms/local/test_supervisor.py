"""Whatever happens to a supervisor, or to its handler, its program ends in time, and it with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from coach.core.spec.metric_source import MetricSource
from coach.platforms.local import programs
from coach.platforms.local.programs import Worker
from coach.platforms.local.supervisor import Ended, Order
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from tests.functions.hosting import eventually, is_alive

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

#: It says its number, and goes on until it is killed.
ENDLESS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
while True:
    print("loss=0.5 " + "x" * 200, flush=True)
    time.sleep(float(sys.argv[2]))
"""
#: In place of `python -m coach.platforms.local.supervisor`: the first look at the files never ends.
HANGS = """
import time
from coach.platforms.local import supervisor
supervisor.FIRST_LOOK_SECONDS = {seconds}
supervisor.Collector = lambda *_: time.sleep(600)
supervisor.main()
"""


def order(folder: Path, seconds: float = 60.0, pause: float = 0.05, *sources: MetricSource) -> Order:
    command = [sys.executable, "-c", ENDLESS, str(folder / "pid"), str(pause)]
    wanted = Wanted("loss", sources)
    return Order("one", command, str(folder), dict(os.environ), str(folder / "log"), wanted, seconds, 0.1, 4.0)


def program(folder: Path) -> int:
    """The process of the program, which has begun."""
    eventually(lambda: (folder / "pid").exists() and (folder / "pid").read_text() != "")
    return int((folder / "pid").read_text())


@contextlib.contextmanager
def alone(what: Order, code: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor whose handler reads nothing by itself."""
    start = ["-c", code] if code else ["-m", "coach.platforms.local.supervisor"]
    one = subprocess.Popen([sys.executable, *start], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert one.stdin is not None and one.stdout is not None
    try:
        one.stdin.write(json.dumps(asdict(what)).encode() + b"\n")
        one.stdin.flush()
        yield one
    finally:
        one.kill()
        one.wait()
        for end in (one.stdin, one.stdout):
            with contextlib.suppress(OSError):
                end.close()


def last_words(one: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert one.stdout is not None
    return dict(json.loads(one.stdout.read().splitlines()[-1]))


def test_a_supervisor_that_is_stopped_keeps_no_job_from_being_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LATE_SECONDS", 0.2)

    async def cancelled() -> Ended:
        worker = await Worker.start(order(tmp_path), lambda *_: None)
        running = await asyncio.to_thread(program, tmp_path)
        os.kill(worker._supervisor.pid, signal.SIGSTOP)
        worker.end(0.1)
        ended = await worker.ended
        assert not is_alive(running)
        return ended

    assert asyncio.run(cancelled()).cause == "lost"


def test_a_supervisor_that_is_stopped_goes_beyond_no_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LATE_SECONDS", 0.2)

    async def late() -> None:
        worker = await Worker.start(order(tmp_path), lambda *_: None)
        running = await asyncio.to_thread(program, tmp_path)
        os.kill(worker._supervisor.pid, signal.SIGSTOP)
        worker.extend(0.5)
        await worker.ended
        assert not is_alive(running)

    asyncio.run(late())


def test_an_extension_after_the_end_was_asked_for_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LATE_SECONDS", 0.2)

    async def extended() -> None:
        worker = await Worker.start(order(tmp_path), lambda *_: None)
        await asyncio.to_thread(program, tmp_path)
        os.kill(worker._supervisor.pid, signal.SIGSTOP)
        worker.end(0.1)
        worker.extend(600.0)
        await worker.ended

    asyncio.run(extended())


def test_of_one_that_has_ended_nothing_is_said_when_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(programs, "LATE_SECONDS", 0.0)

    async def released() -> None:
        worker = await Worker.start(replace(order(tmp_path), command=["true"]), lambda *_: None)
        assert (await worker.ended).code == 0
        worker.end(0.0)
        assert worker._late is None or worker._late.cancelled()
        await asyncio.sleep(0.01)

    asyncio.run(released())
    assert "is killed" not in caplog.text


def test_a_handler_that_is_stopped_and_reads_nothing_does_not_keep_a_program_alive(tmp_path: Path) -> None:
    """What the program reports fills the pipe to the handler long before its deadline."""
    with alone(order(tmp_path, seconds=4.0, pause=0.0)) as one:
        running = program(tmp_path)
        eventually(lambda: not is_alive(running))
        assert last_words(one)["cause"] == "deadline"


def test_a_first_look_at_files_that_hangs_ends_with_its_time(tmp_path: Path) -> None:
    with alone(order(tmp_path), HANGS.format(seconds=0.5)) as one:
        ended = last_words(one)
        assert (ended["cause"], ended["code"]) == ("cannot start", 127) and "csv:" in ended["words"]
        assert not (tmp_path / "pid").exists() and one.wait(30) == 0


@pytest.mark.parametrize("how", ["end", "the handler's end"])
def test_a_first_look_at_files_that_hangs_keeps_nobody_from_ending_it(tmp_path: Path, how: str) -> None:
    with alone(order(tmp_path), HANGS.format(seconds=600)) as one:
        assert one.stdin is not None
        if how == "end":
            one.stdin.write(b'{"end": 0}\n')
            one.stdin.flush()
        else:
            one.stdin.close()
        assert last_words(one)["cause"] == "asked" and one.wait(30) == 0
        assert not (tmp_path / "pid").exists()


def test_what_was_ordered_during_the_first_look_holds(tmp_path: Path) -> None:
    slow = "import time; from coach.platforms.local import supervisor as s; make = s.Collector\n"
    slow += "s.Collector = lambda *given: (time.sleep(1), make(*given))[1]\ns.main()"
    with alone(order(tmp_path), slow) as one:
        assert one.stdin is not None
        one.stdin.write(b'{"seconds": 3}\n')
        one.stdin.flush()
        assert last_words(one)["cause"] == "deadline"


def test_the_files_of_a_folder_whose_links_go_in_a_circle_are_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("a", "b"):
        (tmp_path / "runs" / name).symlink_to(".")
    (tmp_path / "runs" / "x.csv").write_text("loss\n")
    heard: list[ProgramReport] = []

    async def reads() -> None:
        source = MetricSource.read("loss", "csv:runs/**/*.csv")
        worker = await Worker.start(order(tmp_path, 60.0, 0.05, source), lambda report, _: heard.append(report))
        await asyncio.to_thread(program, tmp_path)
        with (tmp_path / "runs" / "x.csv").open("a") as file:
            file.write("0.25\n")
        while not any(one.values for one in heard):
            await asyncio.sleep(0.05)
        worker.end(0.0)
        await worker.ended

    asyncio.run(reads())
    assert [one.values for one in heard if one.values] == [{"loss": 0.25}]
