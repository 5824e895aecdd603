"""A function's own process: answers the operations of training/function.py over HTTP, and keeps the function's log.

On one machine it is forked from a template (training/serving/template.py), with an `Order`, and listens at a Unix
socket in a folder of its user's own. In a container it is the first process, `python -m training.serving.serve worker`,
and answers who shows its key (training/keys.py). Under Nuclio the processor and its Python wrapper take its place, and
call nuclio.py.

One request at a time is answered, each by a thread of its connection; others wait. Health is answered at any time. Only
this process has threads: zygotes, which fork, come from the template or are programs of their own. SIGTERM ends it when
the request in hand is answered; a member of an elastic group first leaves it, or ends its epoch, as the handler says.
Its zygote and the member of a group end with it, however it ends.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NoReturn

from training import keys, linux
from training.function import Function
from training.serving.log import Log

ROLES = ("worker", "server", "scheduler")
#: Paths that say that the function is there; the last one is where Nuclio's readiness probe asks.
HEALTH = ("/live", "/ready", "/__internal/health")
#: Bytes of a request, as functions/*/function.yaml has it for Nuclio.
LARGEST_REQUEST = 4 << 20
#: Seconds that the request in hand has when the function is to end.
GRACE_SECONDS = 5.0
#: Seconds without a request after which a member of an elastic group waits no longer for the handler.
QUIET_SECONDS = 3.0
#: Seconds after which a connection without a request is closed, and in which one must have shown the key.
KEEP_ALIVE_SECONDS, STRANGER_SECONDS = 3600, 5.0
#: Connections at once.
CONNECTIONS = 64


class CannotStart(Exception):
    """An address is taken, or a place to run in is not there; the message is one line."""


@dataclass(frozen=True)
class Order:
    """What to serve, and where: addresses are `host:port`. `health` answers HEALTH alone.

    With the path of a Unix `socket` it is asked there, and keeps others from its address; else who has the `key` asks.
    `log` is a file, by default what was the standard output. `network` is the path of a network namespace. After
    `idle_seconds` without a request the function ends: its handler is gone. `env`: variables that it and its zygotes
    have, such as which GPUs they see.
    """

    role: str
    name: str
    address: str
    socket: str | None = None
    key: str = ""
    log: str | None = None
    health: str | None = None
    cpus: list[int] | None = None
    network: str | None = None
    idle_seconds: float | None = None
    env: dict[str, str] = field(default_factory=dict)


class _Health(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body of an answer leave together

    def setup(self) -> None:
        """A connection lasts for a moment, unless it is the handler's."""
        self.disable_nagle_algorithm = self.server.address_family == socket.AF_INET
        super().setup()
        self._stranger = threading.Timer(STRANGER_SECONDS, self._cut_off)
        self._stranger.daemon = True
        self._stranger.start()

    def _cut_off(self) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """The connection is over."""
        self._stranger.cancel()
        super().finish()

    def do_GET(self) -> None:
        """Whether the function is there."""
        self.answer(200 if self.path.partition("?")[0] in HEALTH else 404, b"{}")

    def answer(self, status: int, body: bytes) -> None:
        """Send an answer: JSON, or text where the function failed."""
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if status == 500 else "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


class _Operations(_Health):
    def do_POST(self) -> None:
        """Answer one operation, to who may ask for it; of others nothing more is read."""
        if not self.server.answers(self.headers.get(keys.HEADER)):
            self.close_connection = True
            self.answer(403, json.dumps(keys.refusal()).encode())
            return
        self._stranger.cancel()
        self.connection.settimeout(KEEP_ALIVE_SECONDS)
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST_REQUEST:
            self.close_connection = True
            self.answer(413 if length.isdigit() else 411, b"{}")
            return
        body = self.rfile.read(int(length))
        with self.server.in_hand:  # until its answer has left
            self.answer(*self.server.handle(body))


class _Server(socketserver.ThreadingTCPServer):
    """Listens at once, and answers from `start` on."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: str, handler: type[_Health], path: str | None = None) -> None:
        host, _, port = address.rpartition(":")
        where = host, int(port)
        self._room = threading.Semaphore(CONNECTIONS)
        try:
            if path is not None:
                self._kept = socket.socket()
                self._kept.bind(where)  # no other function takes its address; nothing can connect to it
                self.address_family = socket.AF_UNIX
                Path(path).unlink(missing_ok=True)  # of one that had this address before
            super().__init__(where if path is None else path, handler)
        except OSError as error:
            raise CannotStart(f"cannot listen on {address} ({error.strerror})") from None

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, args=(3600,), daemon=True).start()

    def process_request(self, request: socket.socket, client_address: object) -> None:
        """In a thread of its own; a connection too many is closed."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:
        """One connection, to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, *_: object) -> None:
        """A caller that goes away is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()


