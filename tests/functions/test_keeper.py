"""All that a program has started ends with it, or with the holder of the keeper's lifeline."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.functions.hosting import FUNCTIONS, eventually, is_alive

pytestmark = pytest.mark.processes

#: Each starts processes that write their ids into the file `pids`, says that with the file `ready`, and waits.
PROGRAMS = {
    "a session of its own": """
        subprocess.Popen(["sh", "-c", "echo $$ >> pids; exec sleep 600"], start_new_session=True)
    """,
    "an orphan": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                note()
                time.sleep(600)
            os._exit(0)
    """,
    "deaf to SIGTERM": """
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            note()
            time.sleep(600)
            os._exit(0)
    """,
    "one whose first thread has ended": """
        if os.fork() == 0:
            os.setsid()
            def goes_on():
                while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
                    time.sleep(0.01)
                note()
                time.sleep(600)
            threading.Thread(target=goes_on).start()
            ctypes.CDLL(None).pthread_exit(None)
    """,
    "fifty that start each other": """
        for _ in range(50):
            if os.fork():
                break
            os.setsid()
            note()
        time.sleep(600)
    """,
}
MANY = {"fifty that start each other": 50}

HEAD = """
import ctypes, os, signal, subprocess, sys, threading, time
def note():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""


def source(program: str) -> str:
    body = "\n".join(line.removeprefix("        ") for line in program.splitlines())
    return f"{HEAD}{body}\ntime.sleep(600)\n"


def pids(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(each) for each in file.read_text().split()] if file.exists() else []


class Kept:
    """A program with its keeper."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        reader, self.lifeline = os.pipe()
        for name in ("__init__.py", "keeper.py", "linux.py"):
            (folder / "training").mkdir(exist_ok=True)
            shutil.copy(FUNCTIONS / "training" / name, folder / "training")
        options = ["--lifeline", str(reader), "--remove", str(folder / "mark")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "training.keeper", *options, "--", sys.executable, "-c", program],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            pass_fds=(reader,),
        )
        os.close(reader)

    def let_go(self) -> None:
        """As the kernel does for a process that is killed."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.lifeline = -1


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("end", ["its program is killed", "its lifeline is closed"])
def test_nothing_that_a_program_started_is_left(tmp_path: Path, name: str, end: str) -> None:
    kept = Kept(tmp_path, source(PROGRAMS[name]))
    try:
        eventually(lambda: len(pids(tmp_path)) == MANY.get(name, 1))
        assert all(map(is_alive, pids(tmp_path)))
        if end == "its lifeline is closed":
            kept.let_go()
        else:
            children = Path(f"/proc/{kept.process.pid}/task/{kept.process.pid}/children").read_text()
            os.kill(int(children.split()[0]), signal.SIGKILL)
        assert kept.process.wait(120) == 128 + signal.SIGKILL
        assert not any(map(is_alive, pids(tmp_path)))
    finally:
        kept.let_go()
        kept.process.wait(120)


def test_the_exit_code_is_the_programs_and_its_mark_is_removed(tmp_path: Path) -> None:
    (tmp_path / "mark").touch()
    kept = Kept(tmp_path, "raise SystemExit(7)")
    assert kept.process.wait(120) == 7
    assert not (tmp_path / "mark").exists()
    kept.let_go()


def test_an_orphan_ends_while_the_program_goes_on(tmp_path: Path) -> None:
    kept = Kept(tmp_path, source(PROGRAMS["an orphan"]))
    eventually(lambda: pids(tmp_path) and not is_alive(pids(tmp_path)[0]))
    assert kept.process.poll() is None
    kept.let_go()
    kept.process.wait(120)


def test_a_process_that_is_to_be_kept_outlasts_the_program_but_not_the_lifeline(tmp_path: Path) -> None:
    program = f"""{HEAD}
pid = os.fork()
if pid == 0:
    note()
    time.sleep(600)
os.write(int(os.environ["COACH_KEPT_FD"]), b"%d\\n" % pid)
"""
    (tmp_path / "mark").touch()
    kept = Kept(tmp_path, program)
    eventually(lambda: pids(tmp_path) and not (tmp_path / "mark").exists())
    assert kept.process.poll() is None and is_alive(pids(tmp_path)[0])
    kept.let_go()
    assert kept.process.wait(120) == 0
    assert not is_alive(pids(tmp_path)[0])
