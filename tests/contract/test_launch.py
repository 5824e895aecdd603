"""Starting and ending hosts from asyncio: what the local platform relies on."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coach.core.errors import TemporaryError, UserError
from coach.platforms.local.host.command import HostFailed, HostProcess
from coach.platforms.local.host.launch import launch
from tests.contract.engine import FUNCTIONS_PYTHON, alive, free_address, wait_for

pytestmark = pytest.mark.processes

FUNCTION = """
import json, os, subprocess, sys, time


def init_context(context):
    while os.path.exists(os.environ.get("HOLD", "")):
        time.sleep(0.01)
    if os.environ.get("FAIL"):
        raise RuntimeError("init boom")
    context.platform.set_termination_callback(lambda: context.logger.info("terminated"))


def handler(context, event):
    path = event.path.strip("/")
    if path == "block":
        child = subprocess.Popen(["sleep", "300"])
        with open("pids", "w") as file:
            file.write(f"{os.getpid()} {child.pid} ")
        sum(range(10**12))  # holds the interpreter's lock: no thread and no signal handler of Python runs
    if path == "talk":
        context.logger.info_with("told", a=1)
        context.logger.warn("warned")
        print("printed")
        sys.stderr.write("complained")
        sys.stderr.flush()
    if path == "flood":
        for number in range(3000):
            print("x" * 1000)
    names = ("FROM_FILE", "FROM_CALL", "PYTHONHOME", "PYTHONPATH")
    env = {key: value for key, value in os.environ.items() if key in names}
    return {"cpus": sorted(os.sched_getaffinity(0)), "env": env, "cwd": os.getcwd(), "pid": os.getpid()}
"""

FUNCTION_FILE = """
apiVersion: nuclio.io/v1
kind: NuclioFunction
metadata: {name: some-function}
spec:
  runtime: "python:3.11"
  handler: main:handler
  env:
  - {name: FROM_FILE, value: "1"}
  triggers:
    http: {kind: http, numWorkers: 1, workerTerminationTimeout: 1s}
