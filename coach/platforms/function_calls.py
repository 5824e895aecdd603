"""Calls of functions over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import aiohttp

#: Seconds for which a connection without a call is kept; a function keeps it for longer.
KEEP_ALIVE_SECONDS = 600.0
#: Bytes of an answer; a function's largest are its reports. A model may have taken a function's place.
LARGEST_ANSWER = 16 << 20


class Unanswered(Exception):
    """A call had no answer; `late` where it had none in time."""

    def __init__(self, words: str, *, late: bool = False) -> None:
        super().__init__(words)
        self.late = late


class FunctionCalls(Protocol):
    """What sends calls."""

    followed: int  #: functions whose epochs are followed through it

    async def post(self, address: str, body: Mapping[str, Any], seconds: float) -> tuple[int, bytes]:
        """Send JSON to the function at host:port, which has so long to answer: status and body. Raises Unanswered."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class Direct:
    """Calls functions at their addresses, each over a connection that stays open.

    By aiohttp, which finds the connection of an address at once; httpx's pool looks at every connection that it has
    before and after each call.
    """

    def __init__(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
        self.followed = 0
        plain = {"Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(connector=connector, headers=plain, auto_decompress=False)

    async def post(self, address: str, body: Mapping[str, Any], seconds: float) -> tuple[int, bytes]:
        """See FunctionCalls."""
        limits = aiohttp.ClientTimeout(total=2 * seconds, sock_connect=seconds, sock_read=seconds)
        said = bytearray()
        try:
            async with self._session.post(
                f"http://{address}/", json=body, timeout=limits, allow_redirects=False
            ) as answer:
                async for part in answer.content.iter_any():
                    said += part
                    if len(said) > LARGEST_ANSWER:
                        raise Unanswered(f"an answer of more than {LARGEST_ANSWER >> 20} MiB")
                return answer.status, bytes(said)
        except TimeoutError as error:
            raise Unanswered(f"no answer in {seconds:g} s", late=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """See FunctionCalls."""
        await self._session.close()
