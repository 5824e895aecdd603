"""The service as a process: it is found, there is one of it, it stops cleanly, and a killed one loses nothing."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import httpx
import pytest

from coach.cli.main import invoke
from coach.core.errors import PermanentError, TemporaryError, UserError
from coach.handler import endpoint
from coach.handler.endpoint import ServiceRunsError
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.service.client import Client, service_of
from tests.cli.conftest import ROOT
from tests.forked import Forked
from tests.service.conftest import job_text
from tests.service.test_api import ENDLESS

pytestmark = pytest.mark.processes

PATIENCE = 60.0


#: Services are forked from one process, which has imported what they are made of.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.service.fake_service"])


def _serve(out: Any, log: Any, folder: Path, environment: dict[str, str], words: Sequence[str]) -> None:
    """What a fork does: it becomes a service with files, environment and words of its own."""
    from tests.service import fake_service

    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    os.dup2(out.detach(), sys.stdout.fileno())
    os.dup2(log.detach(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.exit(fake_service.main(words))


def _end_with_the_tests() -> None:
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os.kill(os.getpid(), signal.SIGKILL)


class Served:
    """A service on a platform in memory, and what it has said."""

    def __init__(self, folder: Path, *words: str, port: str = "0", waits: bool = True) -> None:
        # A file: an unread pipe would fill up, and stop the service.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed with the service)
        reading, writing = os.pipe()
        self._out = os.fdopen(reading, encoding="utf-8")
        files = reduction.DupFd(writing), reduction.DupFd(self._log.fileno())
        self.process = FORKS.Process(target=_serve, args=(*files, folder, dict(os.environ), (port, *words)))
        self.process.start()
        os.close(writing)
        self.ready = self.hear_ready() if waits else ""

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def hear_ready(self) -> str:
        """The line that it prints once it serves."""
        return self._out.readline()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, number: int | None = signal.SIGINT) -> tuple[int, list[dict[str, Any]]]:
        """Its exit code and its log, after this signal."""
        if number is not None:
            self.send_signal(number)
        log = self.said()
        assert self.process.exitcode is not None
        return self.process.exitcode, [json.loads(line) for line in log.splitlines()]

    def said(self) -> str:
        """What it has logged, once it has ended."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, "it goes on"
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        """Kill it where it still runs."""
        self.process.kill()
        self.process.join()
        self._out.close()
        self._log.close()


@contextlib.contextmanager
def served(folder: Path, *words: str, port: str = "0") -> Iterator[Served]:
    service = Served(folder, *words, port=port)
    try:
        yield service
    finally:
        service.close()


class Joined:
    """`coach run` of a file in a process of its own, and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.said = ""

    def hear(self, words: str) -> None:
        """Listen until it has said so."""
        assert self._process.stdout is not None
        while words not in self.said:
            line = self._process.stdout.readline()
            assert line, self.said
            self.said += line

    def end(self, number: int | None = None) -> int:
        """Its exit code, after this signal; what it said until then is heard."""
        if number is not None:
            self._process.send_signal(number)
        assert self._process.stdout is not None
        self.said += self._process.stdout.read()
        return self._process.wait(PATIENCE)


@contextlib.contextmanager
def joined(file: Path) -> Iterator[Joined]:
    command = [sys.executable, "-m", "coach.cli.main", "run", str(file)]
    with Forked(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield Joined(process)
        finally:
            process.kill()


def endless(file: Path) -> Path:
    """A job file of the file's own name, whose job does not end."""
    file.write_text(job_text(file.stem, maxEpochs=100_000, **ENDLESS, workers={"min": 1, "max": 1}))
    return file


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return endless(tmp_path / "job.yaml")


