"""The warm process of one function: imports the framework once, keeps model and data, forks a child for each group.

docs/project/worker-protocol.md describes the processes of a function. Three kinds of packets flow (training/ipc.py):

    function -> zygote     start (with one end of a socket pair for the child), deadline, kill
    zygote   -> function   ready, loading, forked, failed, ended
    child   <-> function   directly, over the pair: state, progress, done, failed; the next epoch

The zygote has no thread of its own and runs no framework operation, so forking it is safe (MXNet stops its engine's
threads before a fork and starts them after it). It alone knows how a child ended, because it alone can wait for it.
What the child has started ends with it: the zygote is a child subreaper, so all of it is below the zygote. What the
model file starts when it is read is the zygote's, and ends with that, by the keeper (training/keeper.py). A zygote that
hangs in the user's code when its function ends is killed by the kernel, as the function's end of a pipe is closed.

While the user's model file is loaded an alarm is armed that ends this process, also where code hangs beneath Python.
The function, which was given the reason before, then starts another zygote.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from training import backend, group_member, ipc, linux
from training.data.dataset import DataSet
from training.errors import TrainingError
from training.model import model_file
from training.model.cache import Cache
from training.reporter import Loaded
from training.request import StartRequest

#: Seconds after which a process that the child has left behind, and that has ended, is waited for.
BURY_SECONDS = 10.0


class Zygote:
    """See the module's description."""

    def __init__(self, function: socket.socket, imports_seconds: float) -> None:
        self._function = function
        self._imports_seconds = imports_seconds
        self._threads = linux.threads()
        self._cache = Cache()
        self._child: int | None = None
        self._ended = -1  # a descriptor of the child, which is ready when that has ended
        self._before: frozenset[int] = frozenset()  # what was below this process before it forked the child
        self._serial = 0
        self._deadline = float("inf")
        self._cause: str | None = None
        self._oom_kills: int | None = None

    def run(self) -> None:
        """Serve the function until it is gone."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        linux.adopt_orphans()
        self._say("ready", imports_seconds=self._imports_seconds)
        while True:
            if self._child is None:
                ready, _, _ = select.select([self._function], [], [])
            else:
                left = max(0.0, min(self._deadline - time.monotonic(), BURY_SECONDS))
                ready, _, _ = select.select([self._function, self._ended], [], [], left)
                self._reap(os.WNOHANG)
            if self._child is not None:
                linux.bury(os.getpid(), self._before | {self._child})
                if time.monotonic() >= self._deadline:
                    self._end("deadline")
            if self._function in ready:
                message, descriptors = ipc.receive(self._function, descriptors=1)
                if message is None:
                    self._end("function gone")
                    return
                self._obey(message, descriptors)

    def _say(self, event: str, **more: object) -> None:
        ipc.send(self._function, {"event": event, "serial": self._serial, **more})

    def _obey(self, message: dict, descriptors: list[int]) -> None:
        if message["op"] == "start":
            self._end("replaced")
            (descriptor,) = descriptors
            with socket.socket(fileno=descriptor) as end:
                self._start(message["serial"], StartRequest(**message["request"]), message["deadline"], end)
        elif message["serial"] == self._serial and message["op"] == "deadline":
            self._deadline = message["at"]
        elif message["serial"] == self._serial and message["op"] == "kill":
            self._end("stopped")

    def _start(self, serial: int, request: StartRequest, deadline: float, end: socket.socket) -> None:
        self._serial, self._cause = serial, None
        # Counted since the request came: importing may have gone on until now.
        self._deadline = deadline
        if time.monotonic() >= deadline:
            failure = TrainingError("DeadlineExceeded", "the deadline passed before anything could start")
            self._say("failed", **failure.as_dict())
            return
        began = time.perf_counter()
        try:
            model, dataset = self._load(request) if request.role == "worker" else (None, None)
        except BaseException as raised:
            error = group_member.traced(raised, request)
            # With threads that the model file has started there are to be no forks any more.
            last = linux.threads() > self._threads
            self._say("failed", last=last, **error.as_dict())
            if last:
                os._exit(1)
            return
        zygote = os.getpid()
        self._before = frozenset(linux.descendants(zygote))
        loaded = Loaded(model, dataset, time.perf_counter() - began, self._before)
        self._oom_kills = linux.cgroup_oom_kills()
        # What is buffered here would be written by the child once more.
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_child(zygote, request, loaded, end)
        self._child, self._ended = pid, os.pidfd_open(pid)
        self._say("forked", pid=pid)

    def _become_child(self, zygote: int, request: StartRequest, loaded: Loaded, end: socket.socket) -> None:
        try:
            os.setsid()
            linux.die_with_parent(zygote)
            self._function.close()
            group_member.run(request, loaded, end)
        finally:
            os._exit(1)

    def _load(self, request: StartRequest) -> tuple[ModuleType, DataSet | None]:
        def bounded(what: str, limit: float, load: Callable[[dict], Any], spec: dict) -> Any:
            left = max(self._deadline - time.monotonic(), 0.001)
            seconds = min(limit, left)
            if limit < left:
                words = model_file.took_too_long(request.model["uri"], f"{seconds:.3g}")
                failure = TrainingError("ModelTimeout", words)
            else:
                failure = TrainingError("DeadlineExceeded", f"loading the {what} took over {seconds:.3g} s")
            self._say("loading", what=what, until=time.monotonic() + seconds, **failure.as_dict())
            # No handler: an exception could be caught by the code that hangs, and none comes to code beneath Python.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                return load(spec)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        model = bounded("model", request.model_seconds, self._cache.model, request.model)
        return model, bounded("data", float("inf"), self._cache.data, request.data)

    def _end(self, cause: str) -> None:
        """Kill the child, if there is one, and report to the function how it ended."""
        if self._child is not None:
            self._cause = cause
            linux.kill(self._child)
            self._reap(0)
        self._deadline = float("inf")

    def _reap(self, options: int) -> None:
        if self._child is None:
            return
        pid, status, usage = os.wait4(self._child, options)
        if pid == 0:
            return
        linux.end_descendants(os.getpid(), self._before)
        os.close(self._ended)
        self._child = None
        self._deadline = float("inf")
        kills = linux.cgroup_oom_kills()
        self._say(
            "ended",
            cause=self._cause,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            exit_status=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            out_of_memory=kills is not None and self._oom_kills is not None and kills > self._oom_kills,
            max_rss_gib=usage.ru_maxrss / 2**20,
        )


def serve(descriptor: int, imports_seconds: float) -> NoReturn:
    """Be the zygote of the function behind a socket, until that is gone."""
    status = 1
    try:
        with socket.socket(fileno=descriptor) as function:
            Zygote(function, imports_seconds).run()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def import_framework() -> float:
    """Import what groups need; how many seconds that took."""
    began = time.perf_counter()
    backend.current().warm_up()
    return time.perf_counter() - began


def main() -> None:
    """Be the zygote of a function. Arguments: the descriptors of its socket, and of its pipe, with which this ends."""
    end, lifeline = map(int, sys.argv[1:])
    os.setsid()
    linux.die_with_pipe(lifeline)
    try:
        seconds = import_framework()
    except Exception as error:
        failure = TrainingError(
            "Internal", f"the function cannot import what it needs: {type(error).__name__}: {error}"
        )
        with socket.socket(fileno=end) as function:
            ipc.send(function, {"event": "unable", **failure.as_dict()})
        raise
    serve(end, seconds)


if __name__ == "__main__":
    main()
