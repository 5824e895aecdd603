"""The command of a container that runs one function, here as a plain process: what a pod relies on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.engine import FUNCTIONS_PYTHON, wait_for

ROOT = Path(__file__).resolve().parents[3]
FUNCTION = """
import os, time

def init_context(context):
    while os.path.exists("{hold}"):
        time.sleep(0.01)

def handler(context, event):
    context.logger.info("asked")
    return {{"role": "worker"}}
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    """A folder of functions whose worker starts when the file `hold` is gone."""
    worker = tmp_path / "functions/worker"
    worker.mkdir(parents=True)
    (worker / "__init__.py").touch()
    (worker / "handler.py").write_text(FUNCTION.format(hold=tmp_path / "hold"))
    (worker / "function.yaml").write_text((ROOT / "functions/worker/function.yaml").read_text())
    return tmp_path / "functions"


@contextlib.contextmanager
def pod(
    functions: Path, *options: str, role: tuple[str, ...] = ("worker",)
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, and the addresses of the function and of its health."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("", 0))
        other.bind(("", 0))
        port, health_port = one.getsockname()[1], other.getsockname()[1]
    ports = ["--port", str(port), "--health-port", str(health_port)]
    (functions.parent / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "coach.platforms.local.host.pod", *role, *ports, *options],
        env={
            **os.environ,
            "COACH_FUNCTIONS": str(functions),
            "NUCLIO_PYTHON_EXE_PATH": str(FUNCTIONS_PYTHON),
            "TMPDIR": str(functions.parent / "tmp"),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, f"127.0.0.1:{port}", f"127.0.0.1:{health_port}"
    finally:
        process.kill()
        process.communicate()


def status(address: str, path: str) -> int:
    """The HTTP status, 0 where nobody listens."""
    try:
        return int(urllib.request.urlopen(f"http://{address}{path}", timeout=5).status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


@pytest.mark.processes
def test_serves_the_function_logs_to_standard_output_and_ends_on_sigterm(functions: Path) -> None:
    with pod(functions) as (process, address, health):
        wait_for(lambda: status(health, "/ready") == 200)
        with urllib.request.urlopen(f"http://{address}/", b"{}", timeout=5) as answer:
            assert json.load(answer) == {"role": "worker"}
        process.terminate()
        output, _ = process.communicate(timeout=10)
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["message"] for line in lines] == ["ready", "asked"]
    assert {line["function"] for line in lines} == {"coach-worker"}
    assert process.returncode == 0
    assert not list((functions.parent / "tmp").iterdir())


@pytest.mark.processes
def test_is_alive_and_not_ready_while_the_function_starts_and_ends_on_sigterm_then_too(
    functions: Path,
) -> None:
    (functions.parent / "hold").touch()
    with pod(functions) as (process, _, health):
        wait_for(lambda: status(health, "/live") == 200)
        assert status(health, "/ready") == 503
        process.terminate()
        assert process.wait(timeout=5) == -signal.SIGTERM


def test_a_folder_without_functions_is_one_line_of_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coach.platforms.local.host.pod", "worker", "--functions", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert str(tmp_path / "worker/function.yaml") in ended.stderr


def test_without_requests_it_ends_by_itself(functions: Path) -> None:
    with pod(functions, "--idle-seconds", "1.5") as (process, address, _):
        wait_for(lambda: status(address, "/") == 200, 30)
        for _ in range(4):  # requests keep it
            time.sleep(0.7)
            assert status(address, "/") == 200
        assert process.wait(10) == 0


@pytest.mark.processes
def test_without_a_role_it_runs_what_nuclios_controller_has_written_down(functions: Path) -> None:
    spec = yaml.safe_load((functions / "worker/function.yaml").read_text())["spec"]
    file = functions.parent / "processor.yaml"
    file.write_text(yaml.safe_dump({"metadata": {"name": "job-worker-3"}, "spec": spec}))
    with pod(functions, "--nuclio", str(file), role=()) as (process, address, health):
        wait_for(lambda: status(health, "/ready") == 200)
        assert status(address, "/__internal/health") == 200, "where Nuclio's readiness probe asks"
        assert status(address, "/") == 200
        process.terminate()
        output, _ = process.communicate(timeout=10)
    assert {json.loads(line)["function"] for line in output.splitlines()} == {"job-worker-3"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "spec.handler is missing"),
        ("spec: {handler: other:run, triggers: {http: {kind: http}}}", "none of Coach's functions"),
    ],
)
def test_what_nuclio_has_written_down_must_be_one_of_our_functions(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "processor.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "coach.platforms.local.host.pod", "--nuclio", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and words in ended.stderr and len(ended.stderr.splitlines()) == 1
