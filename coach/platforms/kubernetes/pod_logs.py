"""The logs of pods, kept where `coach logs` looks for them: a pod's own log goes with the pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from coach.core.cluster import PodId
from coach.core.errors import TemporaryError
from coach.platforms.kubernetes_api.client import CORE, Api, ApiError
from coach.platforms.local.function_log import FunctionLog

#: Seconds before a log whose connection broke is read on.
RETRY_SECONDS = 1.0


class PodLogs:
    """Follows the logs of pods from when they are ready until they end. `folder` gives a job's folder for logs."""

    def __init__(self, api: Api, folder: Callable[[str], Path]) -> None:
        self._api = api
        self._folder = folder
        self._tasks: dict[PodId, asyncio.Task[None]] = {}

    def follow(self, pod: PodId, name: str) -> None:
        """Begin with a pod, whose object has this name; the one before it has ended."""
        before = self._tasks.pop(pod, None)
        if before:
            before.cancel()
        self._tasks[pod] = asyncio.create_task(self._follow(pod, name), name=f"log of {pod.name}")

    async def close(self) -> None:
        """Stop following."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self, pod: PodId, name: str) -> None:
        log = FunctionLog(self._folder(pod.job) / f"{pod.name}.log", pod.name)
        try:
            await self._copy(name, log)
        finally:
            log.close()

    async def _copy(self, name: str, log: FunctionLog) -> None:
        path = f"{CORE}/namespaces/{self._api.namespace}/pods/{name}/log"
        since: dict[str, int] = {}
        while True:
            try:
                async for line in self._api.text(path, follow="true", **since):
                    log.write_line(line.decode(errors="replace"))
                return
            except ApiError as error:
                if error.status in (400, 403, 404):  # the pod has gone, or this handler may not read logs
                    return
            except TemporaryError:
                pass  # the API server restarts
            await asyncio.sleep(RETRY_SECONDS)
            since = {"sinceSeconds": round(RETRY_SECONDS) + 1}
