"""The command of a host: see the package. Exit codes are the constants below.

With `--spare` a host first imports all it needs and starts a wrapper that does the same; then it waits for one line
on `--parent-fd`, which says what to become: `{"arguments": [...], "env": {...}, "cwd": "...", "output": "..."}`. From
there on it is a host that was started with these arguments, in that environment and folder, its output in that file.
"""

import argparse
import asyncio
import contextlib
import ctypes
import functools
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from coach.platforms.local.host import config as configuration
from coach.platforms.local.host.idle_wrapper import BareWrapper
from coach.platforms.local.host.logs import FunctionLog
from coach.platforms.local.host.pool import Pool
from coach.platforms.local.host.process import WrapperNotStarted

if TYPE_CHECKING:
    import uvicorn

    from coach.platforms.local.host.app import Application

EXIT_CONFIG = 1  # as the real processor: a file, a value or the functions' Python cannot be used
EXIT_WRAPPER_DIED = 2  # as Go's panic ends the real one: a wrapper ended, or could not load its function
EXIT_ADDRESS = 69  # EX_UNAVAILABLE: an address is in use or not of this machine
EXIT_SPARE_BROKEN = 70  # EX_SOFTWARE: its wrapper ended before it became anything
EXIT_PARENT_DIED = 75  # EX_TEMPFAIL

_CLONE_NEWNET = 0x40000000  # Linux; Python names it since 3.12
_GRACE = 5.0
"""Seconds an event in hand has beyond workerTerminationTimeout; Nuclio sleeps them, the host ends when it can."""


def main(argv: list[str] | None = None) -> int:
    """Run one host until a signal ends it."""
    args = _parse(argv)
    announce = _Announcer(args.ready_fd)
    bare = None
    if args.spare:
        bare = BareWrapper(os.environ["NUCLIO_PYTHON_EXE_PATH"])
        _server_settings()  # imports the HTTP server while the wrapper starts
        announce.spare()
        args = _become(args, bare)
    try:
        config = configuration.read(args.config, args.platform_config)
    except configuration.ConfigError as error:
        return announce.failure(EXIT_CONFIG, str(error))
    try:
        if args.cpus:
            os.sched_setaffinity(0, {int(cpu) for cpu in args.cpus.split(",")})
    except (ValueError, OSError) as error:
        return announce.failure(EXIT_CONFIG, f"--cpus {args.cpus}: cannot run there ({error})")
    try:
        if args.network:
            _enter(args.network)
    except OSError as error:
        return announce.failure(EXIT_CONFIG, f"--network {args.network}: cannot enter it ({error.strerror})")
    try:
        function = _bind(config.address)
        health = _bind(config.health_address) if config.health_address else None
    except OSError as error:
        return announce.failure(EXIT_ADDRESS, error.args[0])
    log = FunctionLog(args.log_file, config.name, args.log_bytes)

    async def run() -> int:
        made = _Host(config, log, announce, args.parent_fd, bare, args.idle_seconds)
        return await made.run(function, health)

    return asyncio.run(run())


def _become(args: argparse.Namespace, bare: BareWrapper) -> argparse.Namespace:
    """Wait for the line that makes a spare a host; the arguments of that host. Ends with the parent or the wrapper."""
    wrapper = os.pidfd_open(bare.process.pid)
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([args.parent_fd, wrapper], [], [])
        if wrapper in ready:
            os._exit(EXIT_SPARE_BROKEN)
        more = os.read(args.parent_fd, 65536)
        if not more:
            os._exit(EXIT_PARENT_DIED)  # the wrapper's lifeline ends with this process
        line += more
    os.close(wrapper)
    order = json.loads(line)
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    become = _parse(order["arguments"])
    become.parent_fd, become.ready_fd = args.parent_fd, args.ready_fd
    return become


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="coach.platforms.local.host", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, help="the function's processor.yaml")
    what.add_argument("--spare", action="store_true", help="wait at --parent-fd for the function to become")
    parser.add_argument("--platform-config", type=Path, help="platform.yaml")
    parser.add_argument(
        "--parent-fd", type=int, metavar="FD", help="end when this pipe closes (0: standard input)"
    )
    parser.add_argument(
        "--ready-fd", type=int, metavar="FD", help="write one JSON line here when ready or failed"
    )
    parser.add_argument("--cpus", metavar="0,1", help="run the host and its function on these cores only")
    parser.add_argument(
        "--network", metavar="PATH", help="run the host and its function in this network namespace"
    )
    parser.add_argument(
        "--log-file", type=Path, help="write the function's log here instead of standard output"
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        metavar="S",
        help="end when no request came for so long: the handler is gone",
    )
    parser.add_argument(
        "--log-bytes", type=int, default=4 * 1024 * 1024, help="size at which the log file is rotated"
    )
    return parser.parse_args(argv)


