"""The function's side of its zygote: start it, talk to it, end it."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from training import ipc

#: The environment variable that names a template's socket on this machine.
TEMPLATE_VARIABLE = "COACH_ZYGOTE_TEMPLATE"

#: The environment variables that say which GPUs a process sees, to the driver, when it first asks for one.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class ZygoteHandle:
    """A running zygote. `socket` turns readable when it has something to say or is gone.

    `liveness` is the writing end of a pipe: the kernel kills the zygote when this process no longer holds it.
    """

    def __init__(self, end: socket.socket, liveness: int, pid: int, process: subprocess.Popen | None = None) -> None:
        self.socket = end
        self.pid = pid
        self.imports_seconds: float | None = None  # None until it is ready
        self.ready_at: float | None = None  # on the machine's monotonic clock, as far as was heard
        self.unable: dict | None = None  # why its imports failed, with which it ends
        self.from_template = process is None
        self._liveness: int | None = liveness
        self._process = process

    def kill(self) -> None:
        """End it now, and with it its child. What it sent can still be received."""
        if self._liveness is not None:
            os.close(self._liveness)
            self._liveness = None

    def close(self) -> None:
        """End it and let go of it."""
        self.kill()
        self.socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def start() -> ZygoteHandle:
    """A zygote from this machine's template, else one of our own. It may still be importing."""
    path = os.environ.get(TEMPLATE_VARIABLE)
    return (path and _from_template(path)) or _own()


def _own() -> ZygoteHandle:
    ours, theirs = ipc.pair()
    reader, writer = os.pipe()
    functions = Path(__file__).resolve().parent.parent
    search_path = os.pathsep.join(filter(None, [str(functions), os.environ.get("PYTHONPATH")]))
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "training.serving.zygote", str(theirs.fileno()), str(reader)],
            pass_fds=(theirs.fileno(), reader),
            env={**os.environ, "PYTHONPATH": search_path},
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__.fileno(),  # Nuclio's wrapper may speak to its processor on stdout
        )
    os.close(reader)
    return ZygoteHandle(ours, writer, process.pid, process)


def _visible() -> dict[str, str]:
    """Which GPUs this function sees, and so its zygote; a template was started with other variables."""
    return {name: os.environ[name] for name in VISIBLE if name in os.environ}


def _from_template(path: str) -> ZygoteHandle | None:
    ours, theirs = ipc.pair()
    reader, writer = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template, theirs:
        template.settimeout(2)
        answer = None
        with contextlib.suppress(OSError):
            template.connect(path)
            descriptors = (theirs.fileno(), reader, sys.__stderr__.fileno())
            if ipc.send(template, {"op": "zygote", "asking": os.getpid(), "env": _visible()}, descriptors):
                answer = ipc.receive(template)[0]
    os.close(reader)
    if answer is None:
        os.close(writer)
        ours.close()
        return None
    return ZygoteHandle(ours, writer, answer["pid"])
