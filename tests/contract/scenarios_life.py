"""Scenarios of a host's own life: starting, event timeouts, stopping. See scenarios.py."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from tests.contract.engine import Engine, Running, alive, wait_for
from tests.contract.scenarios import SCENARIOS, SOURCE, Call, Facts, busy, go, marks, scenario, shown, start

__all__ = ["SCENARIOS"]  # complete once this module is loaded


@scenario("init_context takes its time", {"live": 200, "ready": 503, "listening": False, "afterwards": 200})
def slow_start(engine: Engine, folder: Path) -> Facts:
    folder.mkdir(parents=True)
    (folder / "hold").touch()
    with engine.start(folder, SOURCE) as running:
        wait_for(lambda: marks(running, "init"))
        wait_for(lambda: running.health("/live") is not None)
        facts: Facts = {
            "live": running.health("/live"),
            "ready": running.health("/ready"),
            "listening": running.listening(),
        }
        (folder / "hold").unlink()
        running.wait_ready()
        return {**facts, "afterwards": running.request().status}


def _fails(engine: Engine, folder: Path, **options: object) -> Facts:
    with engine.start(folder, SOURCE, **options) as running:  # type: ignore[arg-type]
        return {"exit code": running.wait_exit(20), "listening": running.listening()}


@scenario("init_context raises", {"exit code": 2, "listening": False})
def init_raises(engine: Engine, folder: Path) -> Facts:
    folder.mkdir(parents=True)
    (folder / "fail").touch()
    return _fails(engine, folder)


@scenario("the handler's module does not exist", {"exit code": 2, "listening": False})
def no_module(engine: Engine, folder: Path) -> Facts:
    return _fails(engine, folder, spec={"handler": "nowhere:handler"})


@scenario("the handler does not exist", {"exit code": 2, "listening": False})
def no_handler(engine: Engine, folder: Path) -> Facts:
    return _fails(engine, folder, handler="nobody")


@scenario("the handler is malformed", {"exit code": 2, "listening": False})
def malformed_handler(engine: Engine, folder: Path) -> Facts:
    return _fails(engine, folder, spec={"handler": "snippets"})


@scenario("eventTimeout is no duration", {"exit code": 1, "listening": False})
def bad_timeout(engine: Engine, folder: Path) -> Facts:
    return _fails(engine, folder, spec={"eventTimeout": "2 s"})


@scenario("the functions' Python does not exist", {"exit code": 1, "listening": False})
def bad_python(engine: Engine, folder: Path) -> Facts:
    return _fails(engine, folder, env={"NUCLIO_PYTHON_EXE_PATH": "/nowhere/python"})


@scenario(
    "the address is in use",
    {"exit code": 69, "who answers": "the first"},
    real={"exit code": None},
    differs="Nuclio's processor says nothing and stays; the host ends with one line",
)
def address_in_use(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder / "first") as first:
        pid = json.loads(first.request().body)["pid"]
        with engine.start(folder / "second", SOURCE, address=first.address) as second:
            if engine.real:
                wait_for(lambda: marks(second, "init"))
                time.sleep(1)
                code = second.process.poll()
            else:
                code = second.wait_exit(30)
        who = "the first" if json.loads(first.request().body)["pid"] == pid else "the second"
        return {"exit code": code, "who answers": who}


def _warm_up(engine: Engine) -> None:
    """Nuclio's event clock may stand still during the first ten seconds."""
    if engine.real:
        time.sleep(11)


@scenario(
    "an event takes longer than eventTimeout",
    {
        "answer": '408 {"error": "handler timed out"}',
        "content type": "text/plain; charset=utf-8",
        "between once and twice the timeout": True,
        "while it restarts": {"call": "500 Processor not ready (current status: stopped)", "ready": 503},
        "afterwards": {"call": 200, "ready": 200, "inits": 2, "state": "lost"},
        "a shorter event": "200 slept",
    },
)
def event_timeout(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder, spec={"eventTimeout": "2s"}) as running:
        _warm_up(engine)
        before = json.loads(running.request().body)
        (folder / "hold").touch()  # the new process waits in init_context
        call = busy(running)
        call.join()
        assert call.answer is not None
        facts: Facts = {
            "answer": shown(call.answer),
            "content type": call.answer.header("Content-Type"),
            # A machine with much else to do answers later.
            "between once and twice the timeout": 1.9 <= call.answer.seconds <= (4.2 if engine.real else 20),
        }
        wait_for(lambda: marks(running, "init") == 2, what="the new process")
        facts["while it restarts"] = {"call": shown(running.request()), "ready": running.health()}
        (folder / "hold").unlink()
        wait_for(lambda: running.health() == 200, what="readiness after a timeout")
        after = json.loads(running.request().body)
        facts["afterwards"] = {
            "call": 200,
            "ready": running.health(),
            "inits": marks(running, "init"),
            "state": "lost" if after["count"] == 1 and after["pid"] != before["pid"] else "kept",
        }
        facts["a shorter event"] = shown(running.request("POST", "/sleep?s=0.1"))
        return facts


