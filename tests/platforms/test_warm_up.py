"""The first request to a function costs what later ones cost: nothing is imported for it any more."""

import json
import subprocess
import sys

SCRIPT = """
import asyncio, json, sys
import httpx
from coach.platforms import warm_up
from coach.platforms.cancellation import cancellable

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\ncontent-type: application/json\\r\\n\\r\\n{}")
    await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(trust_env=False) as http:
        before = set(sys.modules)
        await warm_up.prepare(http)
        prepared = set(sys.modules)
        response = await cancellable(http.post(f"http://127.0.0.1:{port}/", json={}, timeout=10))
        assert response.json() == {}
    server.close()
    print(json.dumps([sorted(prepared - before), sorted(set(sys.modules) - prepared)]))

asyncio.run(main())
"""


def test_a_prepared_client_imports_nothing_for_its_requests() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    prepared, later = json.loads(done.stdout)
    assert "anyio._backends._asyncio" in prepared, "else there is nothing to prepare any more"
    assert later == []
