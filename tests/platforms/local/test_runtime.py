"""Functions of one machine, from the order to fork them to their end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coach.core.errors import PermanentError
from coach.platforms.local import runtime as module
from coach.platforms.local.runtime import Runtime
from tests.functions.hosting import eventually, is_alive
from tests.platforms.local.functions import ask, launch, quick_runtime

pytestmark = pytest.mark.processes
BLOCK = f"127.{60 + os.getpid() % 60}.{os.getpid() // 60 % 250}"


def with_runtime(folder: Path, use: Callable[[Runtime], Awaitable[None]]) -> None:
    """Run `use`, and check that nothing of it is left in this process."""

    async def run() -> None:
        runtime = quick_runtime(folder)
        await runtime.open()
        try:
            await use(runtime)
        finally:
            await runtime.close()

    before = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(run())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_function_answers_logs_and_ends_with_all_of_it(tmp_path: Path) -> None:
    async def use(runtime: Runtime) -> None:
        function = await launch(runtime, tmp_path, f"{BLOCK}.1:8080")
        await function.wait_ready(20)
        health = await asyncio.to_thread(ask, function)
        assert (health["role"], health["from_template"]) == ("worker", True)
        entry = json.loads((tmp_path / "f.log").read_text())
        assert (entry["function"], entry["message"]) == ("f", "ready")
        function.kill()
        await function.wait()
        eventually(lambda: not any(is_alive(pid) for pid in (function.pid, health["zygote_pid"])))
        function.kill()  # once more does no harm

    with_runtime(tmp_path, use)


def test_a_function_is_found_by_its_address_beside_one_that_another_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "coach-left").mkdir()
    (tmp_path / "coach-left" / f"{BLOCK}.1:8080.sock").touch()

    async def use(runtime: Runtime) -> None:
        function = await launch(runtime, tmp_path, f"{BLOCK}.1:8080")
        await function.wait_ready(20)
        assert (await asyncio.to_thread(ask, function.address))["role"] == "worker"

    with_runtime(tmp_path, use)


def test_many_start_at_once_and_all_end_with_the_runtime(tmp_path: Path) -> None:
    pids: list[int] = []

    async def use(runtime: Runtime) -> None:
        addresses = [f"{BLOCK}.{number}:8080" for number in range(2, 14)]
        launched = (launch(runtime, tmp_path, each, name=each) for each in addresses)
        functions = await asyncio.gather(*launched)
        await asyncio.gather(*(function.wait_ready(60) for function in functions))
        pids.extend(function.pid for function in functions)
        health = await asyncio.gather(*(asyncio.to_thread(ask, each) for each in functions))
        pids.extend(one["zygote_pid"] for one in health)
        assert len(set(pids)) == 24

    with_runtime(tmp_path, use)
    eventually(lambda: not any(is_alive(pid) for pid in pids))


def test_a_function_runs_on_its_cores(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))

    async def use(runtime: Runtime) -> None:
        function = await launch(runtime, tmp_path, f"{BLOCK}.1:8080", cpus=[core])
        await function.wait_ready(20)
        zygote = (await asyncio.to_thread(ask, function))["zygote_pid"]
        assert os.sched_getaffinity(function.pid) == {core}
        eventually(lambda: os.sched_getaffinity(zygote) == {core})

    with_runtime(tmp_path, use)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"cannot listen on .*:8080 \(Address already in use\)"),
        ({"network": "/proc/self/ns/nothing"}, "cannot run in network /proc/self/ns/nothing"),
        ({"cpus": [100_000]}, r"cannot run in cores \[100000\]"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_one_line(tmp_path: Path, given: dict, words: str) -> None:
    async def use(runtime: Runtime) -> None:
        function = await launch(runtime, tmp_path, f"{BLOCK}.50:8080", **given)
        with pytest.raises(PermanentError, match=words):
            await function.wait_ready(20)
        await function.wait()

    with socket.socket() as taken:
        taken.bind((f"{BLOCK}.50", 8080))
        taken.listen()
        with_runtime(tmp_path, use)


def test_a_killed_function_is_noticed_and_its_zygote_ends(tmp_path: Path) -> None:
    async def use(runtime: Runtime) -> None:
        function = await launch(runtime, tmp_path, f"{BLOCK}.1:8080")
        await function.wait_ready(20)
        zygote = (await asyncio.to_thread(ask, function))["zygote_pid"]
        os.kill(function.pid, signal.SIGKILL)
        await function.wait()
        eventually(lambda: not is_alive(zygote))

    with_runtime(tmp_path, use)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_a_template_that_is_gone_is_replaced_and_its_functions_stay(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(runtime: Runtime) -> None:
        first = await launch(runtime, tmp_path, f"{BLOCK}.1:8080", name="first")
        await first.wait_ready(20)
        os.kill(first.template_pid, number)
        if number is signal.SIGSTOP:
            monkeypatch.setattr(module, "FORK_SECONDS", 2.0)
        second = await launch(runtime, tmp_path, f"{BLOCK}.2:8080", name="second")
        await second.wait_ready(20)
        assert second.template_pid != first.template_pid
        for function in (first, second):
            assert (await asyncio.to_thread(ask, function))["role"] == "worker"

    with_runtime(tmp_path, use)


OWNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.platforms.local.functions import ask, launch, quick_runtime

async def main():
    folder = Path({folder!r})
    runtime = quick_runtime(folder)
    await runtime.open()
    pids = []
    for number in range(3):
        function = await launch(runtime, folder, f"{block}.{{number + 1}}:8080")
        await function.wait_ready(30)
        pids += [function.pid, (await asyncio.to_thread(ask, function))["zygote_pid"], function.template_pid]
    print(*pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_nothing_outlives_an_owner_that_was_killed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    code = textwrap.dedent(OWNER).format(root=root, folder=str(tmp_path), block=BLOCK)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(set(pids)) == 7 and all(is_alive(pid) for pid in pids)
    owner.kill()
    owner.wait()
    eventually(lambda: not any(is_alive(pid) for pid in pids))


STRANGER = """
import json, os, socket, sys
for family, where in json.loads(sys.argv[1]):
    with socket.socket(getattr(socket, family)) as end:
        try:
            end.connect(tuple(where) if isinstance(where, list) else where)
            print("connected")
        except OSError as error:
            print(type(error).__name__)
