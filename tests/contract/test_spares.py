"""Hosts that were started before a function needs them. That they answer as any host does, the engine `spare` shows."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coach.platforms.local.host.warm_pool import Spares
from tests.contract.engine import FUNCTIONS_PYTHON, alive, children, wait_for
from tests.contract.test_launch import ask, function, open_files, start

pytestmark = pytest.mark.processes

__all__ = ["function"]  # a fixture


def with_spares(folder: Path, wanted: int, use: Callable[[Spares], Awaitable[None]]) -> None:
    """Run spares around a coroutine, and check that nothing of them is left, in the system or in this process."""
    pids: list[int] = []

    async def run() -> None:
        spares = Spares(wanted, FUNCTIONS_PYTHON, {}, folder)
        try:
            await spares.fill()
            pids.extend(pid for host in waiting(spares) for pid in (host, *children(host)))
            assert len(spares) == wanted and len(pids) == 2 * wanted
            await use(spares)
        finally:
            await spares.close()
        wait_for(lambda: not any(alive(pid) for pid in pids), what="the end of all processes")

    before = open_files()
    asyncio.run(run())
    assert open_files() == before


def waiting(spares: Spares) -> list[int]:
    return [host.pid for host in spares._waiting]


def test_a_spare_becomes_the_function_with_all_that_it_is_given(function: Path) -> None:
    (function / "main.py").write_text(
        (function / "main.py").read_text().replace('"FROM_CALL",', '"FROM_CALL", "TZ",')
    )

    async def use(spares: Spares) -> None:
        first = waiting(spares)[0]
        wrappers = children(first)
        env = {"FROM_CALL": "2", "TZ": "Asia/Tokyo"}
        host = await start(function, spares=spares, env=env, cpus=[0], python_path=(function.parent,))
        await host.wait_ready(20)
        assert (host.pid, host.wrapper_pids) == (first, wrappers)
        state = await ask(host, "/talk")
        assert state == {
            "cpus": [0],
            "env": {"FROM_FILE": "1", **env, "PYTHONPATH": f"{function}:{function.parent}"},
            "cwd": str(function.parent / "demo"),
            "pid": wrappers[0],
        }
        assert len(spares) == 1
        assert await host.terminate(grace=10) == 0
        log = (function.parent / "demo" / "function.log").read_text()
        assert all(word in log for word in ("told", "printed", "terminated"))

    with_spares(function.parent, 2, use)


def test_what_a_spare_cannot_become_is_said_as_ever(function: Path) -> None:
    async def use(spares: Spares) -> None:
        host = await start(function, spares=spares, env={"FAIL": "1"})
        with pytest.raises(Exception, match="demo: main:handler: RuntimeError: init boom"):
            await host.wait_ready(20)
        assert await host.wait() == 2
        assert "init boom" in (function.parent / "demo" / "host.log").read_text()

    with_spares(function.parent, 1, use)


@pytest.mark.parametrize("env", [{"PYTHONHASHSEED": "7"}, {"LC_ALL": "C"}, {"LD_LIBRARY_PATH": "/lib"}])
def test_what_python_reads_at_its_start_takes_a_host_of_its_own(function: Path, env: dict[str, str]) -> None:
    async def use(spares: Spares) -> None:
        host = await start(function, spares=spares, env=env)
        await host.wait_ready(20)
        assert host.pid not in waiting(spares) and len(spares) == 1
        assert await host.terminate(grace=10) == 0

    with_spares(function.parent, 1, use)


def test_a_dead_spare_is_thrown_away_and_replaced(function: Path) -> None:
    async def use(spares: Spares) -> None:
        dying, hurt, sound = waiting(spares)
        (wrapper,) = children(hurt)
        os.kill(wrapper, signal.SIGKILL)
        wait_for(lambda: not alive(hurt), what="the end of a spare without its wrapper")
        os.kill(dying, signal.SIGKILL)
        wait_for(lambda: not alive(dying), what="its end")  # of which the event loop has not heard yet
        host = await start(function, spares=spares)
        assert host.pid == sound
        await host.wait_ready(20)
        direct = await start(function, "demo2", spares=spares)
        await direct.wait_ready(20)
        assert len(spares) == 0
        await spares.fill(2)
        assert len(spares) == 2
        third = await start(function, "demo3", spares=spares)
        await third.wait_ready(20)
        assert [await each.terminate(grace=10) for each in (host, direct, third)] == [0, 0, 0]

    with_spares(function.parent, 3, use)


def test_no_spares_are_started_when_none_are_wanted(function: Path) -> None:
    async def use(spares: Spares) -> None:
        host = await start(function, spares=spares)
        await host.wait_ready(20)
        assert await host.terminate(grace=10) == 0

    with_spares(function.parent, 0, use)


OWNER = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from contract.engine import FUNCTIONS_PYTHON, children
from contract.test_launch import start
from coach.platforms.local.host.warm_pool import Spares

async def main():
    folder = Path(sys.argv[1])
    spares = Spares(3, FUNCTIONS_PYTHON, dict(), folder.parent)
    await spares.fill()
    host = await start(folder, spares=spares)
    await host.wait_ready(30)
    hosts = [host.pid, *(spare.pid for spare in spares._waiting)]
    print(json.dumps([pid for each in hosts for pid in (each, *children(each))]), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_nothing_outlives_an_owner_that_was_killed(function: Path) -> None:
    code = textwrap.dedent(OWNER).format(tests=str(Path(__file__).parents[1]))
    owner = subprocess.Popen([sys.executable, "-c", code, str(function)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        pids = json.loads(owner.stdout.readline())
    assert len(set(pids)) == 6 and all(alive(pid) for pid in pids)
    owner.kill()
    owner.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), timeout=5, what="the end of all processes")