class _FunctionServer(_Server):
    """Answers operations, one at a time: `in_hand` is held meanwhile."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.address, _Operations, order.socket)
        self._key = None if order.socket else order.key
        self.in_hand = threading.Lock()
        self.last_request = time.monotonic()
        self.function: Function | None = None  # both are there when it starts
        self.log: Log | None = None

    def answers(self, shown: str | None) -> bool:
        """Whether it answers who shows this as the key."""
        return self._key is None or keys.fits(shown, self._key)

    def wait_until_left(self) -> None:
        """Answer requests until this member has left its elastic group, or the epoch has ended."""
        while time.monotonic() - self.last_request < QUIET_SECONDS:
            with self.in_hand:
                if not self.function.leaves:
                    return
            time.sleep(0.05)

    def handle(self, body: bytes) -> tuple[int, bytes]:
        """Status and body. What was printed before, such as the traceback of a failure, is in the log then."""
        self.last_request = time.monotonic()
        try:
            status, answer = self.function.handle(body)
            return status, json.dumps(answer).encode()
        except Exception:
            traceback.print_exc()
            return 500, traceback.format_exc().encode()
        finally:
            self.log.drain()


def run(order: Order, ready: Callable[[], object] = lambda: None) -> NoReturn:
    """Serve, after a call of `ready`, until SIGTERM or for `idle_seconds` without a request. Raises CannotStart."""
    _enter(order)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt below
    if os.getpid() == 1:  # of a container: orphans, such as the child of a killed zygote, become its own
        signal.signal(signal.SIGCHLD, lambda *_: linux.bury(1, frozenset()))
    servers = [_Server(order.health, _Health)] if order.health else []
    server = _FunctionServer(order)
    log = Log(order.name, Path(order.log) if order.log else None)
    status = 0
    try:
        server.function, server.log = Function(order.role), log
        for each in (server, *servers):
            each.start()
        log.write("info", "ready")
        ready()
        _wait(server, order.idle_seconds)
        log.write("warning", f"no request for {order.idle_seconds:g} s: its handler is gone; ending")
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.wait_until_left()
    except BaseException:
        traceback.print_exc()
        status = 1
    server.in_hand.acquire(timeout=GRACE_SECONDS)
    log.close()
    os._exit(status)


def _enter(order: Order) -> None:
    """Move to the cores and into the network of the order, while there is one thread."""
    try:
        if order.cpus:
            os.sched_setaffinity(0, order.cpus)
        if order.network:
            linux.join_network(order.network)
    except OSError as error:
        where = f"network {order.network}" if order.network else f"cores {order.cpus}"
        raise CannotStart(f"cannot run in {where} ({error.strerror})") from None


def _wait(server: _FunctionServer, idle_seconds: float | None) -> None:
    """Return when no request has come for so long."""
    while idle_seconds is None:
        signal.pause()
    while (left := server.last_request + idle_seconds - time.monotonic()) > 0:
        time.sleep(min(left, 1.0))


def main() -> int:
    """Be the function of a container."""
    parser = argparse.ArgumentParser(prog="python -m training.serving.serve", description=__doc__.split("\n", 1)[0])
    role = os.environ.get("COACH_ROLE", "")
    parser.add_argument("role", nargs="?", choices=ROLES, default=role, help="which function; default: COACH_ROLE")
    parser.add_argument("--host", default="0.0.0.0", help="the address of both ports; default: all")  # noqa: S104
    parser.add_argument("--port", type=int, default=8080, help="of the function")
    parser.add_argument("--health-port", type=int, default=8082, help="of /live and /ready")
    parser.add_argument("--idle-seconds", type=float, help="end when no request came for so long")
    options = parser.parse_args()
    try:
        if not (key := keys.own()):
            raise CannotStart(f"{keys.VARIABLE} is not set: it answers only who shows its key")
        run(
            Order(
                options.role,
                os.environ.get("NUCLIO_FUNCTION_NAME") or f"coach-{options.role}",  # in the log
                f"{options.host}:{options.port}",
                key=key,
                health=f"{options.host}:{options.health_port}",
                idle_seconds=options.idle_seconds,
            )
        )
    except CannotStart as error:
        sys.stderr.write(f"function: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
