"""Where the platform cannot be opened it leaves nothing running: no watch, no connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from coach.core.errors import TemporaryError
from coach.platforms.base import PlatformEvents
from coach.platforms.kubernetes.platform import KubernetesPlatform
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api


class BrokenApi:
    """An empty cluster whose API server does not answer the `number`-th request for `path`."""

    inside = False
    namespace = "default"

    def __init__(self, path: str, number: int) -> None:
        self.path, self.left = path, number
        self.watches = 0
        self.closed = False

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        if path.endswith(self.path):
            self.left -= 1
            if not self.left:
                raise TemporaryError("the API server restarts")
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    async def delete(self, path: str, **query: Any) -> None:
        await self.get(path)

    async def watch(self, path: str, **query: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.watches += 1
        await asyncio.Event().wait()
        yield "", {}

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("path", "number", "watches"),
    [
        pytest.param("/configmaps", 1, 0, id="before the watches begin"),
        pytest.param("/gangs", 1, 0, id="as it looks for the gangs' definition"),
        pytest.param("/pods", 1, 0, id="as it lists the pods"),
        pytest.param("/gangs", 2, 1, id="as it lists the gangs"),
        pytest.param("/nodes", 1, 2, id="as it lists the nodes"),
        pytest.param("/pods", 3, 3, id="as it lists the pods of others"),
        pytest.param("/gangs", 3, 4, id="as it deletes what an earlier handler left"),
    ],
)
def test_a_platform_that_cannot_open_ends_its_watches_and_its_connection(path: str, number: int, watches: int) -> None:
    async def main() -> None:
        api = BrokenApi(path, number)

        async def connect() -> Api:
            return cast("Api", api)

        platform = KubernetesPlatform(connect, Settings("image"), lambda _: Path(), lambda: 0.0)
        with pytest.raises(TemporaryError):
            await platform.open(cast("PlatformEvents", None))
        assert api.closed
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert api.watches == watches

    asyncio.run(main())
