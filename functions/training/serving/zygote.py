"""The warm process of one function: imports the framework once, keeps model and data, forks a child for each group.

Theory of operation
-------------------
A *function* (the process that answers) has one zygote; the zygote has at most one child, which is one member of one
parameter-server group. Three kinds of packets flow (training/ipc.py):

    function -> zygote     start (with one end of a socket pair for the child), deadline, kill
    zygote   -> function   ready, loading, forked, failed, ended
    child   <-> function   directly, over the pair: state, progress, done, failed; the next epoch

The zygote has no thread of its own and runs no framework operation, so forking it is safe (MXNet stops its engine's
threads before a fork and starts them after it). It alone knows how a child ended, because it alone can wait for it. It
kills the child at the deadline, so that happens with a stuck function too. The child dies with the zygote (PDEATHSIG).
What the child has started ends with it: the zygote is a child subreaper, so all of it is below the zygote. What the
model file starts when it is read is the zygote's, and ends with that, by the keeper (training/keeper.py).
The zygote dies with the function: it reads the end of file, and if it hangs in the user's code the kernel kills it when
the function's end of a pipe is closed.

The user's model file runs in here. While it is being loaded an alarm is armed whose handler ends this process; the
function does the same from outside for code that hangs beneath Python. Either way the function starts another zygote.

On one machine zygotes are forked from a template that has imported once for all (training/serving/template.py).
"""

import argparse
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from training import backend, group_member, ipc, linux
from training.data.dataset import DataSet
from training.errors import TrainingError
from training.model import model_file
from training.model.cache import Cache
from training.reporter import Loaded
from training.request import StartRequest


class Zygote:
    """See the module's description."""

    def __init__(self, function: socket.socket, imports_seconds: float) -> None:
        self._function = function
        self._imports_seconds = imports_seconds
        self._threads = linux.threads()
        self._cache = Cache()
        self._child: int | None = None
        self._before: frozenset[int] = frozenset()  # what was below this process before it forked the child
        self._serial = 0
        self._deadline = float("inf")
        self._cause: str | None = None
        self._oom_kills: int | None = None
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)

    def run(self) -> None:
        """Serve the function until it is gone."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal handler, so that the wake-up byte is written
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        linux.adopt_orphans()
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        ipc.send(self._function, {"event": "ready", "pid": os.getpid(), "imports_seconds": self._imports_seconds})
        while True:
            left = float("inf") if self._child is None else self._deadline - time.monotonic()
            ready, _, _ = select.select([self._function, self._wake], [], [], min(max(left, 0), 3600))
            self._drain_wakeups()
            self._reap(os.WNOHANG)
            if self._child is not None:
                linux.bury(os.getpid(), self._before | {self._child})
            if self._child is not None and time.monotonic() >= self._deadline:
                self._end("deadline")
            if self._function in ready:
                message, descriptors = ipc.receive(self._function, descriptors=1)
                if message is None:
                    self._end("function gone")
                    return
                self._obey(message, descriptors)

    def _drain_wakeups(self) -> None:
        try:
            while self._wake.recv(512):
                pass
        except BlockingIOError:
            return

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
            ipc.send(self._function, {"event": "failed", "serial": serial, **failure.as_dict()})
            return
        began = time.perf_counter()
        try:
            model, dataset = self._load(serial, request) if request.role == "worker" else (None, None)
        except TrainingError as raised:
            error = group_member.traced(raised, request)
            # With threads that the model file has started there are to be no forks any more.
            last = linux.threads() > self._threads
            ipc.send(self._function, {"event": "failed", "serial": serial, "last": last, **error.as_dict()})
            if last:
                os._exit(1)
            return
        before = frozenset(linux.descendants(os.getpid()))
        loaded = Loaded(model, dataset, time.perf_counter() - began, before)
        self._oom_kills = linux.cgroup_oom_kills()
        zygote = os.getpid()
        self._before = before
        # What is buffered here would be written by the child once more.
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_child(zygote, request, loaded, end)
        self._child = pid
        ipc.send(self._function, {"event": "forked", "serial": serial, "pid": pid})

    def _become_child(self, zygote: int, request: StartRequest, loaded: Loaded, end: socket.socket) -> None:
        try:
            os.setsid()
            linux.die_with_parent(zygote)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._function, self._wake, self._waker):
                inherited.close()
            group_member.run(request, loaded, end)
        finally:
            os._exit(1)

    def _load(self, serial: int, request: StartRequest) -> tuple[ModuleType, DataSet | None]:
        def bounded(what: str, limit: float, load: Callable, *arguments: object) -> object:
            left = max(self._deadline - time.monotonic(), 0.001)
            seconds = min(limit, left)
            if limit < left:
                words = model_file.took_too_long(request.model["uri"], f"{seconds:.3g}")
                failure = TrainingError("ModelTimeout", words)
            else:
                failure = TrainingError("DeadlineExceeded", f"loading the {what} took over {seconds:.3g} s")
            loading = {
                "event": "loading",
                "serial": serial,
                "what": what,
                "until": time.monotonic() + seconds,
            }
            ipc.send(self._function, {**loading, **failure.as_dict()})

            def give_up(*_: object) -> None:
                # Not an exception: the code that hangs could catch it.
                ipc.send(self._function, {"event": "failed", "serial": serial, "last": True, **failure.as_dict()})
                os._exit(1)

            signal.signal(signal.SIGALRM, give_up)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                return load(*arguments)
            except TrainingError:
                raise
            except MemoryError as error:
                raise TrainingError("OutOfMemory", f"no memory while loading the {what}") from error
            except BaseException as error:
                raise TrainingError("Internal", f"loading the {what}: {type(error).__name__}: {error}") from error
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        model = bounded(
            "model",
            request.model_seconds,
            self._cache.model,
            request.model,
        )
        dataset = bounded("data", float("inf"), self._cache.data, request.data)
        return model, dataset

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
        self._child = None
        self._deadline = float("inf")
        kills = linux.cgroup_oom_kills()
        ipc.send(
            self._function,
            {
                "event": "ended",
                "serial": self._serial,
                "cause": self._cause,
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                "exit_status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                "out_of_memory": kills is not None and self._oom_kills is not None and kills > self._oom_kills,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "max_rss_gib": usage.ru_maxrss / 2**20,
            },
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
    """Be the zygote of the function behind --fd."""
    parser = argparse.ArgumentParser(prog="python -m training.serving.zygote", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--fd", type=int, required=True, help="the descriptor of the function's socket")
    parser.add_argument("--liveness", type=int, required=True, help="die when the other end of this pipe is closed")
    options = parser.parse_args()
    os.setsid()
    linux.die_with_pipe(options.liveness)
    try:
        seconds = import_framework()
    except Exception as error:
        failure = TrainingError(
            "Internal", f"the function cannot import what it needs: {type(error).__name__}: {error}"
        )
        with socket.socket(fileno=options.fd) as function:
            ipc.send(function, {"event": "unable", **failure.as_dict()})
        raise
    serve(options.fd, seconds)


if __name__ == "__main__":
    main()
