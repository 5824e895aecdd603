"""The wrapper's side of its zygote: start it, talk to it, end it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from training import wire

#: The environment variable that names a template's socket on this machine.
TEMPLATE_VARIABLE = "COACH_ZYGOTE_TEMPLATE"


class ZygoteHandle:
    """A running zygote. `socket` turns readable when it has something to say or is gone."""

    def __init__(self, end: socket.socket, pid: int, process: subprocess.Popen | None) -> None:
        self.socket = end
        self.pid = pid
        self.imports_seconds: float | None = None  # None until it is ready
        self.from_template = process is None
        self._process = process

    def send(self, message: dict, descriptors: tuple[int, ...] = ()) -> bool:
        """False when the zygote is gone."""
        return wire.send(self.socket, message, descriptors)

    def receive(self) -> dict | None:
        """Its next message; None when it is gone."""
        return wire.receive(self.socket)[0]

    def kill(self) -> None:
        """End it now, and with it its child."""
        if self._process is not None:
            self._process.kill()
            return
        # A template's zygote was forked by another process, so its number could be reused: our open socket, which
        # only it holds the other end of, tells whether it still lives.
        if not _hung_up(self.socket):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it after its end."""
        self.socket.close()
        if self._process is not None:
            self._process.wait()


def start() -> ZygoteHandle:
    """A zygote from this machine's template, else one of our own. It may still be importing."""
    path = os.environ.get(TEMPLATE_VARIABLE)
    return (path and _from_template(path)) or _own()


def _own() -> ZygoteHandle:
    ours, theirs = wire.pair()
    functions = Path(__file__).resolve().parent.parent
    search_path = os.pathsep.join(filter(None, [str(functions), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "training.zygote", "--fd", str(theirs.fileno())]
    # PDEATHSIG follows the thread that forked: only the main thread lives as long as the process.
    if threading.current_thread() is threading.main_thread():
        command += ["--parent", str(os.getpid())]
    with theirs:
        process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": search_path},
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__.fileno(),  # a wrapper may speak to its processor on stdout
        )
    return ZygoteHandle(ours, process.pid, process)


def _from_template(path: str) -> ZygoteHandle | None:
    ours, theirs = wire.pair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template, theirs:
        template.settimeout(2)
        try:
            template.connect(path)
            stderr = sys.__stderr__.fileno()
            sent = wire.send(template, {"op": "fork"}, (theirs.fileno(), stderr))
            answer = wire.receive(template)[0] if sent else None
        except OSError:
            answer = None
    if answer is None:
        ours.close()
        return None
    return ZygoteHandle(ours, answer["pid"], None)


def _hung_up(end: socket.socket) -> bool:
    try:
        return end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
