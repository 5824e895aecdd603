"""A service in this process, on a platform in memory, called over its ASGI interface."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from coach.handler.endpoint import API
from coach.handler.handler import Handler
from coach.handler.state.state_directory import StateDirectory
from coach.plugins import policy
from coach.service.http_app import make_app
from coach.service.operations import Service
from tests.core.lifecycle.faulty_cluster import spec
from tests.handler.fake_platform import CLUSTER, FakePlatform

URL = "http://coach"
TOKEN = "a token of the tests, long enough".replace(" ", "-")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDirectory:
    """An empty state folder; commands find it by COACH_HOME."""
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "model.py").write_text("def net(): ...\n")
    return StateDirectory(tmp_path / "home")


def job_text(*names: str, **changes: Any) -> str:
    """A job file: a job for each name, of four epochs unless `changes` say otherwise."""
    documents = []
    labels = changes.pop("labels", {})
    for name in names:
        document = spec(name, **{"maxEpochs": 4, "target": {"loss": 0.0001}, **changes})
        document["metadata"]["labels"] = labels
        document["spec"].setdefault("model", {})
        document["spec"]["model"] = changes.get("model", {"file": "model.py"})
        documents.append(document)
    return yaml.safe_dump_all(documents)


@dataclass
class Api:
    """A running service with its client and its platform. Every answer is a dict, with `status` in it."""

    service: Service
    platform: FakePlatform
    http: httpx.AsyncClient
    folder: Path

    async def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = await self.http.request(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def get(self, path: str, status: int = 200, **params: Any) -> Any:
        return await self.ask("GET", path, status, params=params)

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        return await self.ask("POST", path, status, json=body)

    async def submit(self, *names: str, status: int = 201, policy: str = "", **changes: Any) -> Any:
        """Post a job file with a job for each name."""
        file = {"path": str(self.folder / "job.yaml"), "text": job_text(*names, **changes)}
        return await self.post("/jobs", {"files": [file], "policy": policy}, status)

    async def until(self, name: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """A job's row once `done` holds of it, by long polls alone."""
        seq = 0
        while True:
            found = await self.get(f"/jobs/{name}", after=seq, wait=20)
            if done(found["job"]):
                return dict(found["job"])
            seq = found["seq"]

    async def ended(self, name: str) -> dict[str, Any]:
        handler = self.service.handler
        await handler.wait(lambda: name in handler.jobs and handler.jobs[name].ended)
        return await self.until(name, lambda row: row["ended_at"] is not None)

    async def settled(self) -> int:
        """Waits until a while has passed in which nothing happened; the number of the last record."""
        seq, last = 0, -1
        while seq != last:
            last, seq = seq, (await self.get("/jobs", after=seq, wait=0.05))["seq"]
        return seq


@contextlib.asynccontextmanager
async def running(home: StateDirectory, platform: FakePlatform, folders: Sequence[Path] = ()) -> AsyncIterator[Api]:
    """A service for the length of the block."""
    with home.planning():
        past = home.past()
        journal = home.open_journal(home.journal(1))
    try:
        handler = Handler(platform, journal, policy("coach"))
        folder = home.path.parent
        service = Service(
            home,
            handler,
            journal=journal.path,
            past=past,
            nodes=platform.nodes,
            policy=policy("coach"),
            folders=folders or [folder],
        )
        app = make_app(service, TOKEN)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(app)
        with contextlib.closing(service):
            async with (
                handler,
                httpx.AsyncClient(transport=transport, base_url=f"{URL}{API}", headers=headers, timeout=180) as http,
            ):
                service.begin()
                yield Api(service, platform, http, folder)
    finally:
        journal.close()


def serve(
    home: StateDirectory,
    body: Callable[[Api], Awaitable[None]],
    platform: FakePlatform | None = None,
    **more: Any,
) -> None:
    """Run a service for the length of `body`."""

    async def main() -> None:
        async with running(home, platform or FakePlatform(nodes=CLUSTER), **more) as api:
            await asyncio.wait_for(body(api), 240)

    asyncio.run(main())
