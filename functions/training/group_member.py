"""One member of one parameter-server group, in a process forked from the zygote. Its end is the group's end.

The main thread trains or serves; a second one listens to the lifeline. Whatever ends this process, the wrapper sees
the end of file on its socket, the group sees it on the lifeline, and the zygote knows how it happened.
"""

import os
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import NoReturn

from training import backend, ipc, linux
from training.data.dataset import DataSet
from training.errors import TrainingError
from training.liveness import Hub, Member
from training.request import StartRequest
from training.worker import Worker

#: How a child that reported its own failure ends.
FAILED_STATUS = 3


@dataclass(frozen=True)
class Loaded:
    """What the zygote had ready: None for roles that need none, or when the model file reads its own data."""

    model: ModuleType | None
    dataset: DataSet | None
    seconds: float


class Reporter:
    """Tells the wrapper how things go. Every message names its epoch."""

    def __init__(self, wrapper: socket.socket, epoch: str) -> None:
        self._wrapper = wrapper
        self._once = threading.Lock()
        self.epoch = epoch

    def state(self, state: str) -> None:
        """A new state of the epoch."""
        ipc.send(self._wrapper, {"event": "state", "epoch": self.epoch, "state": state})

    def progress(self, **progress: object) -> None:
        """Progress is dropped rather than waited for when the wrapper does not read."""
        ipc.send(self._wrapper, {"event": "progress", "epoch": self.epoch, "progress": progress}, block=False)

    def done(self, report: dict, epoch: str | None = None) -> None:
        """The epoch's report; nothing more comes for it."""
        ipc.send(self._wrapper, {"event": "done", "epoch": epoch or self.epoch, "report": report})

    def fail(self, error: TrainingError, lifeline: Hub | Member | None = None) -> NoReturn:
        """Report the failure, to the group as well, and end the process.

        The first thread to fail is heard, another waits here: once the group hears of a failure it falls apart, and
        that must not be told in place of the cause.
        """
        self._once.acquire()
        ipc.send(self._wrapper, {"event": "failed", "epoch": self.epoch, **error.as_dict()})
        if lifeline is not None:
            lifeline.tell({"failed": f"{error.reason}: {error.message}"})
        sys.stderr.flush()
        os._exit(FAILED_STATUS)


def run(request: StartRequest, loaded: Loaded, wrapper: socket.socket) -> NoReturn:
    """Be the member that `request` describes, until its group has left. Never returns."""
    reporter = Reporter(wrapper, request.epoch)
    lifeline: Hub | Member | None = None
    try:
        if request.memory is not None:
            linux.limit_memory(request.memory)
        linux.keep_freed_memory()
        backend.limit_threads(request.threads)
        reporter.state("forming")
        if request.role == "scheduler":
            lifeline = Hub(request, _Listener(reporter, request).heard)
        else:
            lifeline = Member(request, _Listener(reporter, request).heard)
        group = backend.make_group(request)
        if request.role == "worker":
            worker = Worker(
                request, loaded, group=group, lifeline=lifeline, reporter=reporter, wrapper=wrapper
            )
            worker.run()
        else:
            group.serve()
        lifeline.leave()
        sys.stderr.flush()
        os._exit(0)
    except BaseException as error:
        reporter.fail(as_training_error(error), lifeline)


class _Listener:
    """What the lifeline's messages mean to this member."""

    def __init__(self, reporter: Reporter, request: StartRequest) -> None:
        self._reporter = reporter
        self._request = request
        self._cpu_seconds = linux.cpu_seconds()

    def heard(self, message: dict) -> None:
        if "lost" in message:
            because = message.get("because", "its process ended")
            self._reporter.fail(TrainingError("PeerLost", f"{message['lost']} was lost: {because}"))
        if self._request.role == "worker":
            return  # a worker knows the rest itself
        if "joined" in message:
            self._reporter.progress(joined=message["joined"], members=message["of"])
        elif "formed" in message:
            self._reporter.state("training")
        elif "done" in message:
            cpu_seconds = linux.cpu_seconds()
            report = {"cpu_seconds": cpu_seconds - self._cpu_seconds, "max_rss_gib": linux.max_rss_gib()}
            self._cpu_seconds = cpu_seconds
            self._reporter.done(report, message["done"])


def as_training_error(error: BaseException) -> TrainingError:
    """Give every exception a reason."""
    if isinstance(error, TrainingError):
        return error
    if isinstance(error, MemoryError):
        return TrainingError("OutOfMemory", f"no memory: {error}".rstrip(": "))
    if isinstance(error, Exception) and (known := backend.failure(error)) is not None:
        return TrainingError(*known)
    traceback.print_exception(error)
    return TrainingError("Internal", f"{type(error).__name__}: {error}")