"""


@pytest.fixture
def function(tmp_path: Path) -> Path:
    folder = tmp_path / "function"
    folder.mkdir()
    (folder / "main.py").write_text(FUNCTION)
    (folder / "function.yaml").write_text(FUNCTION_FILE)
    return folder


def start(
    function: Path, name: str = "demo", address: str | None = None, **options: Any
) -> Awaitable[HostProcess]:
    run_dir = function.parent / name
    settings: dict[str, Any] = {
        "env": {},
        "log_path": run_dir / "function.log",
        "run_dir": run_dir,
        **options,
    }
    return launch(function, name, address or f"{free_address()}:8080", python=FUNCTIONS_PYTHON, **settings)


async def ask(host: HostProcess, path: str = "/") -> Any:
    def get() -> Any:
        with urllib.request.urlopen(f"http://{host.address}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    return await asyncio.to_thread(get)


def with_host(function: Path, use: Callable[[HostProcess], Awaitable[None]], **options: Any) -> None:
    """Run one host around a coroutine, and check that nothing of it is left, in the system or in this process."""

    async def run() -> None:
        host = await start(function, **options)
        try:
            await host.wait_ready(20)
            await use(host)
        finally:
            host.kill()
            await host.wait()
        wait_for(
            lambda: not any(alive(pid) for pid in [host.pid, *host.wrapper_pids]),
            what="the end of all processes",
        )

    before = open_files()
    asyncio.run(run())
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_function_answers_with_the_environment_it_was_given(
    function: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/coach/only")

    async def use(host: HostProcess) -> None:
        state = await ask(host)
        assert state["env"] == {
            "FROM_FILE": "1",
            "FROM_CALL": "2",
            "PYTHONPATH": f"{function}:{function.parent}",
        }
        assert state["cwd"] == str(function.parent / "demo")
        assert state["pid"] == host.wrapper_pids[0]

    with_host(function, use, env={"FROM_CALL": "2"}, python_path=[function.parent])


def test_a_function_runs_on_the_cores_it_was_given(function: Path) -> None:
    cpu = min(os.sched_getaffinity(0))

    async def use(host: HostProcess) -> None:
        assert (await ask(host))["cpus"] == [cpu]
        assert os.sched_getaffinity(host.pid) == {cpu}

    with_host(function, use, cpus=[cpu])


def test_terminate_lets_the_callback_run_and_ends_everything(function: Path) -> None:
    async def use(host: HostProcess) -> None:
        assert await host.terminate(grace=10) == 0
        log = (function.parent / "demo" / "function.log").read_text()
        assert "terminated" in [json.loads(line)["message"] for line in log.splitlines()]
        assert await host.terminate(grace=10) == 0  # once more does no harm

    with_host(function, use)


def test_terminate_does_not_wait_for_a_worker_that_is_being_replaced(function: Path) -> None:
    hold = function / "hold"
    (function / "function.yaml").write_text(FUNCTION_FILE + "  eventTimeout: 200ms\n")

    async def use(host: HostProcess) -> None:
        hold.touch()  # the replacement waits in init_context
        with pytest.raises(urllib.error.HTTPError, match="408"):
            await ask(host, "/block")
        assert await host.terminate(grace=5) == 0

    with_host(function, use, env={"HOLD": str(hold)})


def test_terminate_kills_after_the_grace(function: Path) -> None:
    async def use(host: HostProcess) -> None:
        call = asyncio.create_task(ask(host, "/block"))
        pids = await blocked(function.parent / "demo")
        assert await host.terminate(grace=0.3) == -signal.SIGKILL
        wait_for(lambda: not any(alive(pid) for pid in pids), what="the end of the handler and of its child")
        with pytest.raises(OSError):
            await call

    with_host(function, use)


async def blocked(run_dir: Path) -> list[int]:
    """The wrapper and its child, once the handler holds the interpreter."""

    def pids() -> list[int]:
        path = run_dir / "pids"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    return await asyncio.to_thread(wait_for, lambda: len(pids()) == 2 and pids())


def test_what_a_function_says_is_in_its_log(function: Path) -> None:
    log = function.parent / "demo" / "function.log"

    async def use(host: HostProcess) -> None:
        await ask(host, "/talk")

        def entries() -> list[dict[str, Any]]:
            return [json.loads(line) for line in log.read_text().splitlines()]

        await asyncio.to_thread(wait_for, lambda: "printed" in [entry["message"] for entry in entries()])
        told = next(entry for entry in entries() if entry["message"] == "told")
        assert (told["level"], told["worker"], told["function"], told["with"]) == (
            "info",
            "0",
            "demo",
            {"a": 1},
        )
        assert next(entry for entry in entries() if entry["message"] == "warned")["level"] == "warn"
        await host.terminate(grace=10)

    with_host(function, use)
    assert "complained" in log.read_text(), "an unfinished line is written when the process ends"


def test_a_log_is_bounded(function: Path) -> None:
    log = function.parent / "demo" / "function.log"

    async def use(host: HostProcess) -> None:
        for _ in range(4):
            await ask(host, "/flood")
        await host.terminate(grace=10)

    with_host(function, use)
    assert log.stat().st_size + log.with_name("function.log.1").stat().st_size < 9 * 1024 * 1024


def test_many_start_at_once(function: Path) -> None:
    async def run() -> None:
        hosts = [await start(function, f"demo{number}") for number in range(12)]
        try:
            await asyncio.gather(*(host.wait_ready(60) for host in hosts))
            states = await asyncio.gather(*(ask(host) for host in hosts))
            assert len({state["pid"] for state in states}) == 12
        finally:
            codes = await asyncio.gather(*(host.terminate(grace=10) for host in hosts))
        assert codes == [0] * 12

    asyncio.run(run())


def test_an_address_in_use_is_said_in_one_line(function: Path) -> None:
    address = free_address()

    async def run() -> None:
        host = await start(function, address=f"{address}:8080")
        with pytest.raises(
            HostFailed, match=rf"demo: cannot listen on {address}:8080 \(Address already in use\)"
        ) as error:
            await host.wait_ready(20)
        assert error.value.code == await host.wait() == 69

    with socket.socket() as taken:
        taken.bind((address, 8080))
        taken.listen()
        asyncio.run(run())


def test_a_failing_init_context_is_said_in_one_line(function: Path) -> None:
    async def run() -> None:
        host = await start(function, env={"FAIL": "1"})
        with pytest.raises(HostFailed, match="demo: main:handler: RuntimeError: init boom"):
            await host.wait_ready(20)
        assert await host.wait() == 2
        assert "Traceback" in (function.parent / "demo" / "function.log").read_text()

    asyncio.run(run())


def test_a_slow_start_can_be_waited_for_again(function: Path) -> None:
    hold = function / "hold"
    hold.touch()

    async def run() -> None:
        host = await start(function, env={"HOLD": str(hold)})
        with pytest.raises(TemporaryError, match="not ready"):
            await host.wait_ready(0.2)
        hold.unlink()
        await host.wait_ready(20)
        assert await host.terminate(grace=10) == 0

    asyncio.run(run())


def test_a_host_killed_while_it_starts_is_told(function: Path) -> None:
    hold = function / "hold"
    hold.touch()

    async def run() -> None:
        host = await start(function, env={"HOLD": str(hold)})
        host.kill()
        with pytest.raises(HostFailed, match="ended while it started"):
            await host.wait_ready(20)

    asyncio.run(run())


def test_a_folder_without_function_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"function\.yaml: cannot be read"):
        asyncio.run(start(tmp_path))  # type: ignore[arg-type]


PARENT = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from contract.test_launch import ask, start

async def main():
    hosts = [await start(Path(sys.argv[1]), f"demo{{number}}") for number in range(3)]
    await asyncio.gather(*(host.wait_ready(30) for host in hosts))
    blocking = asyncio.create_task(ask(hosts[0], "/block"))
    print(json.dumps([pid for host in hosts for pid in [host.pid, *host.wrapper_pids]]), flush=True)
    await blocking

asyncio.run(main())
"""


