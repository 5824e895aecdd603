"""The logs of pods: each line once, and kept where `coach logs` looks for them: a pod's own log goes with the pod."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

from coach.core.cluster import PodId
from coach.core.errors import TemporaryError
from coach.platforms.kubernetes_api.client import CORE, Api, ApiError
from coach.platforms.local.function_log import FunctionLog
from coach.platforms.program_metrics.collector import Lines

#: Seconds before a log whose connection broke is read on; after each failure twice as many, up to the most.
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0
#: Bytes of a line; the rest of a longer one is left out.
LONGEST_LINE = 1 << 16


class PodLogs:
    """Follows the logs of functions from when they are ready until they end. `folder` gives a job's folder for logs."""

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
        with contextlib.closing(log):
            async for _, line in lines(self._api, name):
                log.take(line)


async def lines(
    api: Api, name: str, ended: asyncio.Event | None = None, after: int = 0
) -> AsyncIterator[tuple[int, str]]:
    """The lines of a pod's log with their times, nanoseconds since 1970: each once, also where the connection breaks.

    `ended` is set when the pod prints nothing more; without it, the log ends where the API server ends it. Lines up to
    the time `after` are left out.
    """
    path = f"{CORE}/namespaces/{api.namespace}/pods/{name}/log"
    #: The time of the last line, and how many lines had it.
    last, same, pause = after, 1 << 62, RETRY_SECONDS
    while True:
        whole = ended is None or ended.is_set()  # then this answer has the end
        since = {"sinceTime": _rfc3339(last)} if last else {}
        left, again = same, bool(last)  # its first lines have been read before
        try:
            async for time, line in _timed(api.text(path, follow="true", timestamps="true", **since)):
                if again and time == last and left:
                    left -= 1
                elif not again or time >= last:
                    again, same, last = False, (same + 1 if time == last else 1), time
                    pause = RETRY_SECONDS
                    yield time, line
            if whole:
                return
        except ApiError as error:
            if error.status in (400, 403, 404):  # the pod has gone, or this handler may not read logs
                return
        except TemporaryError:
            pass  # the API server restarts, or the node does not answer
        if ended is None:
            await asyncio.sleep(pause)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), pause)
        pause = min(2 * pause, LONGEST_RETRY_SECONDS)


async def _timed(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, str]]:
    """The whole lines of a log with timestamps; one that a broken connection cut comes again."""
    whole = Lines(rb"\n", LONGEST_LINE)
    async with contextlib.aclosing(pieces):  # type: ignore[type-var]
        async for piece in pieces:
            for line in whole.more(piece):
                stamp, _, text = line.partition(" ")
                try:
                    time = nanoseconds(stamp)
                except ValueError:
                    continue  # the API server's own words, such as that a log file has been rotated away
                yield time, text.rstrip("\r")


def nanoseconds(stamp: str) -> int:
    """A time such as 2026-11-27T06:32:09.123456789Z, since 1970. Raises ValueError."""
    seconds, fraction = int(datetime.fromisoformat(stamp).timestamp()), re.search(r"\.(\d+)", stamp)
    return seconds * 10**9 + int((fraction[1] if fraction else "").ljust(9, "0")[:9])


def _rfc3339(time: int) -> str:
    return datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
