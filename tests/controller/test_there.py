"""A cluster's operations from outside: what is seen here and there is the same, and what a user may not do is said."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from coach.cli.main import invoke
from coach.handler import endpoint
from coach.handler.state.state_directory import StateDirectory
from coach.service.client import service_of
from tests.cli.conftest import keep
from tests.report.recorded_jobs import steady_job
from tests.service.conftest import home  # noqa: F401 - a fixture
from tests.service.test_serve import served

pytestmark = pytest.mark.processes

POD = {
    "metadata": {"name": "coach-handler-0", "labels": {"coach.dev/leader": "coach-handler"}},
    "spec": {
        "containers": [{"name": "handler", "ports": [{"name": "http", "containerPort": 8421}]}],
        "volumes": [{"name": "token", "secret": {"secretName": "its-token"}}],
    },
    "status": {"phase": "Running"},
}


class ApiServer:
    """An API server in a thread, with a handler's pod whose port is that of a service on this machine."""

    def __init__(self, service: endpoint.Endpoint) -> None:
        self.service = service
        self.pods: list[Any] = [POD]
        self.forbidden: set[str] = set()
        self.patched: list[tuple[str, Any]] = []
        self.asked: set[str] = set()
        self.url = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        what = request.path.rpartition("/")[2] if request.path.endswith("portforward") else request.path.split("/")[5]
        self.asked.add(what)
        if what in self.forbidden:
            words = {"kind": "Status", "reason": "Forbidden", "message": f"{what} is forbidden", "code": 403}
            return web.json_response(words, status=403)
        if what == "portforward":
            return await self._forward(request)
        if what == "pods":
            return web.json_response({"items": self.pods})
        if what == "secrets" and request.path.endswith("/its-token"):
            return web.json_response({"data": {"token": base64.b64encode(self.service.token.encode()).decode()}})
        self.patched.append((request.path, await request.json()))
        return web.json_response({})

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        for stream in (0, 1):
            await socket.send_bytes(bytes([stream]) + struct.pack("<H", int(request.query["ports"])))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.service.url.rpartition(":")[2]))

        async def back() -> None:
            while data := await reader.read(1 << 16):
                await socket.send_bytes(b"\0" + data)

        answering = asyncio.create_task(back())
        async for message in socket:
            writer.write(message.data[1:])
        answering.cancel()
        writer.close()
        return socket

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield
        await runner.cleanup()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

        async def main() -> None:
            async with self._running():
                ready.set()
                await over.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
        thread.start()
        assert ready.wait(30)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join()
            loop.close()


@pytest.fixture
def api(home: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:  # noqa: F811
    """A cluster whose handler's service has one job that has ended, the context `dev` of the kubeconfig."""
    keep(home, steady_job())
    with served(tmp_path, "0"):
        found = endpoint.find(home)
        assert found is not None
        api = ApiServer(found)
        with api.running():
            file = tmp_path / "config"
            cluster = {"name": "c", "cluster": {"server": api.url}}
            context = {"name": "dev", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}
            user = {"name": "u", "user": {"token": "of a user"}}
            file.write_text(yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": [user]}))
            monkeypatch.setenv("KUBECONFIG", str(file))
            yield api


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code of a command, and what it printed."""
    code = invoke(words)
    out, err = capsys.readouterr()
    return code, re.sub(r'"seq": \d+', "", out + err)  # here it counts the records of all journals


def test_each_command_says_there_what_it_says_here(
    api: ApiServer,
    capsys: pytest.CaptureFixture[str],
    home: StateDirectory,  # noqa: F811
) -> None:
    for command in (
        "ps", "ps -o json", "ps -o csv", "why steady", "show steady", "show steady -o csv", "events steady -o csv",
        "logs steady", "compare steady", "budget list", "budget report", "prune --dry-run", "show nothing",
        "cancel steady", "model steady --epoch 99", "why nothing",
    ):  # fmt: skip
        here = said(capsys, *command.split())
        assert said(capsys, "--context", "dev", *command.split()) == here, command
    assert "exec" not in api.asked
    with service_of(home) as client:
        assert client.job("steady").job.state == "Succeeded"


def test_what_changes_a_job_is_written_into_its_object(api: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--context", "dev", "resume", "steady")[0] == 0
    assert api.patched == [("/apis/coach.dev/v1alpha1/namespaces/ml/trainingjobs/steady", {"spec": {"suspend": False}})]
    code, words = said(capsys, "--context", "dev", "resume", "steady", "--add-budget", "1")
    assert code == 2 and "kubectl edit trainingjob steady" in words


@pytest.mark.parametrize(
    ("right", "words"),
    [
        ("pods", "pods is forbidden"),
        ("secrets", "the API of the handler needs the token in Secret ml/its-token"),
        ("portforward", "you may not reach ports of pod ml/coach-handler-0"),
    ],
)
def test_a_right_that_is_missing_is_named(
    api: ApiServer, capsys: pytest.CaptureFixture[str], right: str, words: str
) -> None:
    api.forbidden.add(right)
    code, found = said(capsys, "--context", "dev", "ps")
    assert code != 0 and words in found


def test_without_a_handler_that_is_said(api: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    api.pods = []
    code, words = said(capsys, "--context", "dev", "ps")
    assert code == 2 and "no handler of Coach runs in namespace ml" in words