@scenario(
    "an event that times out had a child process",
    {"answer": '408 {"error": "handler timed out"}', "child": "ended"},
    real={"child": "runs on"},
    differs="the host kills the wrapper's process group, so that nothing is left on the machine",
)
def timeout_with_child(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder, spec={"eventTimeout": "2s"}) as running:
        _warm_up(engine)
        answer = Call(running, "/child").result()
        child = int((running.folder / "mark").read_text().split()[1])
        old = running._seen.copy()
        wait_for(lambda: not any(alive(pid) for pid in old), what="the end of the old wrapper")
        _settle(engine, [child])
        running.wrappers()
        left = alive(child)
        if left:
            os.kill(child, signal.SIGKILL)
        return {"answer": answer, "child": "runs on" if left else "ended"}


def _settle(engine: Engine, processes: Collection[int]) -> None:
    """What the host ends is soon gone; what Nuclio's processor leaves is not waited for."""
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not any(alive(pid) for pid in processes), timeout=0.3 if engine.real else 20)


def _stop(running: Running) -> int:
    running.signal(signal.SIGTERM)
    return running.wait_exit(30)


@scenario("SIGTERM, idle", {"exit code": 0, "callbacks": 2, "left": 0})
def term_idle(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder, trigger={"numWorkers": 2}) as running:
        code = _stop(running)
        wait_for(lambda: not any(alive(pid) for pid in running._seen), what="the end of the wrappers")
        return {"exit code": code, "callbacks": marks(running, "terminated"), "left": 0}


@scenario(
    "SIGTERM, one worker busy and another free",
    {
        "new call": "503",
        "ready": 200,
        "live": 200,
        "health": 200,
        "in hand": "200 slept",
        "callbacks": 2,
        "exit code": 0,
    },
)
def term_busy(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder, trigger={"numWorkers": 2, "workerTerminationTimeout": "20s"}) as running:
        call = busy(running)
        running.signal(signal.SIGTERM)
        wait_for(lambda: marks(running, "terminated") == 1, what="the free worker's callback")
        facts: Facts = {
            "new call": shown(running.request()),
            "ready": running.health(),
            "live": running.health("/live"),
            "health": running.request("GET", "/__internal/health").status,
        }
        go(running)
        facts["in hand"] = call.result()
        code = running.wait_exit(30)
        return {**facts, "callbacks": marks(running, "terminated"), "exit code": code}


@scenario(
    "SIGTERM, and the handler does not end",
    {"in hand": "cut", "exit code": 0, "bounded": True, "left": 0},
    real={"left": 1},
    differs="Nuclio's processor leaves the wrapper running until its handler returns; the host kills it",
)
def term_stuck(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder, trigger={"workerTerminationTimeout": "0s"}) as running:
        call = busy(running)
        code = _stop(running)
        _settle(engine, running._seen)
        left = sum(alive(pid) for pid in running._seen)
        return {"in hand": call.result(), "exit code": code, "bounded": True, "left": left}


@scenario("SIGTERM while it starts", {"exit code": -15, "callbacks": 0})
def term_at_start(engine: Engine, folder: Path) -> Facts:
    folder.mkdir(parents=True)
    (folder / "hold").touch()
    with engine.start(folder, SOURCE) as running:
        wait_for(lambda: marks(running, "init"))
        running.wrappers()
        code = _stop(running)
        (folder / "hold").unlink()
        return {"exit code": code, "callbacks": marks(running, "terminated")}


@scenario("SIGINT is SIGTERM", {"exit code": 0, "callbacks": 1})
def interrupt(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder) as running:
        running.signal(signal.SIGINT)
        return {"exit code": running.wait_exit(30), "callbacks": marks(running, "terminated")}


@scenario(
    "SIGKILL of the host, one wrapper idle and one busy",
    {"in hand": "cut", "idle wrapper ended": True, "busy wrapper ended at once": True},
    real={"busy wrapper ended at once": False},
    differs="Nuclio's wrapper looks for its processor only between events; the host's is killed by the kernel",
)
def host_killed(engine: Engine, folder: Path) -> Facts:
    with start(engine, folder, trigger={"numWorkers": 2}) as running:
        call = busy(running, "/sleep?s=3" if engine.real else "/sleep?s=30")
        wrappers = running.wrappers()
        running.signal(signal.SIGKILL)
        running.wait_exit()
        wait_for(lambda: sum(alive(pid) for pid in wrappers) <= 1, what="the end of the idle wrapper")
        _settle(engine, wrappers)
        left = sum(alive(pid) for pid in wrappers)
        facts: Facts = {
            "in hand": call.result(),
            "idle wrapper ended": True,
            "busy wrapper ended at once": left == 0,
        }
        wait_for(lambda: not any(alive(pid) for pid in wrappers), what="the end of the busy wrapper")
        return facts
