"""A collection of objects, kept as the API server has it.

A watch loses nothing as long as it runs, but it may end, break or fall silent without a word. So a `Collection` reads
the whole list again whenever its watch has ended, and reports the difference as changes. A listener sees the present
state of each object, not every state in between: that suits decisions by level, not by edge.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from coach.core.errors import CoachError
from coach.platforms.kubernetes_api.client import Api, Object

log = logging.getLogger(__name__)

#: Seconds after which the API server ends a watch; each takes another time, so that they do not all come back at once.
WATCH_SECONDS = (240, 480)
#: Seconds before a broken watch is tried again: the first time, and at most.
RETRY_SECONDS = (0.1, 5.0)
#: Objects in one answer of a list.
PAGE = 500

#: Called with an object's name and the object as it is now, or None where it is gone.
Listener = Callable[[str, Object | None], None]


class Collection:
    """The objects of one kind and namespace, or of a whole cluster, that `selector` (of labels) chooses.

    `fields` chooses by field. Of all namespaces, objects are known by `namespace/name`; `keep` is what is kept of each.
    `open` returns when the first list is there. Listeners are called for each of its objects, then for each change.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        selector: str = "",
        fields: str = "",
        keep: Callable[[Object], Object] = lambda found: found,
    ) -> None:
        self._api = api
        self._path = path
        self._keep = keep
        chosen = {"labelSelector": selector, "fieldSelector": fields}
        self._query = {name: value for name, value in chosen.items() if value}
        self._objects: dict[str, Object] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.listeners: list[Listener] = []

    @property
    def objects(self) -> Mapping[str, Object]:
        """The objects by name, as last seen."""
        return MappingProxyType(self._objects)

    async def open(self) -> None:
        """Read the list and follow it from now on. Raises ApiError, TemporaryError."""
        version = await self._list()
        self._task = asyncio.create_task(self._follow(version), name=f"watch {self._path}")

    async def close(self) -> None:
        """Stop following."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, done: Callable[[], bool]) -> None:
        """Return once `done` holds; it is called after changes, several of which may have come at once."""
        while not done():
            await self._changed.wait()

    def look_again(self) -> None:
        """Have `until` call its conditions: something else that they depend on has changed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _follow(self, version: str) -> None:
        pause = RETRY_SECONDS[0]
        while True:
            try:
                async for kind, found in self._api.watch(
                    self._path,
                    resourceVersion=version,
                    timeoutSeconds=random.randint(*WATCH_SECONDS),
                    **self._query,
                ):
                    version = found["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        self._set(self._key(found), None if kind == "DELETED" else self._keep(found))
                    pause = RETRY_SECONDS[0]
            except CoachError as error:
                log.debug("%s: %s; reading it again", self._path, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_SECONDS[1])
            with contextlib.suppress(CoachError):
                version = await self._list()

    async def _list(self) -> str:
        """Read everything and report the difference; the version to watch from."""
        found: dict[str, Object] = {}
        more: dict[str, str] = {}
        while True:
            answer = await self._api.get(self._path, limit=PAGE, **self._query, **more)
            found |= {self._key(item): self._keep(item) for item in answer["items"]}
            if not (token := answer["metadata"].get("continue")):
                break
            more = {"continue": token}
        for name in self._objects.keys() - found.keys():
            self._set(name, None)
        for name, item in found.items():
            self._set(name, item)
        return str(answer["metadata"]["resourceVersion"])

    def _key(self, found: Object) -> str:
        metadata = found["metadata"]
        if "namespace" in metadata and "/namespaces/" not in self._path:
            return f"{metadata['namespace']}/{metadata['name']}"
        return str(metadata["name"])

    def _set(self, name: str, found: Object | None) -> None:
        before = self._objects.get(name)
        if found is None:
            if before is None:
                return
            del self._objects[name]
        elif before and _version(before) == _version(found):
            return
        elif before and before["metadata"]["uid"] != found["metadata"]["uid"]:
            self._set(name, None)  # deleted and created again while the watch was interrupted
            self._objects[name] = found
        else:
            self._objects[name] = found
        for listener in self.listeners:
            listener(name, found)
        self.look_again()


def _version(found: Object) -> str:
    return str(found["metadata"]["resourceVersion"])
