"""Functions are called over connections that are kept, and a cancelled call leaves none open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import warnings
from collections.abc import Awaitable, Callable

import pytest

from coach.platforms.function_calls import Direct, Unanswered

pytestmark = pytest.mark.processes

#: More steps of the event loop than a call takes here.
STEPS = 60


class Functions:
    """An address at which every call is answered, until its connections are closed; all that there were."""

    def __init__(self) -> None:
        self.ends: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ends.append(writer)
        while (head := await reader.readline()) != b"":
            length = 0
            while head.strip():
                head = await reader.readline()
                if head.lower().startswith(b"content-length:"):
                    length = int(head.split(b":")[1])
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async def close(self) -> None:
        for end in self.ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in self.ends), return_exceptions=True)


def with_functions(body: Callable[[Direct, Functions, str], Awaitable[None]]) -> None:
    async def main() -> None:
        functions, calls = Functions(), Direct()
        async with await asyncio.start_server(functions.serve, "127.0.0.1", 0) as server:
            await body(calls, functions, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await calls.close()
            await functions.close()

    asyncio.run(main())


def test_a_connection_is_kept_for_the_next_call_and_one_that_was_closed_is_replaced() -> None:
    async def body(calls: Direct, functions: Functions, address: str) -> None:
        for _ in range(3):
            assert await calls.post(address, {"op": "health"}, 10) == (200, b"{}")
        assert len(functions.ends) == 1
        await functions.close()
        assert await calls.post(address, {"op": "health"}, 10) == (200, b"{}")
        assert len(functions.ends) == 2

    with_functions(body)


def test_a_call_that_is_cancelled_at_any_step_leaves_no_connection_open() -> None:
    ports = list[str]()

    async def cancelled_at(step: int, calls: Direct, functions: Functions, address: str) -> None:
        ports.append(address.partition(":")[2])
        await asyncio.gather(*(calls.post(address, {}, 10) for _ in range(4)))
        assert len(functions.ends) == 4
        await functions.close()
        call = asyncio.create_task(calls.post(address, {}, 10))
        for _ in range(step):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})

    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(STEPS):
            with_functions(lambda *given, step=step: cancelled_at(step, *given))  # type: ignore[misc]
            gc.collect()
    unclosed = [str(warning.message) for warning in said if warning.category is ResourceWarning]
    of_calls = [f"raddr=('127.0.0.1', {port})" for port in ports]
    assert [one for one in unclosed if "client" in one.lower() or any(end in one for end in of_calls)] == []


def test_no_answer_in_time_is_told_from_no_answer_at_all() -> None:
    async def hangs(calls: Direct, _functions: Functions, _address: str) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(Unanswered, match="ClientConnectorError") as refused:
                await calls.post(address, {}, 10)
            silent.listen()
            with pytest.raises(Unanswered, match=r"no answer in 0\.1 s") as late:
                await calls.post(address, {}, 0.1)
        assert (refused.value.late, late.value.late) == (False, True)

    with_functions(hangs)


HOSTILE = {
    "endless": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"100000\r\n" + bytes(1 << 20) + b"\r\n"),
    "a header without end": (b"HTTP/1.1 200 OK\r\n", b"x: " + b"a" * 1000 + b"\r\n"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_answer_without_end_is_none(kind: str) -> None:
    """A model runs as the user of its function, and may answer in its place."""
    begin, more = HOSTILE[kind]

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(more)
                await writer.drain()

    async def main() -> None:
        calls = Direct()
        async with await asyncio.start_server(flood, "127.0.0.1", 0) as server:
            with pytest.raises(Unanswered):
                await calls.post(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", {"op": "status"}, 60)
            await calls.close()

    asyncio.run(main())


def test_an_answer_that_names_another_address_is_not_followed() -> None:
    async def body(calls: Direct, functions: Functions, address: str) -> None:
        async def away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"}")
            writer.write(f"HTTP/1.1 307 x\r\nlocation: http://{address}/\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(away, "127.0.0.1", 0) as server:
            status, _ = await calls.post(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", {"op": "status"}, 60)
            assert status == 307 and not functions.ends

    with_functions(body)
