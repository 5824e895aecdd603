"""A cancelled request leaves no connection open, at whichever step it was."""

from __future__ import annotations

import asyncio
import gc
import warnings

import httpx
import pytest

from coach.platforms.cancellation import cancellable

pytestmark = pytest.mark.processes

#: More steps of the event loop than a request takes here.
STEPS = 60


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request on a connection until it is closed."""
    while (head := await reader.readline()) != b"":
        while head.strip():
            head = await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


async def _cancelled_at(step: int) -> None:
    """A request that finds connections which the other side has closed, and is cancelled at `step`."""
    ends: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        await _answer(reader, writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            await asyncio.gather(*(http.get(url) for _ in range(4)))
            assert len(ends) == 4
            for end in ends:
                end.close()
            await asyncio.gather(*(end.wait_closed() for end in ends))
            request = asyncio.create_task(cancellable(http.get(url)))
            for _ in range(step):
                await asyncio.sleep(0)
            request.cancel()
            await asyncio.wait({request})
        for end in ends:
            end.close()


def test_a_request_that_is_cancelled_at_any_step_leaves_no_connection_open() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(STEPS):
            asyncio.run(_cancelled_at(step))
            gc.collect()
    assert [str(warning.message) for warning in said if warning.category is ResourceWarning] == []


def test_an_answer_and_an_error_pass_through() -> None:
    async def three() -> int:
        return 3

    async def wrong() -> int:
        raise httpx.ReadTimeout("late")

    assert asyncio.run(cancellable(three())) == 3
    with pytest.raises(httpx.ReadTimeout, match="late"):
        asyncio.run(cancellable(wrong()))
