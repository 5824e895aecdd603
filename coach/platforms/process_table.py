"""Processes as the kernel lists them in /proc: what they work, and which belong to one worker."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

#: Processes that use less than this part of a core ...
IDLE_PART = 0.02
#: ... and that read and write fewer bytes a second, are idle.
IDLE_BYTES = 4096


class Work:
    """What processes compute, read and write, by the kernel's counters; looked at every `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._counted: dict[int, float] = {}
        self._since = time.monotonic()
        self._done = 0.0

    def done(self, pids: Iterable[int]) -> bool:
        """Whether they have worked since this last returned true: more than the idle threads of a waiting group do."""
        counted = {pid: _seconds_of_work(pid) for pid in pids}
        self._done += sum(max(0.0, now - self._counted.get(pid, 0.0)) for pid, now in counted.items())
        self._counted = counted
        now = time.monotonic()
        if self._done <= IDLE_PART * (now - self._since + self._interval):
            return False
        self._since, self._done = now, 0.0
        return True


def _seconds_of_work(pid: int) -> float:
    """CPU seconds that a process has used, and in addition what it has read and written, on the same scale."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        cpu = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[11:13]
        rows = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        moved = int(rows["rchar"]) + int(rows["wchar"])
        return sum(map(int, cpu)) / os.sysconf("SC_CLK_TCK") + moved * IDLE_PART / IDLE_BYTES
    return 0.0


def end_marked(mark: str) -> None:
    """Kill all processes with the line `mark` in their environment: those of a supervisor that was itself killed."""
    while found := [int(at.name) for at in Path("/proc").iterdir() if at.name.isdigit() and _has(at, mark)]:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _has(process: Path, mark: str) -> bool:
    with contextlib.suppress(OSError):
        return mark.encode() in (process / "environ").read_bytes().split(b"\0")
    return False
