"""A real API server behind a proxy that answers late, wants requests later (429) and ends watches as too old (410)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from coach.platforms.kubernetes_api.client import Api
from coach.platforms.kubernetes_api.watch import Collection
from tests.packaging.api_server import ApiServer, api_server
from tests.platforms.kubernetes_api.fake_server import kubeconfig, refusal

pytestmark = [pytest.mark.processes, pytest.mark.full]

MAPS = "/api/v1/namespaces/default/configmaps"
GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("api-server")) as started:
        yield started


class Proxy:
    """What it does to a request a seed draws, as long as `troubled`."""

    def __init__(self, target: str, seed: int) -> None:
        self._target, self._random, self.troubled = target, random.Random(seed), True
        self.struck = {"late": 0, "429": 0, "410": 0}
        self.url = ""

    def _strikes(self, fault: str, chance: float) -> bool:
        hit = self.troubled and self._random.random() < chance
        self.struck[fault] += hit
        return hit

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self._strikes("429", 0.3):
            return refusal(429, "TooManyRequests", **{"Retry-After": "0"})
        if self._strikes("late", 0.3):
            await asyncio.sleep(0.5)
        headers = {key: request.headers[key] for key in ("Authorization", "Content-Type") if key in request.headers}
        url, body = f"{self._target}{request.rel_url}", await request.read()
        async with self._session.request(request.method, url, data=body, headers=headers, ssl=False) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for line in answer.content:
                if "watch" in request.query and self._strikes("410", 0.3):
                    await response.write(json.dumps({"type": "ERROR", "object": GONE}).encode() + b"\n")
                    break
                await response.write(line)
            return response

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                await runner.cleanup()


def test_a_collection_is_what_the_api_server_has_whatever_came_between(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    draw, heard = random.Random(2), dict[str, str]()

    def note(name: str, found: Any) -> None:
        heard.pop(name, None)
        if found is not None:
            heard[name] = found["metadata"]["resourceVersion"]

    async def body() -> dict[str, int]:
        async with Proxy(server.url, 1).running() as proxy:
            kubeconfig(tmp_path / "config", proxy.url, {"token": "admin-token"})
            async with await Api.connect() as api:
                followed = Collection(api, MAPS)
                followed.listeners.append(note)
                await followed.open()
                for number in range(40):
                    name = f"m{draw.randrange(8)}"
                    if draw.random() < 0.3:
                        await api.delete(f"{MAPS}/{name}")
                    else:
                        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
                        await api.apply(f"{MAPS}/{name}", {**made, "data": {"number": str(number)}})
                proxy.troubled = False
                there = {one["metadata"]["name"]: one["metadata"] for one in (await api.get(MAPS))["items"]}
                versions = {name: one["resourceVersion"] for name, one in there.items()}
                async with asyncio.timeout(60):
                    while heard != versions:
                        await asyncio.sleep(0.05)
                assert {name: one["metadata"]["resourceVersion"] for name, one in followed.objects.items()} == versions
                await followed.close()
            return proxy.struck

    struck = asyncio.run(body())
    assert all(struck.values()), struck
