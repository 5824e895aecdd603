"""A function's own process, as a pod's container starts it; that it answers as under Nuclio, test_contract.py shows."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from training import keys

from tests.functions.hosting import FUNCTIONS, PYTHON, Template, eventually, is_alive
from tests.functions.messages import epoch, model_file
from tests.functions.serving.asking import KEY, Served, free_ports, in_a_pod

pytestmark = pytest.mark.mxnet
HANGS = "import time; time.sleep(600)"


@pytest.fixture
def function(template: Template, mark: str, tmp_path: Path) -> Iterator[Served]:
    """A worker that gets its zygote from the template."""
    with in_a_pod(tmp_path, COACH_ZYGOTE_TEMPLATE=str(template.path), COACH_TEST_MARK=mark) as running:
        running.wait_ready()
        yield running


def start(function: Served, folder: Path, model: str) -> str:
    """Have a worker load this model file, alone: its group never forms. The epoch's token."""
    message = epoch(folder, model=model_file(folder / "model.py", model), group="g")
    (port,) = free_ports(1)
    place = {"role": "worker", "rank": 0, "workers": 1, "servers": 1, "host": "127.0.0.1"}
    status, answer = function.ask({"op": "start", **message, **place, "root": f"127.0.0.1:{port}"})
    assert status == 202, answer
    return str(message["epoch"])


def test_a_traceback_is_in_the_log_before_the_failure_is_answered(function: Served, tmp_path: Path) -> None:
    token = start(function, tmp_path, "print('seen')\ndef net():\n    pass\nraise ValueError('mine')")
    answer: dict = {"state": "starting", "version": 0}
    while answer["state"] == "starting":
        _, answer = function.ask({"op": "status", "epoch": token, "wait": 2, "seen": answer["version"]})
    messages = [entry["message"] for entry in function.entries()]
    assert answer["state"] == "failed" and answer["error"]["traced"]
    assert "ready" in messages and "ValueError: mine" in messages
    assert {entry["function"] for entry in function.entries()} == {"coach-worker"}


def test_health_is_answered_while_a_request_waits(function: Served, tmp_path: Path) -> None:
    token = start(function, tmp_path, HANGS)
    during = []

    def wait() -> None:
        function.ask({"op": "status", "epoch": token, "wait": 2, "seen": 1})

    while 200 not in during:  # a busy machine may take longer than such a request waits
        waiting = threading.Thread(target=wait)
        waiting.start()
        status = function.get("/live")
        during.append(status if waiting.is_alive() else 0)
        waiting.join()


def test_on_sigterm_it_answers_what_it_has_in_hand_and_leaves_nothing(function: Served, tmp_path: Path) -> None:
    token = start(function, tmp_path, HANGS)
    zygote = function.ask({"op": "health"})[1]["zygote_pid"]
    caller = http.client.HTTPConnection(function.address, timeout=60)
    caller.request("POST", "/", json.dumps({"op": "status", "epoch": token, "wait": 2, "seen": 1}), {keys.HEADER: KEY})
    eventually(lambda: has_in_hand(function, caller.sock.getsockname()[1]))
    function.process.terminate()
    with contextlib.closing(caller), caller.getresponse() as answer:
        assert json.load(answer) == {"epoch": token, "state": "starting", "version": 1, "progress": {}}
    assert function.process.wait(120) == 0
    eventually(lambda: not is_alive(zygote))


def has_in_hand(function: Served, port: int) -> bool:
    """Whether the process has read all that this port's caller sent, and each of its threads waits."""
    caller = f":{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    read = any(row[2].endswith(caller) and row[3] == "01" and row[4].endswith(":00000000") for row in rows)
    threads = Path(f"/proc/{function.process.pid}/task").glob("*/stat")
    return read and all(thread.read_text().rpartition(")")[2].split()[0] == "S" for thread in threads)


def test_nothing_is_left_of_one_that_was_killed(function: Served, tmp_path: Path) -> None:
    start(function, tmp_path, HANGS)
    zygote = function.ask({"op": "health"})[1]["zygote_pid"]
    function.process.kill()
    function.process.wait()
    eventually(lambda: not is_alive(zygote))


def test_without_requests_it_ends_by_itself(template: Template, mark: str, tmp_path: Path) -> None:
    environment = {"COACH_ZYGOTE_TEMPLATE": str(template.path), "COACH_TEST_MARK": mark}
    with in_a_pod(tmp_path, "--idle-seconds", "1", **environment) as running:
        assert running.process.wait(120) == 0
        assert running.entries()[-1]["message"] == "no request for 1 s: its handler is gone; ending"


def test_the_environment_may_say_which_function_it_is(template: Template, mark: str, tmp_path: Path) -> None:
    environment = {"COACH_ZYGOTE_TEMPLATE": str(template.path), "COACH_TEST_MARK": mark}
    nuclio = {"COACH_ROLE": "server", "NUCLIO_FUNCTION_NAME": "job-server-3"}
    with in_a_pod(tmp_path, role="", **nuclio, **environment) as running:
        running.wait_ready()
        assert running.ask({"op": "health"})[1]["role"] == "server"
        assert running.entries()[0]["function"] == "job-server-3"


@pytest.mark.parametrize("role", ["", "dancer"])
def test_a_role_that_is_none_is_refused(tmp_path: Path, role: str) -> None:
    with in_a_pod(tmp_path, role="", COACH_ROLE=role) as running:
        assert running.process.wait(120) == 2
        assert "argument role: invalid choice" in running.log.read_text()


