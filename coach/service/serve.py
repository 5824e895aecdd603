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
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from coach.service.bind import allow_many_files, answering, listen, refuse_strangers
from coach.service.http_app import make_app
from coach.service.local.written import writing
from coach.service.operations import Service
from coach.service.views.messages import sending

if TYPE_CHECKING:
    from coach.platforms.kubernetes_api.election import Lead

log = logging.getLogger("coach.service")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8421


@dataclass(frozen=True, slots=True)
class Serving:
    """How to serve.

    `token` None: the state folder's own. `folders`: those in which job files may name paths. `volumes`: folders that
    only the functions have, in which job files may name paths too.
    `host_names`: those by which browsers may reach the page. `companion` runs as long as
    the service does. `notify`: who is sent messages (`coach.service.views.messages`); empty where none is sent.
    `lead`: of several handlers this one leads, by a lease. `clock_is_right` as in `StateDirectory.open_journal`.
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
    host_names: frozenset[str] = frozenset()
    companion: Callable[[Service], Coroutine[Any, Any, None]] | None = None
    notify: str = ""
    lead: Lead | None = None
    clock_is_right: bool = False


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
        if serving.token:
            token = endpoint.chosen_token(serving.home, serving.token)
        else:
            token = endpoint.own_token(serving.home)
        endpoint.read_token(token)
        listening = stack.enter_context(listen(serving.host, serving.port))
        journal = _journal(serving)
        stack.callback(journal.close)
        past = serving.home.past()
        running = _Running(serving, journal, past, listening, token, ready, planning.close)
        try:
            return asyncio.run(running.main())
        except asyncio.CancelledError:
            return INTERRUPTED


def _journal(serving: Serving) -> Journal:
    home, lead = serving.home, serving.lead
    leads = () if lead is None else (lead.term, lead.set_waiting)
    try:
        journal = home.open_journal(home.journal(1), *leads, clock_is_right=serving.clock_is_right)
    except JournalBusyError as error:
        raise UserError(
            f"{error}: `coach run` runs there now; let it end, stop it with Ctrl-C, or set COACH_HOME to another folder"
        ) from error
    if lead is not None:
        journal.may_write = lead.check
    return journal


@dataclass
class _Running:
    """A service from its start to its end. `planned`: others may choose names and journals again."""

    serving: Serving
    journal: Journal
    past: dict[str, StoredJob]
    listening: socket.socket
    token: Path
    ready: Callable[[endpoint.Endpoint], None]
    planned: Callable[[], None]
    stops: int = 0
    #: Jobs whose programs go on after this service.
    left: Collection[str] = ()
    stop_asked: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[int] | None = None
    service: Service | None = None

    async def main(self) -> int:
        """Serve; the exit code."""
        self.task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number, least in ((signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 1)):
            loop.add_signal_handler(number, self._stop, least)
        allow_many_files()
        serving = self.serving
        handler: Handler | None = None
        platform = serving.make_platform(serving.home, lambda: handler.now() if handler else 0.0)
        own = {name: one.job for name, one in self.past.items() if one.journal == self.journal.path}
        handler = Handler(platform, self.journal, serving.policy, own)
        service = Service(
            serving.home,
            handler,
            journal=self.journal.path,
            past=self.past,
            nodes=serving.nodes,
            policy=serving.policy,
            folders=serving.folders,
            volumes=serving.volumes,
        )
        narrator = EventFormatter(lambda: handler.jobs)
        handler.observers.append(lambda event, actions: _tell(narrator, handler.jobs, event, actions))
        with contextlib.closing(service):
            async with (
                handler,
                sending(serving.notify, handler, service.reader),
                writing(serving.home, handler, self.journal),
            ):
                await self._serve(service)
        return 0

    async def _serve(self, service: Service) -> None:
        """Resume unfinished jobs, and answer until it is stopped."""
        serving = self.serving
        if left := service.begin():
            log.info("going on with %s: %s", formatting.count(len(left), "job"), ", ".join(left[:20]))
        host, port = self.listening.getsockname()[:2]
        url = f"http://{'[' + host + ']' if ':' in host else host}:{port}"
        app = make_app(service, endpoint.read_token(self.token), port=port, hosts=serving.host_names)
        async with answering(service, app, self.listening) as answers:
            here = endpoint.Endpoint(url, os.getpid(), str(self.token), metadata.version("coach-trainer"))
            endpoint.publish(serving.home, here)
            self.planned()
            self.ready(here)
            self.service = service
            works = [service.handler.wait(lambda: False), self._all_stopped(service)]
            works += [serving.companion(service)] if serving.companion else []
            ends = [asyncio.create_task(work) for work in works]
            warming = asyncio.create_task(service.warm())
            try:
                done, _ = await asyncio.wait({answers, *ends}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what ended handler, API or companion
                if answers in done:
                    raise PermanentError("the API ended by itself; the jobs go on with the next: coach serve")
            finally:
                for task in (warming, *ends):
                    task.cancel()
                endpoint.withdraw(serving.home)
                service.stopping = True
                service.wake()
                await asyncio.gather(warming, *ends, return_exceptions=True)

    async def _all_stopped(self, service: Service) -> None:
        """Return when it was asked to stop, and no job does anything more."""
        await self.stop_asked.wait()
        await service.until(lambda: all(over(job) or name in self.left for name, job in service.jobs.items()))

    def _stop(self, least: int) -> None:
        """Stop. 1: at the running epochs' checkpoints. 2: at once, at the last checkpoints. 3: without waiting."""
        level = max(least, self.stops + 1)
        self.stops = level
        log.info(
            {
                1: "stopping at the end of the running epochs; Ctrl-C again to stop now",
                2: "stopping now; Ctrl-C again to wait for nothing",
            }.get(level, "stopping without waiting for anything")
        )
        if level > 3:
            os._exit(INTERRUPTED)
        if self.service is None or level == 3:
            assert self.task is not None
            self.task.cancel()
            return
        self.service.stopping = True
        self.service.searches.close()
        self.service.wake()
        handler = self.service.handler
        self.left = self.left or handler.leave_programs()
        if self.left:
            log.info("the programs of %s go on, for the next handler", ", ".join(sorted(self.left)))
        living = [name for name, job in self.service.jobs.items() if not over(job) and name not in self.left]
        handler.suspend(living, now=level == 2, by_user=False)
        self.stop_asked.set()


def _tell(narrator: EventFormatter, jobs: Mapping[str, Job], event: ev.Event, actions: Sequence[act.Action]) -> None:
    for line in narrator.happened(event, actions):
        about = {"job": line.job, "epoch": len(jobs[line.job].epochs)}
        log.log(logging.INFO if line.important else logging.DEBUG, "%s", line.text, extra=about)
