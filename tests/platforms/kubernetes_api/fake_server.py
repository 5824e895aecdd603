"""A server on loopback that answers as an API server does, for those whose login it accepts, and kubeconfigs for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from coach.platforms.kubernetes_api.client import Api

#: The tests' clock begins here, in seconds since 1970.
START = 1_800_000_000.0


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


class FakeServer:
    """`accepted` are the values of Authorization that are let in; `answers` are given first, one for each request."""

    def __init__(self, *accepted: str) -> None:
        self.accepted = set(accepted)
        self.answers: list[web.Response] = []
        self.requests: list[str] = []
        self.watching: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.url = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "")
        certificate = request.transport and request.transport.get_extra_info("peercert")
        if certificate:
            shown = dict(pair for ((pair),) in certificate["subject"])["commonName"]
        self.requests.append(shown)
        if self.answers:
            return self.answers.pop(0)
        if shown not in self.accepted:
            return refusal(401, "Unauthorized")
        if request.path.endswith("/portforward"):
            socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
            await socket.prepare(request)
            await socket.close()
            return socket
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.watching.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    @contextlib.asynccontextmanager
    async def running(self, context: ssl.SSLContext | None = None) -> AsyncIterator[FakeServer]:
        """For the length of a block, at `url`."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            for _ in range(10):
                self.watching.put_nowait(None)
            await runner.cleanup()


def refusal(status: int, reason: str, **headers: str) -> web.Response:
    """An error as the API server words it."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": status}
    return web.json_response(body, status=status, headers=headers)


def kubeconfig(path: Path, url: str, user: dict[str, Any], **cluster: Any) -> None:
    """Write a kubeconfig with one context `c` of one user `u`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": url, **cluster}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))


class Plugin:
    """An exec plugin that counts how often it is run and says what the test wrote last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = folder / "plugin"
        self.does("cat answer")
        self._program.chmod(0o755)

    def does(self, commands: str) -> None:
        """What it does from now on, in a shell."""
        self._program.write_text(f"#!/bin/sh\ncd {self._folder}\necho >> runs\n{commands}\n")

    def says(self, **status: str) -> None:
        """What it gives from now on."""
        answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        (self._folder / "answer").write_text(json.dumps(answer))

    @property
    def runs(self) -> int:
        file = self._folder / "runs"
        return file.read_text().count("\n") if file.exists() else 0

    @property
    def user(self) -> dict[str, Any]:
        """The user of a kubeconfig that names it."""
        version = "client.authentication.k8s.io/v1"
        return {"exec": {"apiVersion": version, "command": "./plugin", "interactiveMode": "Never"}}


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of `name`, signed by itself, valid for 127.0.0.1, and its key."""
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}"
    command += f" -addext subjectAltName=IP:127.0.0.1 -out {paths[0]} -keyout {paths[1]}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return paths


async def until(done: Callable[[], bool]) -> None:
    """Wait for what the server or the client does in between."""
    async with asyncio.timeout(120):
        while not done():
            await asyncio.sleep(0.01)


async def things(api: Api) -> int:
    """How many things there are: a request."""
    return len((await api.get("/api/v1/namespaces/default/things"))["items"])