def _enter(namespace: str) -> None:
    """Live in this network namespace from now on. Wrappers follow their host. Raises OSError."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)  # Python has os.setns since 3.12
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(descriptor)


def _bind(address: tuple[str, int]) -> socket.socket:
    # The protocol by number: without it asyncio does not switch Nagle's algorithm off, and answers take 40 ms.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise OSError(
            f"cannot listen on {address[0]}:{address[1]} ({os.strerror(error.errno or 0)})"
        ) from None
    return sock


class _Announcer:
    """Reports to the process that started the host whether it is ready or failed, once."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def spare(self) -> None:
        self._write({"spare": True}, last=False)

    def ready(self, pids: list[int]) -> None:
        self._write({"ready": True, "wrappers": pids})

    def failure(self, code: int, message: str) -> int:
        sys.stderr.write(f"host: {message}\n")
        self._write({"error": message, "code": code})
        return code

    def _write(self, message: dict[str, object], last: bool = True) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, json.dumps(message).encode() + b"\n")
                if last and self._fd > 2:
                    os.close(self._fd)
            if last:
                self._fd = None


class _Host:
    """One function from start to end."""

    def __init__(  # noqa: PLR0917
        self,
        config: configuration.HostConfig,
        log: FunctionLog,
        announce: _Announcer,
        parent_fd: int | None,
        bare: BareWrapper | None,
        idle_seconds: float | None,
    ) -> None:
        self._idle_seconds = idle_seconds
        self._config, self._log, self._announce, self._parent_fd = config, log, announce, parent_fd
        self._pool = Pool(config, log, bare)

    async def run(self, function: socket.socket, health: socket.socket | None) -> int:
        """Serve on the two bound sockets until a signal comes. Does not return when the function is lost."""
        loop = asyncio.get_running_loop()
        address = "{}:{}".format(*self._config.address)
        try:
            if self._parent_fd is not None:
                loop.add_reader(self._parent_fd, self._on_parent, self._parent_fd)
            self._pool.spawn()
        except OSError as error:
            self._end(EXIT_CONFIG, f"cannot start: {error}")
        servers = _Servers(self._config, self._pool)  # imports the HTTP server while the wrappers start
        try:
            if health is not None:
                await servers.start(health, servers.application.health)
            await self._pool.open()
            await servers.start(function, servers.application.function)
        except WrapperNotStarted as error:
            self._end(EXIT_WRAPPER_DIED, str(error))
        except OSError as error:  # another host took the address meanwhile
            self._end(EXIT_ADDRESS, f"cannot listen on {address} ({error.strerror})")
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        self._log.write("info", "ready", more={"address": address})
        self._announce.ready([worker.process.pid for worker in self._pool.workers if worker.process])
        waiting: list[asyncio.Future[Any]] = [loop.create_task(stop.wait()), self._pool.lost]
        if self._idle_seconds is not None:
            servers.application.last_request = time.monotonic()
            waiting.append(loop.create_task(self._idle(servers.application, self._idle_seconds)))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._pool.lost.done():
            self._end(EXIT_WRAPPER_DIED, self._pool.lost.result())
        await self._pool.close(self._config.termination_timeout + _GRACE)
        if not await servers.stop(timeout=1.0):
            os._exit(0)  # a call whose process was killed gets no answer: its connection is cut
        return 0

    async def _idle(self, application: "Application", seconds: float) -> None:
        """Return when no request has come for so long."""
        while (left := application.last_request + seconds - time.monotonic()) > 0:
            await asyncio.sleep(left)
        self._log.write("warn", f"no request for {seconds:g} s: its handler is gone; ending")

    def _end(self, code: int, message: str) -> NoReturn:
        """End at once, as a panic ends Nuclio's processor: connections are cut, nothing is left running."""
        self._pool.kill()
        self._log.write("error", message)
        os._exit(self._announce.failure(code, message))

    def _on_parent(self, fd: int) -> None:
        if not os.read(fd, 4096):
            self._pool.kill()
            os._exit(EXIT_PARENT_DIED)


def _server_settings() -> Callable[[Any], "uvicorn.Config"]:
    """uvicorn's settings for an application, with everything imported that serving needs."""
    import uvicorn

    import coach.platforms.local.host.app

    settings = functools.partial(
        uvicorn.Config,
        interface="asgi3",  # uvicorn does not see it of a method
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=3600,
    )
    settings(coach.platforms.local.host.app.Application).load()
    return settings


class _Servers:
    """uvicorn on the health address from the start, and on the function's once it is ready."""

    def __init__(self, config: configuration.HostConfig, pool: Pool) -> None:
        import uvicorn

        from coach.platforms.local.host.app import Application

        class Server(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # signals are the host's

        self.application = Application(config, pool)
        self._settings = _server_settings()
        self._make = Server
        self._running: list[tuple[uvicorn.Server, asyncio.Task[None]]] = []

    async def start(self, sock: socket.socket, application: Any) -> None:
        """Serve an ASGI application on a bound socket. Raises OSError."""
        sock.listen(128)
        server = self._make(self._settings(application))
        self._running.append((server, asyncio.get_running_loop().create_task(server.serve(sockets=[sock]))))
        while not server.started:
            await asyncio.sleep(0)

    async def stop(self, timeout: float) -> bool:
        """Finish the answers under way and close; False when some are left after `timeout` seconds."""
        for server, _ in self._running:
            server.should_exit = True
        _, left = await asyncio.wait([task for _, task in self._running], timeout=timeout)
        return not left


if __name__ == "__main__":
    sys.exit(main())
