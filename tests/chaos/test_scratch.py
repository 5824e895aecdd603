"""Temporary folders go with their handler, or with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coach.platforms.local.temp_dir import LOCK, Scratch, sweep

pytestmark = pytest.mark.processes

HOLD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from coach.platforms.local.temp_dir import Scratch
scratch = Scratch.make()
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_there_until_it_is_closed(place: Path) -> None:
    scratch = Scratch.make()
    (scratch.path / "deep").mkdir()
    assert list(place.iterdir()) == [scratch.path]
    scratch.close()
    assert list(place.iterdir()) == []


def test_what_a_killed_handler_left_is_swept_by_the_next_and_all_else_stays(place: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        (held / "digits-worker-0").mkdir()
        (place / "coach-notes").mkdir()  # not ours
        (place / "coach-file").write_text("")
        sweep()
        assert held.is_dir(), "its handler runs"
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        scratch = Scratch.make()
    assert {path.name for path in place.iterdir()} == {scratch.path.name, "coach-notes", "coach-file"}
    assert (scratch.path / LOCK).exists()
    scratch.close()