def coach(*words: str) -> tuple[int, str, str]:
    """A command in this process: exit code, stdout, stderr."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = invoke(words)
    return code, out.getvalue(), err.getvalue()


def rows() -> dict[str, dict[str, Any]]:
    code, out, err = coach("ps", "-o", "json")
    assert code == 0, err
    return {row["name"]: row for row in json.loads(out)}


def until(done: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- one of it, and found -------------------------------------------------------------------------------


def test_a_service_is_found_by_the_other_commands_and_gone_afterwards(
    home: StateDirectory, tmp_path: Path, job: Path
) -> None:
    code, _, err = coach("submit", str(job))
    assert (code, "no service runs" in err, "coach serve" in err) == (2, True, True)
    with served(tmp_path) as service:
        found = endpoint.find(home)
        assert found is not None
        assert (service.ready.strip(), found.pid) == (f"ready {found.url}", service.pid)
        for name in ("token", "service.json"):
            assert stat.S_IMODE((home.path / name).stat().st_mode) == 0o600
        code, out, _ = coach("submit", str(job), "-o", "json")
        assert (code, [row["name"] for row in json.loads(out)]) == (0, ["job"])
        until(lambda: rows()["job"]["epoch"] >= 2)
        code, log = service.end()
    assert code == 0
    assert endpoint.find(home) is None
    assert not (home.path / "service.json").exists()
    assert any("stopping at the end of the running epochs" in line["message"] for line in log)
    assert {"job"} <= {line.get("job") for line in log}
    row = rows()["job"]
    assert (row["reason"], row["reserved"]) == ("HandlerStopped", 0)
    assert "by the user" not in coach("why", "job")[1]


def refused(folder: Path) -> str:
    """The one line of a service that does not start."""
    with served(folder) as service:
        said = service.said()
        assert service.process.exitcode == 2
    (line,) = said.splitlines()
    return line


def test_a_second_service_is_refused(home: StateDirectory, tmp_path: Path) -> None:
    with served(tmp_path) as first:
        line = refused(tmp_path)
        assert "a service runs already, at http://127.0.0.1:" in line
        assert f"(process {first.pid})" in line
        first.end()


def test_a_service_is_refused_where_a_run_has_the_journal(home: StateDirectory, tmp_path: Path) -> None:
    with contextlib.closing(Journal.write(home.journal(1))):
        assert "`coach run` runs there now" in refused(tmp_path)


def test_a_port_that_is_taken_is_one_clear_error(home: StateDirectory, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = coach("serve", "--port", str(port))
    assert code == 2
    assert f"coach: cannot listen at 127.0.0.1:{port}: Address already in use; give another --port" in err
    assert endpoint.find(home) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_it_listens_elsewhere_only_with_a_chosen_token(host: str) -> None:
    code, _, err = coach("serve", "--host", host)
    assert code == 2
    assert "give them a token of their own with --token FILE" in err


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("short", 0o600, "at least 20 characters"),
        ("with a space in it, and so no token", 0o600, "without spaces"),
        ("x" * 40, 0o644, "others may read this token (mode 644); chmod 600"),
        (None, 0o600, "cannot be read as a token"),
    ],
)
def test_a_token_that_is_none_is_refused(tmp_path: Path, content: str | None, mode: int, said: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    code, _, err = coach("serve", "--token", str(file), "--port", "0")
    assert code in (2, 5)
    assert said in err
    assert content is None or content not in err


def test_a_secret_of_a_pod_is_a_token_which_its_own_group_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("x" * 40)
    file.chmod(0o440)
    with pytest.raises(UserError, match="others may read this token"):
        endpoint.read_token(file)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    assert endpoint.read_token(file) == "x" * 40
    file.chmod(0o444)
    with pytest.raises(UserError, match="others may read this token"):
        endpoint.read_token(file)


def test_what_a_killed_service_left_is_not_taken_for_one(home: StateDirectory, tmp_path: Path) -> None:
    with served(tmp_path) as service:
        code, _ = service.end(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert (home.path / "service.json").exists()
    assert endpoint.find(home) is None
    with served(tmp_path) as service:
        assert service.ready
        assert service.end()[0] == 0


def test_of_two_claims_one_is_refused(home: StateDirectory) -> None:
    with home.planning(), endpoint.claimed(home), pytest.raises(ServiceRunsError, match="just starting"):
        endpoint.claimed(home).__enter__()
    with endpoint.claimed(home):
        pass


# -- stopping, dying, going on --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(number, marks=pytest.mark.full) for number in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_after_every_end_the_next_service_goes_on(home: StateDirectory, tmp_path: Path, job: Path, number: int) -> None:
    with served(tmp_path) as service:
        assert coach("submit", str(job))[0] == 0
        until(lambda: rows()["job"]["epoch"] >= 3)
        assert service.end(number)[0] == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    before = rows()["job"]
    with served(tmp_path) as service:
        until(lambda: rows()["job"]["epoch"] >= before["epoch"] + 2)
        service.end()
    _, out, _ = coach("show", "job", "-o", "json")
    shown = json.loads(out)
    whole = [epoch["epoch"] for epoch in shown["epochs"] if epoch["kind"] == "full"]
    assert whole == list(range(1, shown["epoch"] + 1))
    assert shown["ledger"][-1]["spent"] == pytest.approx(shown["spent"])


def test_one_that_hangs_on_an_epoch_stops_at_the_second_signal(home: StateDirectory, tmp_path: Path, job: Path) -> None:
    with served(tmp_path, "3600") as service:
        assert coach("submit", str(job))[0] == 0
        until(lambda: rows()["job"]["state"] in ("Probing", "Training"))
        service.send_signal(signal.SIGINT)
        with service_of(home) as client:
            until(lambda: client.cluster().stopping)
            with pytest.raises(TemporaryError, match="the service is stopping"):
                client.submit([job])
        assert service.end(signal.SIGINT)[0] == 0
    assert rows()["job"]["reason"] == "HandlerStopped"


def test_a_client_gets_an_error_when_the_service_ends(home: StateDirectory, tmp_path: Path) -> None:
    with served(tmp_path) as service, service_of(home) as client:
        client.cluster()
        service.end(signal.SIGKILL)
        with pytest.raises(TemporaryError, match="does not answer"):
            client.cluster()


def test_another_program_on_the_port_is_not_taken_for_the_service(home: StateDirectory, tmp_path: Path) -> None:
    home.path.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        other = endpoint.Endpoint(url, 1, str(endpoint.own_token(home)), "0")
        with Client(other) as client, pytest.raises(PermanentError, match="is another program on that port"):
            client.cluster()


# -- commands that ask it -------------------------------------------------------------------------------


def test_commands_do_their_work_through_the_service(
    home: StateDirectory, tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for framework in ("FUNCTIONS", "PYTORCH"):  # doctor need not import them
        monkeypatch.setenv(f"COACH_{framework}_PYTHON", "/none")
    with served(tmp_path) as service:
        assert coach("submit", str(job))[0] == 0
        until(lambda: rows()["job"]["epoch"] >= 2)
        code, _, err = coach("resume", "job")
        assert (code, "was not stopped" in err) == (2, True)
        code, out, _ = coach("cancel", "job")
        assert (code, "job is cancelled; its checkpoint stays: file://" in out) == (0, True)
        until(lambda: rows()["job"]["state"] == "Cancelled")
        code, out, _ = coach("resume", "job")
        assert (code, "coach events job -f" in out) == (0, True)
        until(lambda: rows()["job"]["state"] == "Training")
        code, _, err = coach("run", str(job), "--nodes", "3x2")
        assert (code, "has its nodes and its Python already" in err) == (2, True)
        code, out, _ = coach("doctor", "-o", "json")
        (found,) = [check for check in json.loads(out) if check["name"] == "service"]
        assert (found["status"], f"process {service.pid}" in found["found"]) == ("ok", True)
        service.end()


def test_a_suspended_job_costs_nothing_and_is_resumed(home: StateDirectory, tmp_path: Path, job: Path) -> None:
    with served(tmp_path) as service:
        assert coach("submit", str(job))[0] == 0
        until(lambda: rows()["job"]["epoch"] >= 1)
        code, out, _ = coach("suspend", "job")
        assert code == 0 and "coach resume job" in out
        until(lambda: rows()["job"]["reason"] == "Suspended" and rows()["job"]["reserved"] == 0)
        before = rows()["job"]["spent"]
        assert coach("suspend", "job", "--now")[1].startswith("job is suspended")
        assert rows()["job"]["spent"] == before
        assert coach("resume", "job")[0] == 0
        until(lambda: rows()["job"]["state"] == "Training")
        service.end()
    code, _, err = coach("suspend", "job")
    assert code == 2 and "does not run; continue it with: coach resume job" in err


def test_the_service_reports_the_mistakes_of_a_file_as_run_does(
    home: StateDirectory, tmp_path: Path, job: Path
) -> None:
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    (other / "model.py").write_text("")
    outside = other / "job.yaml"
    outside.write_text(job.read_text())
    with served(tmp_path) as service:
        code, out, err = coach("submit", str(job), str(outside))
        lines = err.splitlines()
        assert (code, out) == (2, "")
        assert f"{outside}:1:" not in lines[0]
        assert any("outside of what is allowed" in line for line in lines) or "second job of this name" in err
        outside.write_text(job_text("other"))
        code, _, err = coach("submit", str(job), str(outside))
        first, last = err.splitlines()
        assert first.startswith(f"{outside}:")
        assert f"a path inside of {tmp_path}" in first
        assert last == "coach: 1 mistake; nothing was started"
        assert rows() == {}
        service.end()


def test_coach_run_joins_a_service_and_its_ctrl_c_stops_only_its_jobs(
    home: StateDirectory, tmp_path: Path, job: Path
) -> None:
    own = endless(tmp_path / "own.yaml")
    with served(tmp_path) as service:
        assert coach("submit", str(job))[0] == 0
        with joined(own) as run:
            run.hear("own: epoch 3")
            assert run.end(signal.SIGINT) == 130
        assert "1 job on 2 nodes (8 cores, 32.0 GiB), policy coach" in run.said
        assert f"by the service at {service.ready.split()[1]}" in run.said
        assert "own: submitted" in run.said
        assert "job:" not in run.said
        assert "coach resume own" in run.said
        now = rows()
        assert (now["own"]["reason"], now["job"]["state"]) == ("Suspended", "Training")
        with joined(own) as run:
            run.hear("own: epoch")
            assert run.end(signal.SIGTERM) == 130
        assert f"resumed from the checkpoint of epoch {now['own']['epoch']}" in run.said
        assert "own: epoch 1:" not in run.said
        service.end()


def test_a_run_whose_service_dies_says_so(home: StateDirectory, tmp_path: Path, job: Path) -> None:
    with served(tmp_path) as service, joined(job) as run:
        run.hear("job: epoch 2")
        service.end(signal.SIGKILL)
        assert run.end() == 5
    assert "does not answer" in run.said
    assert "go on when it runs again (coach serve)" in run.said
    assert "Traceback" not in run.said


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.full)])
def test_many_submissions_at_once_are_accepted_and_listed(home: StateDirectory, tmp_path: Path, count: int) -> None:
    with served(tmp_path, "3600") as service:
        found = endpoint.find(home)
        assert found is not None
        headers = {"Authorization": f"Bearer {found.token}"}
        limits = httpx.Limits(max_connections=64)
        with httpx.Client(
            base_url=found.url + endpoint.API, headers=headers, limits=limits, timeout=120, trust_env=False
        ) as http:

            def submit(number: int) -> int:
                file = {"path": f"{tmp_path}/job.yaml", "text": job_text(f"job-{number % (count - 100)}")}
                return http.post("/jobs", json={"files": [file]}).status_code

            with ThreadPoolExecutor(64) as pool:
                assert set(pool.map(submit, range(count))) == {201}
            listed = http.get("/jobs").json()["jobs"]
        names = {row["name"] for row in listed}
        assert len(names) == len(listed) == count
        assert {"job-0", "job-0-2", "job-99-2", f"job-{count - 101}"} <= names
        assert {row["state"] for row in listed} <= {"Queued", "Probing", "Waiting"}
        assert len(rows()) == count
        service.end(signal.SIGTERM)


def test_a_user_error_is_a_user_error_on_both_sides(home: StateDirectory, tmp_path: Path) -> None:
    with served(tmp_path) as service:
        with service_of(home) as client, pytest.raises(UserError, match="there is no job 'nobody'"):
            client.job("nobody")
        wrong = endpoint.Endpoint(service.ready.split()[1], 1, str(tmp_path / "wrong"), "0")
        (tmp_path / "wrong").write_text("w" * 30)
        (tmp_path / "wrong").chmod(0o600)
        with Client(wrong) as client, pytest.raises(PermanentError, match="does not know this token"):
            client.cluster()
        service.end()