def test_an_address_that_is_taken_is_said_in_one_line(tmp_path: Path, function: Served) -> None:
    port = function.address.rpartition(":")[2]
    command = [PYTHON, "-m", "training.serving.serve", "worker", "--health-port", port]
    environment = {**os.environ, keys.VARIABLE: KEY}
    done = subprocess.run(command, cwd=FUNCTIONS, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"function: cannot listen on 0.0.0.0:{port} (Address already in use)\n"


CANNOT = """
import sys
from training.serving import serve

def fail(role):
    raise OSError("no zygote can be started")

serve.Function = fail
serve.run(serve.Order("worker", "f", "127.0.0.1:0", log=sys.argv[1]))
"""


def test_what_keeps_a_function_from_starting_is_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "f.log"
    done = subprocess.run([PYTHON, "-c", CANNOT, str(log)], cwd=FUNCTIONS, check=False)
    assert done.returncode == 1
    assert "OSError: no zygote can be started" in log.read_text()


LOG = """
import os, sys
from pathlib import Path
from training.serving.log import Log
log = Log("f", Path(sys.argv[1]))
for _ in range(9):
    for number in range(1000):
        print("x" * 1000)
    sys.stdout.flush()
os.write(2, b"y" * 20_000 + b"\\n\\xff\\n")
print("unfinished", end="")
log.close()
"""


def test_a_log_is_bounded_and_keeps_an_unfinished_line(tmp_path: Path) -> None:
    log = tmp_path / "logs/f.log"
    subprocess.run([PYTHON, "-c", LOG, str(log)], cwd=FUNCTIONS, check=True)
    before = log.with_name("f.log.1")
    assert 4e6 < before.stat().st_size <= 4 << 20 and log.stat().st_size <= 4 << 20
    assert log.stat().st_mode & 0o77 == 0
    lines = log.read_text().splitlines()
    assert json.loads(lines[0])["message"] == "what was printed more than 4 MiB before this is gone"
    assert "unfinished" in lines[-1] and any("(20000 characters)" in line for line in lines)
    assert any("\\ufffd" in line for line in lines)


@pytest.mark.root
def test_as_the_first_process_of_a_container_it_ends_on_sigterm_and_buries_the_dead(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a process namespace needs root")
    port, health_port = free_ports(2)
    command = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        PYTHON,
        "-m",
        "training.serving.serve",
    ]
    options = ["worker", "--port", str(port), "--health-port", str(health_port)]
    log = tmp_path / "output.log"
    with log.open("wb") as output:
        environment = {**os.environ, keys.VARIABLE: KEY}
        outer = subprocess.Popen([*command, *options], cwd=FUNCTIONS, env=environment, stdout=output, stderr=output)
    running = Served(outer, f"127.0.0.1:{port}", f"127.0.0.1:{health_port}", log)
    try:
        running.wait_ready()
        (first,) = children(outer.pid)
        (zygote,) = children(first)
        os.kill(zygote, signal.SIGKILL)
        eventually(lambda: zygote not in children(first))
        os.kill(first, signal.SIGTERM)
        assert outer.wait(120) == 0
    finally:
        outer.kill()
        outer.wait()


def children(pid: int) -> list[int]:
    """Those of a process, dead ones too."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


KEYS = {"none": "", "another": "the-key-of-that-function", "a part": "the-key-of", "not ASCII": "\xe9"}


@pytest.mark.parametrize("shown", KEYS.values(), ids=KEYS)
def test_nothing_is_done_for_who_does_not_show_the_key(function: Served, shown: str) -> None:
    """Health says a group's name, `start` runs a file, `stop` ends what runs: none of them is a stranger's."""
    for body in ({"op": "health"}, {"op": "stop", "group": "g"}, {"op": "start"}, b"x", b"{" * 1000):
        status, answer = function.ask(body, key=shown)
        assert (status, set(answer)) == (403, {"error"})
        assert "X-Coach-Key" in answer["error"]["message"]
    assert function.ask({"op": "health"})[0] == 200


def test_a_web_page_in_a_browser_cannot_ask_it(function: Served) -> None:
    """What a page can send without the function's consent has no header of ours."""
    assert function.ask({"op": "health"}, kind="text/plain", key="")[0] == 403
    host, _, port = function.address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("OPTIONS", "/", headers={"Access-Control-Request-Headers": "X-Coach-Key", "Origin": "http://x"})
    answer = connection.getresponse()
    assert answer.status == 501 and not [name for name, _ in answer.getheaders() if name.startswith("Access-Control")]
    connection.close()


def test_strangers_that_say_nothing_are_cut_off_and_keep_nobody_out_for_long(function: Served) -> None:
    host, _, port = function.address.partition(":")
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(80)]
        for one in silent[::2]:
            with contextlib.suppress(OSError):  # one too many is closed at once
                one.sendall(b"POST / HTTP/1.1\r\nX-Slow: ")
        for one in silent:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
    assert function.ask({"op": "health"})[0] == 200


def test_without_a_key_it_does_not_start(tmp_path: Path) -> None:
    with in_a_pod(tmp_path, COACH_KEY="") as running:
        assert running.process.wait(120) == 1
        assert running.log.read_text() == "function: COACH_KEY is not set: it answers only who shows its key\n"


def test_its_key_is_in_the_environment_of_no_process_that_it_starts(function: Served) -> None:
    zygote = function.ask({"op": "health"})[1]["zygote_pid"]
    assert b"COACH_KEY" not in Path(f"/proc/{zygote}/environ").read_bytes()
