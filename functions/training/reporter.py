"""What a member of a group reports to its function, and what its zygote had ready for it."""

import os
import socket
import sys
import threading
from dataclasses import dataclass
from types import ModuleType
from typing import NoReturn

from training import ipc, linux
from training.connections.liveness import Hub, Member
from training.data.dataset import DataSet
from training.errors import TrainingError

#: How a child that reported its own failure ends.
FAILED_STATUS = 3


@dataclass(frozen=True)
class Loaded:
    """What the zygote had ready: None for roles that need none, or when the model file reads its own data."""

    model: ModuleType | None
    dataset: DataSet | None
    seconds: float
    before: frozenset[int] = frozenset()  #: processes that the model file had started when it was read

    def started(self, without: frozenset[int] = frozenset()) -> list[str]:
        """Names of the processes that this one, which the zygote has forked, has started, and that run still."""
        own = os.getpid()
        found = linux.descendants(os.getppid(), self.before | {own}) | linux.descendants(own, without)
        return sorted(found.values())


class Reporter:
    """Reports to the function. Every message names its epoch."""

    def __init__(self, function: socket.socket, epoch: str) -> None:
        self._function = function
        self._once = threading.Lock()
        self._cpu_seconds = linux.cpu_seconds()
        self.epoch = epoch

    def state(self, state: str) -> None:
        """A new state of the epoch."""
        ipc.send(self._function, {"event": "state", "epoch": self.epoch, "state": state})

    def progress(self, **progress: object) -> None:
        """Progress is dropped rather than waited for when the function does not read."""
        ipc.send(self._function, {"event": "progress", "epoch": self.epoch, "progress": progress}, block=False)

    def done(self, report: dict, epoch: str | None = None) -> None:
        """The epoch's report; nothing more comes for it."""
        ipc.send(self._function, {"event": "done", "epoch": epoch or self.epoch, "report": report})

    def served(self, epoch: str) -> None:
        """The report of a server or scheduler: what it has used since the last one."""
        before, self._cpu_seconds = self._cpu_seconds, linux.cpu_seconds()
        self.done({"cpu_seconds": self._cpu_seconds - before, "max_rss_gib": linux.max_rss_gib()}, epoch)

    def fail(self, error: TrainingError, liveness: Hub | Member | None = None) -> NoReturn:
        """Report the failure, to the group as well, and end the process.

        Only the first thread that fails reports; any other waits here. A reported failure ends the whole group, and
        the failures that follow must not be reported in place of the cause.
        """
        self._once.acquire()
        ipc.send(self._function, {"event": "failed", "epoch": self.epoch, **error.as_dict()})
        if liveness is not None:
            liveness.tell({"failed": f"{error.reason}: {error.message}"})
        sys.stderr.flush()
        os._exit(FAILED_STATUS)
