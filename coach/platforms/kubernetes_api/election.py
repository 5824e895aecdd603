"""One of several handlers leads: it holds a Lease of coordination.k8s.io/v1, and renews it in a thread of its own.

While the lease cannot be renewed, as the API server does not answer, the leader does not act: `check` waits, and all
that the process does with it, but for the answer to a liveness probe. So an outage costs a pause and no restart. Where
another one has taken the lease, the process ends at once, and cleans nothing up: what it would delete is the other's by
now.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import logging
import os
import signal
import socketserver
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import httpx

from coach.core.errors import CoachError, TemporaryError
from coach.core.leadership import LEASE_SECONDS, Candidate, Lease
from coach.platforms.kubernetes_api.client import CORE, Api, ApiError, Object, find, passes, until_answered

log = logging.getLogger(__name__)

#: Seconds between two looks at a lease, and between two renewals.
LOOK_SECONDS, RENEW_SECONDS = 1.0, 2.0
#: Seconds that both may take together, until it is tried again.
ROUND_SECONDS = 8.0
#: Exit code of a process whose lease another one has taken.
LOST = 75
#: The port for the kubelet's liveness probe, as many further than the API's.
LIVE_PORT = 2
#: Label of the leader's pod, with the lease's name: the Services choose it.
LEADER = "coach.dev/leader"


def now() -> float:
    """Seconds on a clock that also runs while the machine or this process is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election:
    """A candidate for the lease `name`; `me` names its pod. `written` reads the highest term that has ever written."""

    def __init__(  # noqa: PLR0917
        self,
        api: Api,
        name: str,
        me: str,
        written: Callable[[], int],
        clock: Callable[[], float] = now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.candidate = Candidate(me)
        self._api, self._name, self._written, self._now, self._sleep = api, name, written, clock, sleep
        #: The lease as it was last written.
        self._found: Object | None = None
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{api.namespace}/leases"
        self._path = f"{self._leases}/{name}"

    async def run(self, won: Callable[[], None]) -> None:
        """Win the lease, call `won`, and renew it until this is cancelled. Raises LostError, ApiError."""
        while True:
            before = self.candidate.term
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._round()
            except (TemporaryError, TimeoutError) as error:
                # 404, 409: it was deleted, or changed, since it was read.
                if isinstance(error, ApiError) and error.status not in (404, 409) and not passes(error.status):
                    raise
                self._found = None
                log.debug("lease %s: %s", self._name, error)
            if self.candidate.term != before:
                log.info("leads in term %d, by the lease %s", self.candidate.term, self._name)
                won()
            await self._sleep(RENEW_SECONDS if self.candidate.term else LOOK_SECONDS)

    async def _round(self) -> None:
        """Write the lease where it is one's own or free; a leader reads it only after a write that went wrong."""
        leads = self.candidate.term > 0
        found = self._found if leads and self._found else await find(self._api, self._path)
        lease = None if found is None else _lease(found)
        written = 0 if leads else self._written()
        holder = self.candidate.writes_as(lease, self._now(), written)
        if holder is None:
            return
        term, asked_at = self.candidate.term or self.candidate.next_term(lease, written), self._now()
        spec = {
            "holderIdentity": holder,
            "leaseTransitions": term,
            "leaseDurationSeconds": int(LEASE_SECONDS),
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        if found is None:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            self._found = await self._api.create(self._leases, {**body, "spec": spec})
        else:  # as it was read: of two who take it one is refused
            version = found["metadata"]["resourceVersion"]
            self._found = await self._api.merge(self._path, {"metadata": {"resourceVersion": version}, "spec": spec})
        if holder == self.candidate.me:
            self.candidate.wrote(term, asked_at)

    async def release(self) -> None:
        """Let another one lead at once. Raises TemporaryError."""
        found = await find(self._api, self._path)
        if self.candidate.term and found is not None and _lease(found).term == self.candidate.term:
            version = found["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}}
            await self._api.merge(self._path, body)

    async def mark(self) -> None:
        """Give this pod the leader's label, and take it from others. Raises ApiError."""
        pods = f"{CORE}/namespaces/{self._api.namespace}/pods"
        found = await until_answered(lambda: self._api.get(pods, labelSelector=f"{LEADER}={self._name}"))
        others = {one["metadata"]["name"] for one in found["items"]} - {self.candidate.me}
        for pod in (self.candidate.me, *sorted(others)):
            mark = {"metadata": {"labels": {LEADER: None if pod in others else self._name}}}
            await until_answered(partial(self._api.merge, f"{pods}/{pod}", mark))


class Lead:
    """The leadership of this process. `term` is its lease's."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self.term = candidate.term
        #: Whether this process waits for its lease, or for its journal, and its loop with it.
        self.waits = False

    def set_waiting(self, waits: bool) -> None:
        """Whether it waits: it is well then, though its API does not answer."""
        self.waits = waits

    def check(self) -> None:
        """Return when this process may act; it waits while its lease cannot be renewed."""
        if self._candidate.leads(now()):
            return
        log.warning("the lease is not renewed; nothing is written until it is")
        self.waits = True
        while not self._candidate.leads(now()):
            time.sleep(0.05)
        self.waits = False


@contextlib.contextmanager
def leading(  # noqa: PLR0917
    connect: Callable[[], Awaitable[Api]], name: str, me: str, written: Callable[[], int], host: str, port: int
) -> Iterator[Lead]:
    """Wait until this process leads, answering at `host` and `port` that it is well; lead for the length of the block.

    LIVE_PORT ports further a thread answers all the time, also while the API waits for the lease. `written` as in
    `Election`. Raises CoachError where the cluster cannot be asked, or forbids it.
    """
    won, stop, failed = threading.Event(), threading.Event(), list[BaseException]()
    elections = list[Election]()

    async def elect() -> None:
        async with await connect() as api:
            election = Election(api, name, me, written)
            elections.append(election)
            running, marking = asyncio.create_task(election.run(won.set)), None
            while not running.done() and not stop.is_set():
                await asyncio.wait({running}, timeout=0.2)
                if won.is_set() and marking is None:
                    marking = asyncio.create_task(_marked(election))
            if running.done():
                running.result()
            running.cancel()
            with contextlib.suppress(CoachError):
                await election.release()

    def thread() -> None:
        try:
            asyncio.run(elect())
        except BaseException as error:
            if won.is_set():
                log.critical("%s; this one ends", error)
                os._exit(LOST)
            failed.append(error)
            won.set()

    elector = threading.Thread(target=thread, name="lease", daemon=True)
    before = signal.signal(signal.SIGTERM, _end)  # the first process of a container has no default
    leads = list[Lead]()

    def alive() -> bool:
        return not leads or leads[0].waits or _answers(port)

    try:
        with _well(host, port + LIVE_PORT if port else 0, alive):
            with _well(host, port):
                elector.start()
                won.wait()
            if failed:
                raise failed[0]
            signal.signal(signal.SIGTERM, before)
            leads.append(Lead(elections[0].candidate))
            yield leads[0]
    finally:
        stop.set()
        elector.join(5)


def _end(*_: object) -> None:
    raise SystemExit(0)


async def _marked(election: Election) -> None:
    try:
        await election.mark()
    except ApiError as error:
        log.warning("the handler's pod has no label %s, so its Services do not find it: %s", LEADER, error)


def _answers(port: int) -> bool:
    """Whether the API of this process answers, or is not there yet."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=ROUND_SECONDS, trust_env=False)
    except httpx.ConnectError:
        return True
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK


@contextlib.contextmanager
def _well(host: str, port: int, alive: Callable[[], bool] = lambda: True) -> Iterator[int]:
    """Answer probes of a handler that waits, at a port; the API is the leader's alone."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            well = self.path == "/health" and alive()
            self.send_response(200 if well else 503)
            self.end_headers()
            self.wfile.write(b'{"status": "waits for the lease"}\n' if well else b"another handler leads\n")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(socketserver.ThreadingTCPServer):  # HTTPServer would ask DNS for its own name
        allow_reuse_address = daemon_threads = True

    with Server((host, port), Answer) as server:
        answering = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        answering.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            answering.join()


def _lease(found: Object) -> Lease:
    spec = found.get("spec") or {}
    return Lease(spec.get("holderIdentity") or "", int(spec.get("leaseTransitions") or 0), spec.get("renewTime") or "")
