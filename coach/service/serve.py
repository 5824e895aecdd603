"""`coach serve`: one handler, its API, and their common start and end.

The order matters. The lock on the state folder and the port come first, because they can be refused. The API answers,
and its address is published, only when the handler runs. At the end it answers until the jobs have stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from coach.core.cluster import Node
from coach.core.errors import PermanentError, UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.policies.api.policy import Policy
from coach.handler import endpoint
from coach.handler.handler import Handler
from coach.handler.interactive_run import INTERRUPTED, over
from coach.handler.session import MakePlatform
from coach.handler.state.journal import Journal
from coach.handler.state.journal_file import JournalBusyError
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.report import formatting
from coach.report.history import EventFormatter
from coach.service.bind import Http, allow_many_files, listen, refuse_strangers
from coach.service.http_app import make_app
from coach.service.operations import Service
from coach.service.schemas import LONGEST_WAIT
from coach.service.views.webhook import sending

if TYPE_CHECKING:
    from coach.platforms.kubernetes_api.election import Lead

log = logging.getLogger("coach.service")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8421


@dataclass(frozen=True, slots=True)
class Serving:
    """How to serve.

    `token` None: the state folder's own. `folders`: those in which job files may name paths. `volumes`: folders that
    only the functions have, in which job files may name paths too. `longest_wait` bounds how long a request may wait
    for new records (seconds). `host_names`: those by which browsers may reach the page. `companion` runs as long as
    the service does. `webhook`: the URL that is sent notices and the ends of jobs; empty for none.
    `lead`: of several handlers this one leads, by a lease.
    """

    home: StateDirectory
    nodes: tuple[Node, ...]
    policy: Policy
    make_platform: MakePlatform
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    token: Path | None = None
    folders: tuple[Path, ...] = ()
    volumes: tuple[Path, ...] = ()
    longest_wait: float = LONGEST_WAIT
    host_names: frozenset[str] = frozenset()
    companion: Callable[[Service], Coroutine[Any, Any, None]] | None = None
    webhook: str = ""
    lead: Lead | None = None


def serve(serving: Serving, ready: Callable[[endpoint.Endpoint], None] = lambda _: None) -> int:
    """Serve until a signal stops it; the exit code. `ready` is called when the API answers.

    Raises UserError where another service or run has the state folder, the port is taken, or other machines could reach
    the API without a token that was chosen for them.
    """
    refuse_strangers(serving.host, serving.token)
    if serving.lead is not None:
        serving.home.take_locks()
    with contextlib.ExitStack() as stack:
        planning = stack.enter_context(contextlib.ExitStack())
        planning.enter_context(serving.home.planning(lambda: log.info("a run is starting; waiting for it")))
        stack.enter_context(endpoint.claimed(serving.home))
        token = serving.token or endpoint.own_token(serving.home)
        endpoint.read_token(token)
        listening = stack.enter_context(listen(serving.host, serving.port))
        journal = _journal(serving.home, serving.lead)
        stack.callback(journal.close)
        past = serving.home.past()
        running = _Running(
            serving,
            journal=journal,
            past=past,
            listening=listening,
            token=token,
            ready=ready,
            planned=planning.close,
        )
        try:
            return asyncio.run(running.main())
        except asyncio.CancelledError:
            return INTERRUPTED


def _journal(home: StateDirectory, lead: Lead | None) -> Journal:
    try:
        journal = home.open_journal(home.journal(1), lead.term if lead else None)
    except JournalBusyError as error:
        raise UserError(
            f"{error}: `coach run` runs there now; let it end, stop it with Ctrl-C, or set COACH_HOME to another folder"
        ) from error
    if lead is not None:
        journal.may_write = lead.check
    return journal


class _Running:
    """A service from its start to its end."""

    def __init__(
        self,
        serving: Serving,
        *,
        journal: Journal,
        past: dict[str, StoredJob],
        listening: socket.socket,
        token: Path,
        ready: Callable[[endpoint.Endpoint], None],
        planned: Callable[[], None],
    ) -> None:
        self._serving = serving
        self._journal = journal
        self._past = past
        self._listening = listening
        self._token = token
        self._ready = ready
        self._planned = planned
        self._stops = 0
        #: Jobs whose programs go on after this service.
        self._left: Collection[str] = ()
        self._stop_asked = asyncio.Event()
        self._task: asyncio.Task[int] | None = None
        self._service: Service | None = None

    async def main(self) -> int:
        """Serve; the exit code."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number, least in ((signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 1)):
            loop.add_signal_handler(number, self._signalled, least)
        allow_many_files()
        serving = self._serving
        handler: Handler | None = None
        platform = serving.make_platform(serving.home, lambda: handler.now() if handler else 0.0)
        own = {name: one.job for name, one in self._past.items() if one.journal == self._journal.path}
        handler = Handler(platform, self._journal, serving.policy, own)
        service = Service(
            serving.home,
            handler,
            journal=self._journal.path,
            past=self._past,
            nodes=serving.nodes,
            policy=serving.policy,
            folders=serving.folders,
            volumes=serving.volumes,
        )
        narrator = EventFormatter(lambda: handler.jobs)
        handler.observers.append(lambda event, actions: _tell(narrator, handler.jobs, event, actions))
        with contextlib.closing(service):
            async with handler, sending(self._serving.webhook, service):
                await self._begin(service)
        return 0

    async def _begin(self, service: Service) -> None:
        """Resume unfinished jobs, and start to answer."""
        left = service.begin()
        if left:
            log.info("going on with %s: %s", formatting.count(len(left), "job"), ", ".join(left[:20]))
        token = endpoint.read_token(self._token)
        await self._serve(service, self._app(service, token))

    def _app(self, service: Service, token: str) -> FastAPI:
        serving = self._serving
        port, hosts = self._listening.getsockname()[1], serving.host_names
        return make_app(service, token, longest_wait=serving.longest_wait, port=port, hosts=hosts)

    async def _serve(self, service: Service, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        http = Http(config)
        answering = asyncio.create_task(http.serve(sockets=[self._listening]))
        here = endpoint.Endpoint(self._url(), os.getpid(), str(self._token), metadata.version("coach-trainer"))
        endpoint.publish(self._serving.home, here)
        self._planned()
        self._ready(here)
        self._service = service
        warming = asyncio.create_task(service.warm())
        companion = asyncio.create_task(self._accompany(service))
        try:
            await self._until_stopped(service, answering, companion)
        finally:
            warming.cancel()
            companion.cancel()
            endpoint.withdraw(self._serving.home)
            service.stopping = True
            service.wake()
            http.should_exit = True
            await asyncio.gather(answering, warming, companion, return_exceptions=True)

    async def _accompany(self, service: Service) -> None:
        if self._serving.companion:
            await self._serving.companion(service)
        else:
            await asyncio.Event().wait()

    async def _until_stopped(
        self, service: Service, answering: asyncio.Task[None], companion: asyncio.Task[None]
    ) -> None:
        """Until it was asked to stop and no job does anything more. Raises what ended handler, API or companion."""
        running = asyncio.create_task(service.handler.wait(lambda: False))
        stopped = asyncio.create_task(self._all_stopped(service))
        try:
            await asyncio.wait({running, stopped, answering, companion}, return_when=asyncio.FIRST_COMPLETED)
            if companion.done():
                companion.result()
            if running.done():
                running.result()
            if answering.done():
                answering.result()
                raise PermanentError("the API ended by itself; the jobs go on with the next: coach serve")
        finally:
            for task in (running, stopped):
                task.cancel()
            await asyncio.gather(running, stopped, return_exceptions=True)

    async def _all_stopped(self, service: Service) -> None:
        await self._stop_asked.wait()
        await service.until(lambda: all(over(job) or name in self._left for name, job in service.jobs.items()))

    def _url(self) -> str:
        host, port = self._listening.getsockname()[:2]
        return f"http://{'[' + host + ']' if ':' in host else host}:{port}"

    def _signalled(self, least: int) -> None:
        self._stop(max(least, self._stops + 1))

    def _stop(self, level: int) -> None:
        """Stop. 1: at the running epochs' checkpoints. 2: at once, at the last checkpoints. 3: without waiting."""
        if level <= self._stops:
            return
        self._stops = level
        log.info(
            {
                1: "stopping at the end of the running epochs; Ctrl-C again to stop now",
                2: "stopping now; Ctrl-C again to wait for nothing",
            }.get(level, "stopping without waiting for anything")
        )
        if level > 3:
            os._exit(INTERRUPTED)
        if self._service is None or level == 3:
            assert self._task is not None
            self._task.cancel()
            return
        self._service.stopping = True
        self._service.searches.close()
        self._service.wake()
        handler = self._service.handler
        self._left = self._left or handler.leave_programs()
        if self._left:
            log.info("the programs of %s go on, for the next handler", ", ".join(sorted(self._left)))
        living = [name for name, job in self._service.jobs.items() if not over(job) and name not in self._left]
        handler.suspend(living, now=level == 2, by_user=False)
        self._stop_asked.set()


def _tell(narrator: EventFormatter, jobs: Mapping[str, Job], event: ev.Event, actions: Sequence[act.Action]) -> None:
    for line in narrator.happened(event, actions):
        about = {"job": line.job, "epoch": len(jobs[line.job].epochs)}
        log.log(logging.INFO if line.important else logging.DEBUG, "%s", line.text, extra=about)
