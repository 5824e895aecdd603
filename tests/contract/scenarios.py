"""What no single answer shows: waiting, dying, stopping. Each scenario runs a function and returns facts.

`expect` are the facts both engines must give; `real` overrides those where the host does otherwise on purpose, and
`differs` says why.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.engine import Answer, Engine, Running, alive, wait_for

Facts = dict[str, Any]

SOURCE = """
import json, os, signal, subprocess, sys, time
import nuclio_sdk

COUNT = 0
MARK = os.path.join(os.getcwd(), "mark")


def mark(text):
    with open(MARK, "a") as file:
        file.write(text + "\\n")


def init_context(context):
    mark("init")
    while os.path.exists("hold"):
        time.sleep(0.01)
    if os.path.exists("fail"):
        raise RuntimeError("init boom")
    context.platform.set_termination_callback(lambda: mark("terminated"))


def handler(context, event):
    global COUNT
    COUNT += 1
    path = event.path.strip("/")
    if path == "sleep":
        mark("start")
        time.sleep(float(event.fields["s"]))
        mark("end")
        return "slept"
    if path == "until":  # the test says so
        mark("start")
        while not os.path.exists("go"):
            time.sleep(0.005)
        mark("end")
        return "slept"
    if path == "exit":
        os._exit(int(event.fields["code"]))
    if path == "kill":
        os.kill(os.getpid(), int(event.fields["signal"]))
        time.sleep(10)
    if path == "child":
        child = subprocess.Popen(["sleep", "60"])
        mark(str(child.pid))
        child.wait()
    if path == "empty-list":
        return []
    if path == "call":
        out = nuclio_sdk.Event(body={"q": 1}, path="/double", method="POST")
        answer = context.platform.call_function("other", out, service_name_override=event.fields["to"], timeout=10)
        return {"status": answer.status_code, "body": answer.body, "type": answer.content_type}
    if path == "double":
        return {"got": event.body}
    return {"pid": os.getpid(), "count": COUNT, "worker": context.worker_id}
