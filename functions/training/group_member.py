"""One member of one group, in a process forked from the zygote. Its end is the group's end.

The main thread trains or serves; a second one listens to the liveness connection. Whatever ends this process, the
function sees the end of file on its socket, the group sees it on the liveness connection, and the zygote knows how it
happened.
"""

import os
import socket
import sys
import traceback
from functools import partial
from typing import NoReturn

from training import backend, linux, servers
from training.connections.liveness import Hub, Member
from training.elastic import hub
from training.elastic.line import Line
from training.elastic.worker import ElasticWorker
from training.errors import TrainingError
from training.model import model_file
from training.reporter import Loaded, Reporter
from training.request import StartRequest
from training.worker import Worker


def run(request: StartRequest, loaded: Loaded, function: socket.socket) -> NoReturn:
    """Be the member that `request` describes, until its group has left. Never returns."""
    reporter = Reporter(function, request.epoch)
    liveness: Hub | Member | Line | None = None

    def fail(error: BaseException) -> NoReturn:
        reporter.fail(traced(error, request), liveness)

    try:
        if request.memory is not None:
            linux.limit_memory(request.memory)
        linux.keep_freed_memory()
        kind = "elastic" if request.elastic else "fixed"
        if kind not in (can := backend.current().groups):
            message = f"elastic is {str(request.elastic).lower()} for {request.name}; groups here are {can[0]}"
            raise TrainingError("BadRequest", message)
        backend.current().limit_threads(request.threads)
        reporter.state("forming")
        if not request.elastic:
            make = Hub if request.role == "scheduler" else Member
            liveness = make(request, partial(_heard, reporter, request.role))
            group = backend.current().make_group(request)
            if request.role == "worker":
                Worker(request, loaded, group=group, liveness=liveness, reporter=reporter, function=function).run()
            else:
                group.serve()
        elif request.role == "scheduler":
            hub.Hub(request, reporter).serve(function)
        elif request.role == "server":
            servers.load("process").ServerProcess(request, reporter, function).serve()
        else:
            elastic = ElasticWorker(request, loaded, reporter=reporter, function=function, fail=fail)
            liveness = elastic.line
            elastic.run()
        sys.stderr.flush()
        os._exit(0)
    except BaseException as error:
        fail(error)


def _heard(reporter: Reporter, role: str, message: dict) -> None:
    """What a message of the liveness connection means to this member of a fixed group."""
    if "lost" in message:
        because = message.get("because", "its process ended")
        reporter.fail(TrainingError("PeerLost", f"{message['lost']} was lost: {because}"))
    elif role == "worker":
        return  # a worker knows the rest itself
    elif "joined" in message:
        reporter.progress(joined=message["joined"], members=message["of"])
    elif "formed" in message:
        reporter.state("training")
    elif "done" in message:
        reporter.served(message["done"])


def traced(error: BaseException, request: StartRequest) -> TrainingError:
    """As `as_training_error`; the traceback of what the user's code raised goes to stderr, which is the log."""
    known = as_training_error(error)
    text = model_file.of_user(error, request.model["uri"]) if request.model else ""
    if text:
        sys.stderr.write(text)
        sys.stderr.flush()
        known.traced = True
    return known


def as_training_error(error: BaseException) -> TrainingError:
    """Give every exception a reason."""
    if isinstance(error, TrainingError):
        return error
    if isinstance(error, MemoryError):
        return TrainingError("OutOfMemory", f"no memory: {error}".rstrip(": "))
    if isinstance(error, Exception) and (known := backend.current().failure(error)) is not None:
        return TrainingError(*known)
    traceback.print_exception(error)
    name, text = type(error).__name__, str(error)
    return TrainingError("Internal", text if text.startswith(f"{name}: ") else f"{name}: {text}")
