"""The command of a host: see the package. Exit codes are the constants below."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coach.platforms.local.host import config as configuration
from coach.platforms.local.host.logs import FunctionLog
from coach.platforms.local.host.pool import Pool
from coach.platforms.local.host.worker import Worker, WrapperNotStarted

if TYPE_CHECKING:
    import uvicorn

EXIT_WRAPPER_DIED = 2  # what Go's panic ends the real processor with
EXIT_FUNCTION_FAILED = 3  # the function cannot be loaded, or its init_context raised
EXIT_ADDRESS = 69  # EX_UNAVAILABLE: an address is in use or not of this machine
EXIT_CONFIG = 78  # EX_CONFIG
EXIT_PARENT_DIED = 75


def main(argv: list[str] | None = None) -> int:
    """Run one host until it is told to stop."""
    args = _parse(argv)
    announce = _Announcer(args.ready_fd)
    try:
        config = configuration.read(args.config, args.platform_config)
    except configuration.ConfigError as error:
        return announce.failure(EXIT_CONFIG, str(error))
    if args.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in args.cpus.split(",")})
    try:
        sockets = [_bind(address) for address in (config.address, config.health_address) if address]
    except OSError as error:
        return announce.failure(EXIT_ADDRESS, error.args[0])
    log = FunctionLog(args.log_file, config.name, args.log_bytes)
    return asyncio.run(_Host(config, log, sockets, announce, args.parent_fd).run())


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="coach.platforms.local.host", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the function's processor.yaml")
    parser.add_argument("--platform-config", type=Path, help="platform.yaml")
    parser.add_argument("--parent-fd", type=int, metavar="FD", help="end when this pipe closes (0: standard input)")
    parser.add_argument("--ready-fd", type=int, metavar="FD", help="write one JSON line here when ready or failed")
    parser.add_argument("--cpus", metavar="0,1", help="run the host and its function on these cores only")
    parser.add_argument("--log-file", type=Path, help="write the function's log here instead of standard output")
    parser.add_argument("--log-bytes", type=int, default=4 * 1024 * 1024, help="size at which the log file is rotated")
    return parser.parse_args(argv)


def _bind(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        # Bound but not listening would let a second host bind too: of two hosts on one address the later must fail.
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {address[0]}:{address[1]} ({os.strerror(error.errno or 0)})") from None
    return sock


class _Announcer:
    """Tells whoever started the host how it went, once."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def ready(self, pids: list[int | None]) -> None:
        self._write({"ready": True, "wrappers": pids})

    def failure(self, code: int, message: str) -> int:
        sys.stderr.write(f"host: {message}\n")
        self._write({"error": message, "code": code})
        return code

    def _write(self, message: dict[str, object]) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, json.dumps(message).encode() + b"\n")
                if self._fd > 2:
                    os.close(self._fd)
            self._fd = None


class _Host:
    """One function from start to end."""

    def __init__(
        self,
        config: configuration.HostConfig,
        log: FunctionLog,
        sockets: list[socket.socket],
        announce: _Announcer,
        parent_fd: int | None,
    ) -> None:
        self._config, self._log, self._sockets, self._announce = config, log, sockets, announce
        self._parent_fd = parent_fd
        self._pool: Pool | None = None
        self._workers: list[Worker] = []

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if self._parent_fd is not None:
            loop.add_reader(self._parent_fd, self._on_parent)
        self._workers = [Worker(self._config, index, self._log) for index in range(self._config.workers)]
        self._pool = Pool(self._workers)
        try:
            for worker in self._workers:
                worker.spawn()
            server = self._server()  # imported while the wrappers start
            serving = loop.create_task(server.serve(sockets=self._sockets))
            await asyncio.gather(*(worker.ready() for worker in self._workers))
        except WrapperNotStarted as error:
            return await self._fail(EXIT_FUNCTION_FAILED, str(error))
        self._pool.open()
        self._announce.ready([worker.pid for worker in self._workers])
        self._log.write("info", "ready", more={"address": "{}:{}".format(*self._config.address)})
        stopping = loop.create_task(stop.wait())
        died = [worker.died for worker in self._workers]
        await asyncio.wait([stopping, self._pool.failed, *died], return_when=asyncio.FIRST_COMPLETED)
        for worker in self._workers:
            if worker.died.done():
                await asyncio.sleep(0.02)  # the call in hand still gets its answer
                message = f"the wrapper of worker {worker.id} ended by itself ({worker.died.result()})"
                return await self._fail(EXIT_WRAPPER_DIED, message)
        if self._pool.failed.done():
            return await self._fail(EXIT_FUNCTION_FAILED, self._pool.failed.result())
        self._pool.close()
        await asyncio.gather(*(worker.terminate(self._config.termination_timeout) for worker in self._workers))
        server.should_exit = True
        await serving
        return 0

    def _server(self) -> "uvicorn.Server":
        import uvicorn

        from coach.platforms.local.host.app import Application

        class Server(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # signals are the host's

        assert self._pool is not None
        return Server(
            uvicorn.Config(
                Application(self._config, self._pool),  # type: ignore[arg-type]
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=3600,
                timeout_graceful_shutdown=1,
            )
        )

    async def _fail(self, code: int, message: str) -> int:
        self._log.write("error", message)
        await asyncio.gather(*(worker.kill() for worker in self._workers))
        return self._announce.failure(code, message)

    def _on_parent(self) -> None:
        assert self._parent_fd is not None
        if os.read(self._parent_fd, 4096):
            return
        for worker in self._workers:
            worker.kill_group()
        os._exit(EXIT_PARENT_DIED)


if __name__ == "__main__":
    sys.exit(main())