"""


@dataclass(frozen=True)
class Scenario:
    name: str
    run: Callable[[Engine, Path], Facts]
    expect: Facts
    real: Facts | None = None
    differs: str | None = None

    def expected(self, engine: Engine) -> Facts:
        return {**self.expect, **(self.real or {})} if engine.real else self.expect


SCENARIOS: list[Scenario] = []


def scenario(name: str, expect: Facts, real: Facts | None = None, differs: str | None = None) -> Any:
    """Add a function to the list."""

    def add(run: Callable[[Engine, Path], Facts]) -> Callable[[Engine, Path], Facts]:
        SCENARIOS.append(Scenario(name, run, expect, real, differs))
        return run

    return add


class Call(threading.Thread):
    """A request on its own thread; `answer` stays None when the connection was cut without one."""

    def __init__(self, running: Running, path: str, timeout: float = 40) -> None:
        super().__init__(daemon=True)
        self.answer: Answer | None = None
        self._running, self._path, self._timeout = running, path, timeout
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._running.request("POST", self._path, timeout=self._timeout)
        except (OSError, ConnectionError):
            self.answer = None

    def result(self) -> str:
        """Status and body, or `cut`."""
        self.join(60)
        assert not self.is_alive()
        return shown(self.answer)


def shown(answer: Answer | None) -> str:
    return "cut" if answer is None else f"{answer.status} {answer.text}".strip()


def marks(running: Running, text: str) -> int:
    """How often the function wrote this."""
    path = running.folder / "mark"
    return path.read_text().split("\n").count(text) if path.exists() else 0


def start(engine: Engine, folder: Path, **options: Any) -> Running:
    trigger = {"workerAvailabilityTimeoutMilliseconds": 10000, "workerTerminationTimeout": "100ms"}
    options["trigger"] = {**trigger, **options.get("trigger", {})}
    running = engine.start(folder, SOURCE, **options)
    try:
        running.wait_ready()
    except BaseException:
        running.__exit__()
        raise
    return running


def busy(running: Running, path: str = "/until") -> Call:
    """Occupy a worker, mostly until `go`, and wait until its handler runs."""
    before = marks(running, "start")
    call = Call(running, path)
    wait_for(lambda: marks(running, "start") > before, what="a busy worker")
    return call


def go(running: Running) -> None:
    """Let handlers of `/until` return."""
    (running.folder / "go").touch()


def _wait(engine: Engine, folder: Path, milliseconds: int) -> Facts:
    with start(engine, folder, trigger={"workerAvailabilityTimeoutMilliseconds": milliseconds}) as running:
        first = busy(running)
        answer = running.request()
        facts: Facts = {
            "second": shown(answer),
            "content type": answer.header("Content-Type"),
            "waited": milliseconds / 1000 <= answer.seconds and first.is_alive(),
            "health": running.request("GET", "/__internal/health").status,
            "ready": running.health(),
        }
        go(running)
        facts["first"] = first.result()
        facts["afterwards"] = running.request().status
        return facts


_BUSY = {"second": "503", "content type": None, "waited": True, "health": 200, "ready": 200}


@scenario("busy, and the function may not wait", {**_BUSY, "first": "200 slept", "afterwards": 200})
def busy_at_once(engine: Engine, folder: Path) -> Facts:
    return _wait(engine, folder, 0)


@scenario("busy, and the wait is over after 500 ms", {**_BUSY, "first": "200 slept", "afterwards": 200})
def busy_for_long(engine: Engine, folder: Path) -> Facts:
    return _wait(engine, folder, 500)


@scenario(
    "a worker comes free while a call waits", {"first": "200 slept", "second": 200, "one at a time": True}
)
def busy_then_free(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder) as running:
        first = busy(running)
        second = Call(running, "/")
        time.sleep(0.2)
        waits = second.is_alive()
        go(running)
        second.join()
        assert second.answer is not None
        return {"first": first.result(), "second": second.answer.status, "one at a time": waits}


@scenario("the client goes away", {"handler ran to its end": True, "next call": 200, "waited": True})
def client_gone(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder) as running:
        with socket.create_connection((running.address, 8080)) as sock:
            sock.sendall(b"POST /until HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            wait_for(lambda: marks(running, "start"))
        following = Call(running, "/")
        time.sleep(0.2)
        waits = following.is_alive()
        go(running)
        following.join()
        assert following.answer is not None
        return {
            "handler ran to its end": marks(running, "end") == 1,
            "next call": following.answer.status,
            "waited": waits,
        }


@scenario(
    "two workers",
    {"processes": 2, "inits": 2, "own state": True, "worker ids": ["0", "1"], "side by side": True},
)
def two_workers(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder, trigger={"numWorkers": 2}) as running:
        first = busy(running)
        other = running.request()
        beside = first.is_alive()
        go(running)
        first.join()
        seen = [running.request().body for _ in range(6)] + [other.body]
        states = [json.loads(body) for body in seen]
        return {
            "processes": len({state["pid"] for state in states}),
            "inits": marks(running, "init"),
            "own state": max(state["count"] for state in states) < 8,
            "worker ids": sorted({state["worker"] for state in states}),
            "side by side": beside,
        }


@scenario(
    "a function calls a function",
    {"answer": '200 {"status": 200, "body": {"got": {"q": 1}}, "type": "application/json"}'},
)
def call_function(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder / "a") as caller, start(engine, folder / "b") as callee:
        return {"answer": shown(caller.request("POST", f"/call?to={callee.address}"))}


def _dies(engine: Engine, folder: Path, path: str) -> Facts:
    with start(engine, folder, trigger={"numWorkers": 2}) as running:
        answer = Call(running, path).result()
        code = running.wait_exit(30)
        wait_for(lambda: not any(alive(pid) for pid in running._seen), what="the end of the wrappers")
        if engine.real and answer in ("500 EOF", "cut"):
            answer = _EITHER
        return {"answer": answer, "exit code": code, "left": 0}


_DEATH = {"answer": "500 EOF", "exit code": 2, "left": 0}
_EITHER = "500 EOF or cut"
_RACE = "Nuclio's processor now and then ends before it has answered; the host answers first"


@scenario("a wrapper exits with 3 in a handler", _DEATH, {"answer": _EITHER}, _RACE)
def wrapper_exits(engine: Engine, folder: Path) -> Facts:
    return _dies(engine, folder, "/exit?code=3")


@scenario("a wrapper is killed in a handler", _DEATH, {"answer": _EITHER}, _RACE)
def wrapper_killed(engine: Engine, folder: Path) -> Facts:
    return _dies(engine, folder, f"/kill?signal={signal.SIGKILL:d}")


@scenario("a wrapper crashes in a handler", _DEATH, {"answer": _EITHER}, _RACE)
def wrapper_crashes(engine: Engine, folder: Path) -> Facts:
    return _dies(engine, folder, f"/kill?signal={signal.SIGSEGV:d}")


@scenario(
    "a wrapper exits with 0 in a handler",
    {"answer": "500 EOF", "exit code": 2, "next call": None},
    real={"exit code": None, "next call": "500 Can't encode item"},
    differs="Nuclio's processor lives on without the worker and never heals; the host ends, as for any other exit code",
)
def wrapper_exits_with_zero(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder) as running:
        answer = Call(running, "/exit?code=0").result()
        if not engine.real:
            return {"answer": answer, "exit code": running.wait_exit(30), "next call": None}
        time.sleep(0.5)
        following = shown(running.request())
        return {
            "answer": answer,
            "exit code": running.process.poll(),
            "next call": following.partition(":")[0],
        }


@scenario("an idle wrapper is killed from outside", {"exit code": 2, "listening": False})
def idle_wrapper_killed(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder) as running:
        os.kill(running.wrappers()[0], signal.SIGKILL)
        return {"exit code": running.wait_exit(30), "listening": running.listening()}


@scenario(
    "an empty list is returned",
    {"answer": "500", "next call": 200},
    real={"next call": 503},
    differs="Nuclio's processor loses the worker for ever; the host goes on using it",
)
def empty_list(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder, trigger={"workerAvailabilityTimeoutMilliseconds": 300}) as running:
        return {
            "answer": shown(running.request("POST", "/empty-list")),
            "next call": running.request().status,
        }
