"""Server-sent events: the rows of jobs that changed, the progress of running epochs, and new lines of one log.

Nothing is buffered. An event's id is `JOURNAL-SEQ`, and what follows an id are the rows of the jobs whose last record
is later. So a page that was cut off, also by a restart of the service, goes on with the last id that it has.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from coach.report.row_types import JobDetails
from coach.service.function_logs import read
from coach.service.operations import Service

#: Seconds between two events of one stream, at least; and until a comment is sent where nothing happens.
TICK = 0.25
QUIET = 15.0
_ROWS: TypeAdapter[list[JobDetails]] = TypeAdapter(list[JobDetails])


@dataclass(slots=True)
class LogTail:
    """The log of a job's function, from byte `next` on; its file need not be there yet."""

    job: str
    function: str
    folder: Path
    next: int = 0

    async def event(self) -> bytes:
        """The new whole lines as an event; empty where there are none."""
        file, after = self.folder / f"{self.function}.log", self.next
        try:
            if file.stat().st_size == after:
                return b""
        except FileNotFoundError:
            return b""
        text, self.next = await asyncio.to_thread(read, file, after)
        if not text:
            return b""
        data = {
            "job": self.job,
            "function": self.function,
            "text": text.decode(errors="replace"),
            "next": self.next,
        }
        return _event("log", json.dumps(data).encode())


class Feed:
    """What all streams of one service send: an event is encoded once for all that are at the same place."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._frames: dict[tuple[int, str], bytes] = {}
        self._until = -1

    def place(self) -> str:
        """The id of this moment."""
        return f"{self._service.identity}-{self._service.last_seq()}"

    async def events(self, after: str, job: str = "", log: LogTail | None = None) -> AsyncIterator[bytes]:
        """The events after an id, of all jobs or one, with a log's lines; `after` empty: from now on."""
        service = self._service
        yield b"retry: 1000\n\n"
        at = self._begin(after)
        if at is None:
            at = service.last_seq()
            yield _event("reset", b"{}", self.place())
        sent_at, progress = time.monotonic(), ""
        while not service.stopping:
            seq = service.last_seq()
            if seq > at:
                yield self._frame(at, seq, job)
                at, sent_at = seq, time.monotonic()
            now = self._progress(job)
            if now != progress:
                progress, sent_at = now, time.monotonic()
                yield _event("progress", now.encode())
            if log is not None and (lines := await log.event()):
                sent_at = time.monotonic()
                yield lines
            if time.monotonic() - sent_at >= QUIET:
                sent_at = time.monotonic()
                yield b": still here\n\n"
            # Streams wake at the same instants, so that they are at the same place.
            await asyncio.sleep(TICK - time.monotonic() % TICK)
            if seq == service.last_seq():
                # Progress and logs have no event of their own.
                await service.changed(TICK if service.handler.progress or log else 1.0)

    def _begin(self, after: str) -> int | None:
        """The number after which to go on; None for an id of another journal, or ahead of this one."""
        last = self._service.last_seq()
        if not after:
            return last
        found = re.fullmatch(r"([0-9a-f]+)-(\d{1,16})", after)
        if found is None or found[1] != self._service.identity or int(found[2]) > last:
            return None
        return int(found[2])

    def _frame(self, after: int, until: int, job: str) -> bytes:
        if until != self._until:
            self._frames.clear()
            self._until = until
        if (after, job) not in self._frames:
            service = self._service
            names = [job] if job and service.changed_at.get(job, 0) > after else []
            if not job:
                names = [name for name, seq in service.changed_at.items() if seq > after]
            rows = _ROWS.dump_json([service.view(name) for name in names if name in service.jobs])
            data = b'{"seq":%d,"jobs":%s}' % (until, rows)
            self._frames[after, job] = _event("jobs", data, f"{service.identity}-{until}")
        return self._frames[after, job]

    def _progress(self, job: str) -> str:
        names = [name for name in self._service.handler.progress if job in ("", name)]
        return json.dumps({name: share for name in names if (share := self._service.progress(name)) is not None})


def _event(name: str, data: bytes, key: str = "") -> bytes:
    head = f"id: {key}\n" if key else ""
    return f"event: {name}\n{head}data: ".encode() + data + b"\n\n"