"""


@pytest.mark.root
def test_another_user_of_the_machine_cannot_connect_to_a_function(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's process needs root")

    async def use(runtime: Runtime) -> None:
        function = await launch(runtime, tmp_path, f"{BLOCK}.1:8080")
        await function.wait_ready(20)
        folder = Path(function.socket).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        places = [
            ["AF_UNIX", function.socket],
            ["AF_UNIX", str(folder / "template.sock")],
            ["AF_INET", [f"{BLOCK}.1", 8080]],
        ]
        said = await asyncio.to_thread(
            subprocess.run,
            ["/usr/bin/python3", "-c", STRANGER, json.dumps(places)],
            capture_output=True,
            check=True,
            user=65534,
            group=65534,
            extra_groups=[],
        )
        assert said.stdout.split() == [b"PermissionError", b"PermissionError", b"ConnectionRefusedError"]
        assert (await asyncio.to_thread(ask, function))["role"] == "worker"

    with_runtime(tmp_path, use)


def test_no_socket_is_left_when_it_is_closed(tmp_path: Path) -> None:
    folders: list[Path] = []

    async def use(runtime: Runtime) -> None:
        first = await launch(runtime, tmp_path, f"{BLOCK}.1:8080", name="first")
        await first.wait_ready(20)
        os.kill(first.template_pid, signal.SIGKILL)
        second = await launch(runtime, tmp_path, f"{BLOCK}.2:8080", name="second")
        await second.wait_ready(20)
        folders.extend(Path(each.socket).parent for each in (first, second))
        assert folders[0] != folders[1] and all(each.exists() for each in folders)

    with_runtime(tmp_path, use)
    assert not any(each.exists() for each in folders)
