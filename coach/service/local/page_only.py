"""The page of a state folder's jobs without a service: it changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
from collections.abc import Callable

from coach.handler.state.state_directory import StateDirectory
from coach.service.bind import answering, listen
from coach.service.http_app import make_app
from coach.service.local.read_only import ReadOnlyService


def serve_page(home: StateDirectory, port: int, ready: Callable[[str, str], None]) -> int:
    """Serve it on loopback; the exit code. `ready` is called with the URL and a login code.

    Raises UserError where there are no jobs, or the port is taken.
    """
    with contextlib.closing(ReadOnlyService(home)) as service, listen("127.0.0.1", port) as listening:
        asyncio.run(_serve(service, listening, ready))
    return 0


async def _serve(service: ReadOnlyService, listening: socket.socket, ready: Callable[[str, str], None]) -> None:
    port = listening.getsockname()[1]
    # Nothing but the browser calls it, so its token is for this process alone.
    app = make_app(service, secrets.token_urlsafe(32), port=port)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    looking = asyncio.create_task(service.look())
    async with answering(service, app, listening) as answers:
        ready(f"http://127.0.0.1:{port}", app.state.logins.code())
        ends = {answers, looking, asyncio.create_task(stopped.wait())}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
