"""The file that runs on a node, without Slurm: a process that is told and tells by files alone."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coach.platforms.local.supervisor import descendants
from coach.platforms.slurm import rank
from coach.platforms.slurm.attempt import Attempt
from tests.functions.hosting import is_alive
from tests.required import small_disk

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def attempt(folder: Path, script: str, **changes: Any) -> Attempt:
    """The folder of an attempt with one worker that runs a script."""
    order = {
        "command": [sys.executable, "-uc", script], "directory": str(folder), "env": {}, "workers": 1, "groups": [],
        "own": {"COACH_JOB": "own"}, "grace": 1.0, "wall": 3600.0, "asked": [], "srun": [],
    }  # fmt: skip
    return Attempt.make(folder / "own-1", order | changes)


def start(at: Attempt, **env: str) -> subprocess.Popen[bytes]:
    own = {**os.environ, "SLURM_PROCID": "0", "SLURMD_NODENAME": "n7", **env}
    return subprocess.Popen([sys.executable, str(at.folder / "rank.py")], env=own, start_new_session=True)


def said(at: Attempt, kind: str) -> list[str]:
    lines = [line.split(" ", 2) for line in (at.folder / "rank-0.log").read_text().splitlines()]
    return [text for _, of, text in lines if of == kind]


def ended(at: Attempt) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(at, "ended")[0])
    return found


def until(there: Any) -> None:
    late = time.monotonic() + 60
    while not there():
        assert time.monotonic() < late
        time.sleep(0.02)


def test_it_runs_on_python_3_6() -> None:
    ast.parse(Path(rank.__file__).read_text(), feature_version=(3, 6))


def test_without_a_handler_a_program_ends_when_what_is_reserved_does(tmp_path: Path) -> None:
    at = attempt(tmp_path, "import time\nprint('runs')\ntime.sleep(100)")
    at.tell(seconds=1.5)
    start(at).wait()
    assert said(at, "began") == ["n7"]
    assert (ended(at)["cause"], ended(at)["code"], said(at, "line")) == ("deadline", 143, ["runs"])
    assert ended(at)["seconds"] < 60


def test_a_deadline_counts_from_when_it_was_written_by_the_file_systems_clock(tmp_path: Path) -> None:
    """A handler that is long gone: its last word was written too long ago, whatever any machine's clock says."""
    at = attempt(tmp_path, "print('runs')")
    at.tell(seconds=90)
    os.utime(at.folder / "control", (time.time() - 100, time.time() - 100))
    start(at).wait()
    assert (ended(at)["cause"], said(at, "line")) == ("deadline", []), "it was not even started"


def test_a_file_system_that_hangs_does_not_keep_a_program_beyond_its_deadline(tmp_path: Path) -> None:
    at = attempt(tmp_path, "import time\nprint('runs')\ntime.sleep(1000)")
    at.tell(seconds=3)
    process = start(at)
    until(lambda: said(at, "line"))
    os.mkfifo(at.folder / "hangs")
    (at.folder / "hangs").replace(at.folder / "control")  # who opens it waits for ever
    process.wait()
    assert (ended(at)["cause"], ended(at)["code"]) == ("deadline", 143)


def test_a_worker_that_runs_and_is_not_seen_has_ended_when_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scancel").symlink_to("/bin/false")  # Slurm does not answer either
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("COACH_SLURM_INTERVAL", "0.1")
    at = attempt(tmp_path, "import time\nprint('runs')\ntime.sleep(1000)")
    at.tell(seconds=3)
    process = start(at)
    until(lambda: said(at, "line"))
    os.mkfifo(at.folder / "hangs")
    (at.folder / "hangs").replace(at.folder / "control")
    time.sleep(1)  # it looks every half second, and sees no later word
    asyncio.run(at.give_up())
    assert ended(at)["cause"] == "deadline"
    process.wait()


def test_a_program_that_prints_nothing_gives_signs_of_life(tmp_path: Path) -> None:
    at = attempt(tmp_path, "import time\ntime.sleep(1000)")
    at.tell(seconds=90)
    process = start(at)
    until(lambda: said(at, "began"))
    log = at.folder / "rank-0.log"
    first = log.stat().st_mtime_ns
    until(lambda: log.stat().st_mtime_ns > first)
    assert not said(at, "line")
    at.tell(end=0, cause="asked")
    process.wait()