def test_nothing_outlives_a_parent_that_was_killed(function: Path) -> None:
    """Idle functions, one whose handler holds the interpreter's lock, and a child process of that handler."""
    code = textwrap.dedent(PARENT).format(tests=str(Path(__file__).parents[1]))
    parent = subprocess.Popen([sys.executable, "-c", code, str(function)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = json.loads(parent.stdout.readline())
    pids += asyncio.run(blocked(function.parent / "demo0"))
    assert len(set(pids)) == 7 and all(alive(pid) for pid in pids)
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), timeout=5, what="the end of all processes")


def test_nothing_outlives_a_host_that_was_killed(function: Path) -> None:
    async def use(host: HostProcess) -> None:
        call = asyncio.create_task(ask(host, "/block"))
        pids = await blocked(function.parent / "demo")
        assert all(alive(pid) for pid in pids)
        os.kill(host.pid, signal.SIGKILL)
        wait_for(
            lambda: not any(alive(pid) for pid in pids),
            timeout=5,
            what="the end of the handler and of its child",
        )
        assert await host.wait() == -signal.SIGKILL
        with pytest.raises(OSError):
            await call

    with_host(function, use)


def test_standard_input_can_be_the_parent(function: Path) -> None:
    address = free_address()
    config = {
        "spec": {"handler": "main:handler", "triggers": {"http": {"kind": "http", "url": f"{address}:8080"}}}
    }
    (function / "processor.yaml").write_text(json.dumps(config))
    (function / "platform.yaml").write_text(json.dumps({"healthCheck": {"enabled": False}}))
    command = [sys.executable, "-P", "-m", "coach.platforms.local.host", "--config", "processor.yaml"]
    command += ["--platform-config", "platform.yaml", "--parent-fd", "0", "--ready-fd", "1"]
    environment = {**os.environ, "NUCLIO_PYTHON_EXE_PATH": str(FUNCTIONS_PYTHON)}
    with subprocess.Popen(
        command, cwd=function, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdin is not None and host.stdout is not None
        ready = next(json.loads(line) for line in host.stdout if '"ready": true' in line)
        assert all(alive(pid) for pid in ready["wrappers"])
        host.stdin.close()
        assert host.wait(10) == 75
    wait_for(lambda: not any(alive(pid) for pid in ready["wrappers"]), what="the end of the wrapper")


def test_a_host_stays_small() -> None:
    """Twenty may start at once: no numpy, no pydantic, and no YAML parser for what `launch` wrote."""
    code = (
        "import sys, coach.platforms.local.host.__main__, coach.platforms.local.host.app; print(*sys.modules)"
    )
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "scipy", "pydantic", "yaml", "httpx", "starlette", "rich", "typer"} & set(modules)
