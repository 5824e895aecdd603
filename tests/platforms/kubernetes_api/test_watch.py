"""A collection keeps up with the API server, also when its watch ends, breaks or comes too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coach.core.errors import TemporaryError
from coach.platforms.kubernetes_api import watch
from coach.platforms.kubernetes_api.client import ApiError
from coach.platforms.kubernetes_api.watch import Collection


def item(name: str, version: int, uid: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version), "uid": uid or name}}


class Server:
    """Gives lists, and for each list one watch, which then ends as it is told."""

    def __init__(self, *script: tuple[list[dict[str, Any]], list[Any]]) -> None:
        self.script = list(script)
        self.lists = 0

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        self.lists += 1
        items, self.events = self.script.pop(0) if self.script else ([], [asyncio.Event()])
        return {"items": items, "metadata": {"resourceVersion": "7"}}

    async def watch(self, path: str, **query: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, asyncio.Event):
                await event.wait()
            else:
                yield event


def followed(server: Server, lists: int) -> tuple[list[tuple[str, str | None]], dict[str, str]]:
    """What a listener heard until the server was asked for so many lists, and the objects then."""

    async def main() -> tuple[list[tuple[str, str | None]], dict[str, str]]:
        collection = Collection(server, "/things")  # type: ignore[arg-type]
        heard: list[tuple[str, str | None]] = []
        collection.listeners.append(
            lambda name, found: heard.append((name, found and found["metadata"]["resourceVersion"]))
        )
        await collection.open()
        async with asyncio.timeout(120):
            while server.lists < lists:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await collection.close()
        return heard, {name: found["metadata"]["resourceVersion"] for name, found in collection.objects.items()}

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "RETRY_SECONDS", (0.0, 0.0))


@pytest.mark.parametrize(
    "end",
    [[], [TemporaryError("broken")], [ApiError(410, "Expired", "too old resource version")]],
    ids=["ends", "breaks", "too old"],
)
def test_what_happened_while_no_watch_ran_is_reported_as_a_difference(end: list[Any]) -> None:
    server = Server(
        ([item("a", 1), item("b", 2), item("c", 3)], [("MODIFIED", item("a", 4)), *end]),
        ([item("a", 4), item("b", 5), item("d", 6)], [asyncio.Event()]),
    )
    heard, objects = followed(server, 2)
    assert heard[:4] == [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4")]
    assert set(heard[4:]) == {("c", None), ("b", "5"), ("d", "6")}, "and nothing of what is as it was"
    assert objects == {"a": "4", "b": "5", "d": "6"}


def test_an_object_of_the_same_name_that_was_made_anew_is_another() -> None:
    server = Server(
        ([item("a", 1, "first")], []),
        ([item("a", 9, "second")], [asyncio.Event()]),
    )
    assert followed(server, 2)[0] == [("a", "1"), ("a", None), ("a", "9")]


def test_bookmarks_and_deletions() -> None:
    server = Server(
        ([item("a", 1)], [("BOOKMARK", item("", 8)), ("DELETED", item("a", 9)), asyncio.Event()]),
    )
    heard, objects = followed(server, 1)
    assert heard == [("a", "1"), ("a", None)] and objects == {}
