"""What a program sends: Kubeflow's TrainJob status (KEP-2779), or the requests of `coach_program.py`.

Trainers with Kubeflow's protocol POST `{"trainerStatus": {"metrics": [{"name": ..., "value": ...}, ...]}}`, with the
bearer token in the file that KUBEFLOW_TRAINER_SERVER_TOKEN names. transformers' Trainer does so by itself.
`coach_program.py` sends `{"values": {...}}`, an epoch among them, and `{"asks": true}`, and gets
`{"stop": ..., "checkpoint": ...}`; to `{"group": true}`, its call of `group_changed`, it also gets `{"group": ...}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import json
import mmap
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import certifi

#: Bytes of a request.
LONGEST_REQUEST = 64 << 10
#: Requests that are taken: as many at once, and so many a second on the average.
BURST, PER_SECOND = 20, 10.0
#: Connections at once; seconds that one may last.
MAX_CONNECTIONS, CONNECTION_SECONDS = 8, 5.0
#: Seconds that a call of `group_changed` waits before it is made again.
GROUP_SECONDS = 2.0
#: Seconds between two checkpoints that a program is asked for.
CHECKPOINT_SECONDS = 300.0
#: Bytes of a token.
TOKEN_BYTES = 32


class Flags(ctypes.Structure):
    """What the processes around a program say to each other about its end, in memory that they share."""

    _fields_ = (("stop", ctypes.c_bool), ("asks", ctypes.c_bool))
    stop: bool  #: whether the program is to end
    asks: bool  #: whether it asks if it is to end: then it need not be interrupted

    @classmethod
    def shared(cls) -> Flags:
        """With the processes that are forked from now on."""
        return cls.from_buffer(mmap.mmap(-1, ctypes.sizeof(cls)))


def metrics_of(request: Mapping[str, Any]) -> dict[str, object] | None:
    """The metrics in a TrainJob's status; None where it is none."""
    trainer = request.get("trainerStatus")
    metrics = trainer.get("metrics") or [] if isinstance(trainer, dict) else None
    if not isinstance(metrics, list):
        return None
    return {
        str(metric["name"]): metric["value"]
        for metric in metrics
        if isinstance(metric, dict) and {"name", "value"} <= metric.keys()
    }


class GroupCalls:
    """Passes on a program's calls of `group_changed`, one at a time: `ask` does, and a line in `answers` answers."""

    def __init__(self, answers: int, ask: Callable[[], None]) -> None:
        self._answers, self._ask = os.fdopen(answers), ask
        self._lock, self._open = threading.Lock(), False

    def __call__(self) -> dict[str, Any]:
        """The answer; `wait` where there is none yet, and the same call is to be made again."""
        with self._lock:
            if not self._open:
                self._open = True
                self._ask()
            if not select.select([self._answers], [], [], GROUP_SECONDS)[0]:
                return {"wait": True}
            self._open = False
            found: dict[str, Any] = json.loads(self._answers.readline())
            return found


class Sender:
    """One program whose requests are taken. `take` is called with `status` or `report` and a record, by any thread.

    Without `calls` its group never changes.
    """

    def __init__(
        self,
        flags: Flags,
        take: Callable[[str, Mapping[str, Any]], None],
        calls: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.flags = flags
        self.take = take
        self.calls = calls
        self._lock = threading.Lock()
        self._tokens, self._at = float(BURST), time.monotonic()
        self._checkpoint = time.monotonic() + CHECKPOINT_SECONDS

    def in_time(self) -> bool:
        """Whether no more requests come than are taken."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(float(BURST), self._tokens + PER_SECOND * (now - self._at)) - 1.0
            self._at = now
            if self._tokens < 0.0:
                self._tokens += 1.0
                return False
            return True

    def asked(self) -> dict[str, bool]:
        """What is asked of the program: to end, and once in a while to write a checkpoint."""
        with self._lock:
            checkpoint = time.monotonic() >= self._checkpoint
            if checkpoint:
                self._checkpoint = time.monotonic() + CHECKPOINT_SECONDS
            return {"stop": self.flags.stop, "checkpoint": checkpoint}


#: Who sends a request with this header `Authorization`; None where it may not. Called by several threads.
SenderOf = Callable[[str], Sender | None]


def only(token: str, sender: Sender) -> SenderOf:
    """Who has the token is this program."""
    expected = f"Bearer {token}".encode()
    return lambda shown: sender if hmac.compare_digest(shown.encode(errors="replace"), expected) else None


class StatusServer(ThreadingHTTPServer):
    """Takes the requests of programs, each with its own token."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, sender_of: SenderOf, connections: int = MAX_CONNECTIONS) -> None:
        super().__init__(listening.getsockname(), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.sender_of = sender_of
        self._room = threading.Semaphore(connections)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own; a connection too many is closed."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection, which is cut off when it lasts too long."""
        end = threading.Timer(CONNECTION_SECONDS, _cut_off, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off is no concern of anybody else."""


def _cut_off(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: StatusServer
    timeout = CONNECTION_SECONDS

    def do_POST(self) -> None:
        sender = self.server.sender_of(self.headers.get("Authorization", ""))
        if sender is None:
            return self._answer(401, {"error": "not the token of this program"})
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > LONGEST_REQUEST:
            return self._answer(413, {"error": f"a request has at most {LONGEST_REQUEST} bytes"})
        try:
            request = json.loads(self.rfile.read(int(length)))
            if not isinstance(request, dict):
                raise ValueError
        except (ValueError, RecursionError):
            request = None
        if request is not None and request.get("group"):  # its answer takes time: no more come than are taken
            return self._answer(200, {**sender.asked(), "group": sender.calls()})
        if not sender.in_time():
            return self._answer(429, {"error": f"at most {PER_SECOND:g} requests a second"})
        if request is None:
            return self._answer(400, {"error": "not a JSON object"})
        metrics = metrics_of(request)
        if metrics is not None:
            sender.take("status", metrics)
            return self._answer(200, {})
        if isinstance(request.get("values"), dict):
            sender.take("report", request["values"])
        if request.get("asks"):
            sender.flags.asks = True
        return self._answer(200, sender.asked())

    def _answer(self, code: int, what: Mapping[str, object]) -> None:
        body = json.dumps(what).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


class Offer:
    """The address and the token of a program's status server, which listens from now on; `close` takes both back."""

    def __init__(self, token_file: Path) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._file = token_file
        self._port = self.listening.getsockname()[1]
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(self.token)

    def env(self, before: Mapping[str, str]) -> dict[str, str]:
        """What Kubeflow says to a trainer, which sends nothing to this machine by a proxy. `before`: what it had."""
        direct = {name: ",".join(filter(None, (before.get(name), "127.0.0.1"))) for name in ("no_proxy", "NO_PROXY")}
        return direct | {
            "KUBEFLOW_TRAINER_SERVER_URL": f"http://127.0.0.1:{self._port}/status",
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self._file),
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": certifi.where(),
        }

    def close(self) -> None:
        """No other process takes its requests from now on."""
        self._file.unlink(missing_ok=True)
