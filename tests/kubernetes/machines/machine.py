"""A machine of its own inside this one: a process tree with its own network, mounts and process ids.

The kernel ends all of it with this process, however that ends: `setpriv` has the kernel kill `unshare` then, `unshare`
has it kill the tree's first process, and with that every process of the tree, its network and its mounts are gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

#: bash waits for orphans, as a machine's first process must.
_FIRST = "set -e\n{setup}\necho up\nexec >/dev/null\nwhile :; do sleep 3600 & wait $! || :; done"


class Machine:
    """Start it with a shell script that runs first inside. Only the main thread may: the kernel watches threads."""

    def __init__(self, name: str, setup: str, path: str) -> None:
        self.name = name
        self._environment = {**os.environ, "PATH": path, "HOME": "/root"}
        unshare = [
            "unshare",
            "--net",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        self._outer = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *unshare, "bash", "-c", _FIRST.format(setup=setup)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        assert self._outer.stdout is not None and self._outer.stderr is not None
        if self._outer.stdout.readline() != b"up\n":
            raise RuntimeError(f"{name} did not start: {self._outer.stderr.read().decode().strip()}")
        self.pid = child_of(self._outer.pid)
        self._daemons: list[Daemon] = []

    def inside(self, *command: object) -> list[str]:
        """The command that runs `command` inside."""
        enter = ["nsenter", "-t", str(self.pid), "--net", "--mount", "--uts", "--ipc", "--pid", "--"]
        return enter + [str(part) for part in command]

    def run(self, *command: object) -> str:
        """Run a command inside to its end, and return what it printed. Raises RuntimeError with its errors."""
        ended = subprocess.run(
            self.inside(*command), capture_output=True, text=True, env=self._environment, check=False
        )
        if ended.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(map(str, command))}: {ended.stderr.strip()}")
        return ended.stdout

    def spawn(self, command: Sequence[object], log: Path) -> Daemon:
        """Start a program inside that goes on until it is killed; its output is added to `log`."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.inside(*command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        daemon = Daemon(process, log)
        self._daemons.append(daemon)
        return daemon

    def kill(self) -> None:
        """End it at once, with all its processes."""
        kill([self])


def kill(machines: Sequence[Machine]) -> None:
    """End several machines at once, and wait until all their processes are gone."""
    for machine in machines:
        machine._outer.kill()
    for machine in machines:
        machine._outer.communicate()
        while _runs(machine.pid):  # the first process ends after all others
            time.sleep(0.01)
        for daemon in machine._daemons:
            daemon.wait()


class Daemon:
    """A program inside a machine."""

    def __init__(self, enter: subprocess.Popen[bytes], log: Path) -> None:
        self._enter, self.log = enter, log
        self.pid = child_of(enter.pid)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._enter.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait for the end."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        self.wait()

    def wait(self) -> None:
        """Wait for its end."""
        self._enter.wait(30)

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "\nState:\tZ" not in status


def child_of(pid: int) -> int:
    """The first child of a process on this machine, which is about to start it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                return int(children[0])
        time.sleep(0.002)
    raise RuntimeError(f"process {pid} started nothing")
