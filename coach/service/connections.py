"""The connections of the service: how many there are, and how long each may take to say who it is.

Anybody who reaches the address can open some. Strangers, who have not shown the token, can neither take the descriptors
that jobs need nor fill the memory: where there are too many connections, the oldest of theirs goes.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds in which a request must have arrived whole, and in which one without the token must have had its answer.
REQUEST_SECONDS, STRANGER_SECONDS = 60.0, 10.0
#: Connections at once, and the part of this process's descriptors that they are at most; the rest is for jobs.
MOST, SHARE = 1024, 8


class Bounded(H11Protocol):
    """One connection. It is `known` once a request of it was let in (`coach.service.middleware`)."""

    known = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._began = self.loop.time()
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it on; where there are too many the oldest stranger goes."""
        super().connection_made(transport)
        self._cut_off_in(STRANGER_SECONDS)
        if len(self.connections) > most_connections():
            strangers = [one for one in self.connections if isinstance(one, Bounded) and not one.known]
            min(strangers, key=lambda one: (one is self, one._began)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._cut_off_in(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """What is known of the caller counts; a request has so long from its first byte to its last."""
        if not self.known and self._let_in():
            self.known = True
            self._cut_off_in(REQUEST_SECONDS)
        if self._limit is None and (self.cycle is None or self.cycle.response_complete):
            self._cut_off_in(REQUEST_SECONDS)
        super().data_received(data)
        if self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete):
            self._cut_off_in(None)  # the answer takes as long as it takes

    def on_response_complete(self) -> None:
        """A stranger has so long for the next request, a known caller as long as connections are kept."""
        self.known = self.known or self._let_in()
        self._cut_off_in(None if self.known else STRANGER_SECONDS)
        super().on_response_complete()

    def _let_in(self) -> bool:
        said: Any = self.scope and self.scope.get("coach")
        return bool(said and said.get("known"))

    def _cut_off_in(self, seconds: float | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def most_connections() -> int:
    """Connections at once, by the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MOST, soft // SHARE))
