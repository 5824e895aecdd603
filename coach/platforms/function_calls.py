"""Calls of functions over HTTP: of pods by who has the job's key, on one machine at Unix sockets."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Protocol

import aiohttp

#: Seconds for which a connection without a call is kept; a function keeps it for longer.
KEEP_ALIVE_SECONDS = 600.0
#: Bytes of an answer; a function's largest are its reports. A model may have taken a function's place.
LARGEST_ANSWER = 16 << 20
#: The header with a function's key, and the environment variable by which its pod gets it (functions/training/keys.py).
KEY_HEADER, KEY_VARIABLE = "X-Coach-Key", "COACH_KEY"


def group_key(key: str, group: str) -> str:
    """By which the members of a group know each other: it says nothing of the job's own key."""
    return hmac.new(key.encode(), group.encode(), "sha256").hexdigest()


class Unanswered(Exception):
    """A call had no answer; `late` where it had none in time."""

    def __init__(self, words: str, *, late: bool = False) -> None:
        super().__init__(words)
        self.late = late


class FunctionCalls(Protocol):
    """What sends calls."""

    followed: int  #: functions whose epochs are followed through it

    async def post(self, address: str, body: Mapping[str, Any], seconds: float, key: str = "") -> tuple[int, bytes]:
        """Send JSON to the function at host:port, whose key this is: status and body.

        It has so long to answer. Raises Unanswered.
        """
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
        self.followed = 0
        self._all = _session(aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS))

    def _session_of(self, address: str) -> aiohttp.ClientSession:
        del address
        return self._all

    async def post(self, address: str, body: Mapping[str, Any], seconds: float, key: str = "") -> tuple[int, bytes]:
        """See FunctionCalls."""
        headers = {KEY_HEADER: key} if key else {}
        limits = aiohttp.ClientTimeout(total=2 * seconds, sock_connect=seconds, sock_read=seconds)
        said = bytearray()
        try:
            async with self._session_of(address).post(
                f"http://{address}/", json=body, timeout=limits, allow_redirects=False, headers=headers
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
        await self._all.close()


class AtSockets(Direct):
    """Calls functions of this machine, each at its Unix socket: no other user can connect to that."""

    def __init__(self) -> None:
        super().__init__()
        self._each: dict[str, aiohttp.ClientSession] = {}

    def add(self, address: str, path: str) -> None:
        """The function that keeps this address is asked at this path."""
        self._each[address] = _session(aiohttp.UnixConnector(path, limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS))

    async def remove(self, address: str) -> None:
        """The function has ended."""
        if (session := self._each.pop(address, None)) is not None:
            await session.close()

    def _session_of(self, address: str) -> aiohttp.ClientSession:
        if address not in self._each:
            raise ConnectionError(f"the function of {address} has ended")
        return self._each[address]

    async def close(self) -> None:
        """See FunctionCalls."""
        await super().close()
        for address in list(self._each):
            await self.remove(address)


def _session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=connector, headers={"Accept-Encoding": "identity"}, auto_decompress=False)