def test_a_deadline_that_is_renewed_lets_it_go_on(tmp_path: Path) -> None:
    at = attempt(tmp_path, "import time\ntime.sleep(4)")
    at.tell(seconds=2)
    process = start(at)
    until(lambda: said(at, "began"))
    at.tell(seconds=60)
    process.wait()
    assert (ended(at)["cause"], ended(at)["code"]) == ("", 0)


def test_it_leaves_before_the_wall_of_its_job(tmp_path: Path) -> None:
    at = attempt(tmp_path, "import time\ntime.sleep(100)", wall=8.0)
    at.tell(seconds=90)
    start(at, COACH_BEGAN=str(time.time())).wait()
    assert ended(at)["cause"] == "wall"


def test_slurms_sigterm_is_passed_on_with_the_grace_period(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('up')\ntime.sleep(100)"
    )
    at = attempt(tmp_path, script)
    at.tell(seconds=90)
    process = start(at)
    until(lambda: said(at, "line"))
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert (ended(at)["cause"], ended(at)["code"]) == ("slurm", 7)


def test_whatever_it_has_started_ends_with_it(tmp_path: Path) -> None:
    script = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\nprint('up')"
    )
    at = attempt(tmp_path, script)
    at.tell(seconds=90)
    process = start(at)
    process.wait()
    assert ended(at)["code"] == 0
    assert not [pid for pid in descendants(os.getpid()) if f"/{at.token}" in _words(pid)]


def test_a_process_whose_first_thread_has_ended_ends_with_it_too(tmp_path: Path) -> None:
    script = """
import ctypes, os, threading, time
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    ctypes.CDLL(None).pthread_exit(None)
time.sleep(1)
"""
    at = attempt(tmp_path, script)
    at.tell(seconds=90)
    start(at).wait()
    assert ended(at)["code"] == 0
    assert not is_alive(int(said(at, "line")[0]))


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_killed_worker_takes_its_program_with_it(tmp_path: Path) -> None:
    at = attempt(tmp_path, "import os, time\nprint(os.getpid())\ntime.sleep(1000)")
    at.tell(seconds=90)
    process = start(at)
    until(lambda: said(at, "line"))
    process.kill()
    process.wait()
    until(lambda: not _words(int(said(at, "line")[0])))
    assert not said(at, "ended")


def test_a_program_asks_and_reports(tmp_path: Path) -> None:
    from coach.platforms.program_metrics import coach_program

    script = (
        f"import sys, time\nsys.path.insert(0, {str(Path(coach_program.__file__).parent)!r})\n"
        "import coach_program as coach\n"
        "coach.report(epoch=1, val_loss=0.5)\n"
        "while not coach.should_stop(): time.sleep(0.05)\n"
        "print('asked to stop')"
    )
    at = attempt(tmp_path, script, grace=30.0)
    at.tell(seconds=90)
    process = start(at)
    until(lambda: said(at, "report"))
    assert json.loads(said(at, "report")[0]) == {"epoch": 1.0, "val_loss": 0.5}
    at.tell(end=30.0, cause="asked")
    process.wait()
    assert (ended(at)["cause"], ended(at)["code"], said(at, "line")) == ("asked", 0, ["asked to stop"])


@pytest.mark.root
def test_a_full_disk_costs_lines_and_not_the_last_word(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        at = attempt(disk, "import time\nprint('before')\ntime.sleep(1.5)\nprint('x' * 10000)\ntime.sleep(1)")
        at.tell(seconds=60)
        process = start(at)
        until(lambda: said(at, "line"))
        filler = disk / "filler"
        with filler.open("wb", 0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 512)
        time.sleep(4)
        filler.unlink()
        process.wait()
        assert said(at, "line")[0] == "before"
        assert ended(at)["code"] == 0


def test_a_job_that_slurm_starts_again_does_nothing(tmp_path: Path) -> None:
    at = attempt(tmp_path, "print('runs')")
    env = {**os.environ, "SLURM_RESTART_COUNT": "1"}
    subprocess.run([sys.executable, str(at.folder / "rank.py"), "batch"], env=env, check=True)
    assert (at.folder / "rank-0.log").read_text() == ""
