"""Two handlers with one journal and one lease, as processes, on a real API server: the second takes over."""

from __future__ import annotations

import contextlib
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coach.cli.main import invoke
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.kubernetes_api.election import LIVE_PORT, LOST
from tests.packaging.api_server import ApiServer, api_server, until
from tests.service.test_serve import Served, endless

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/coach-handler"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("api-server")) as started:
        yield started


class Handlers:
    """Those that were started, by name."""

    def __init__(self, server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.folder, self._environment = server, folder, monkeypatch
        self._environment.setenv("COACH_LEASE", "coach-handler")
        self._environment.setenv("KUBECONFIG", str(server.admin.kubeconfig))
        self.started: dict[str, Served] = {}

    def start(self, name: str, *, waits: bool = True, port: int = 0) -> Served:
        self._environment.setenv("COACH_POD", name)
        self.started[name] = Served(self.folder, "0.3", waits=waits, port=str(port))
        return self.started[name]

    def lease(self) -> tuple[str, int]:
        spec = self.server.admin.get(LEASE)["spec"]
        return spec["holderIdentity"], spec["leaseTransitions"]

    def records(self) -> list[Any]:
        with_journal = Journal.read(StateDirectory.default().journal(1))
        try:
            return [record for _, record in with_journal.records()]
        finally:
            with_journal.close()

    def until(self, what: str, done: Callable[[list[Any]], bool]) -> list[Any]:
        deadline = time.monotonic() + 180
        while not done(records := self.records()):
            ended = {name: one.process.exitcode for name, one in self.started.items()}
            seen = f"lease {self.lease()}, started {len(starts(records))} times, exit codes {ended}"
            assert time.monotonic() < deadline, f"{what}: {seen}: {records[-20:]}"
            time.sleep(0.5)  # each look reads the whole journal
        return records


@pytest.fixture
def handlers(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Handlers]:
    made = Handlers(server, tmp_path, monkeypatch)
    yield made
    for one in made.started.values():
        one.close()


def starts(records: list[Any]) -> list[int]:
    return [number for number, record in enumerate(records) if isinstance(record, ev.HandlerStarted)]


def epochs_of(records: list[Any]) -> tuple[list[str], list[str]]:
    """The tokens of the epochs that were ordered, and of those that were finished."""
    ordered = [record.token for record in records if isinstance(record, act.RunEpoch)]
    return ordered, [record.token for record in records if isinstance(record, ev.EpochFinished)]


def went_on(handlers: Handlers, number: int) -> list[Any]:
    """The records once the handler of this number has finished an epoch of its own; all that was paid adds up."""

    def done(records: list[Any]) -> bool:
        own = records[starts(records)[-1] :] if len(starts(records)) == number else []
        return len(epochs_of(own)[1]) >= 1

    records = handlers.until(f"an epoch under handler {number}", done)
    ordered, finished = epochs_of(records[starts(records)[-1] :])
    assert set(finished) <= set(ordered), "what the one before has ordered counts no more"
    paid = [record for record in records if isinstance(record, act.Settle) and record.charge is act.Charge.EPOCH]
    assert len({one.token for one in paid}) == len(paid), "each attempt is paid once"
    home = StateDirectory.default()
    job = home.past()["job"].job
    assert job.money.ledger.spent >= sum(epoch.cost for epoch in job.epochs) > 0
    return records


def stop_between_writes(handler: Served) -> None:
    """Stop it where it has not the journal's write lock: one that has it is waited for (test_paused_writer)."""

    def stopped() -> bool:
        return Path(f"/proc/{handler.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    with contextlib.closing(sqlite3.connect(StateDirectory.default().journal(1), 1.0, isolation_level=None)) as journal:
        while True:
            handler.send_signal(signal.SIGSTOP)
            until("it stops", stopped)
            with contextlib.suppress(sqlite3.OperationalError):
                journal.execute("BEGIN IMMEDIATE")
                journal.execute("ROLLBACK")
                break
            handler.send_signal(signal.SIGCONT)
            time.sleep(0.05)


def test_a_second_handler_goes_on_where_the_first_is_killed_or_stopped_which_writes_no_more(
    handlers: Handlers, tmp_path: Path
) -> None:
    first = handlers.start("first")
    assert invoke(["submit", str(endless(tmp_path / "job.yaml"))]) == 0
    second = handlers.start("second", waits=False)
    went_on(handlers, 1)
    assert handlers.lease() == ("first", 1)
    first.process.kill()
    url = second.hear_ready().split()[1]
    assert httpx.get(f"{url}/health").status_code == 200
    went_on(handlers, 2)
    assert handlers.lease() == ("second", 2)

    third = handlers.start("third", waits=False)
    stop_between_writes(second)
    third.hear_ready()
    before = went_on(handlers, 3)
    second.send_signal(signal.SIGCONT)
    assert second.end(None)[0] == LOST
    after = went_on(handlers, 3)
    assert after[: len(before)] == before and len(starts(after)) == 3
    assert handlers.lease() == ("third", 3)
    assert third.end(signal.SIGTERM)[0] == 0
    assert handlers.lease()[0] == "", "one that ends in order leaves the lease to anybody"


def test_a_liveness_probe_is_answered_while_the_lease_cannot_be_renewed(handlers: Handlers, tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    handlers.start("first", port=port)
    assert invoke(["submit", str(endless(tmp_path / "job.yaml"))]) == 0
    went_on(handlers, 1)
    api, live = (f"http://127.0.0.1:{number}/health" for number in (port, port + LIVE_PORT))

    def answers() -> bool:
        with contextlib.suppress(httpx.TimeoutException):
            return httpx.get(api, timeout=1.0).status_code == 200
        return False

    assert answers() and httpx.get(live).status_code == 200
    lease = handlers.lease()
    handlers.server.process.send_signal(signal.SIGSTOP)
    try:
        until("the handler waits for its lease", lambda: not answers())
        assert httpx.get(live).status_code == 200
    finally:
        handlers.server.process.send_signal(signal.SIGCONT)
    until("it goes on", answers)
    assert handlers.lease() == lease, "nobody took it over"
