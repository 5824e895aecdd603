"""The operations of a running service, without HTTP: submit, stop, resume and read jobs.

Everything here runs on the handler's event loop. An operation that changes a job returns once it is in the journal.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coach.core.cluster import Node, Taken
from coach.core.errors import CoachError, UserError
from coach.core.estimation.interval import Interval
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.money import Money, to_amount
from coach.core.policies.api.policy import Policy
from coach.core.spec.job import TrainingJob
from coach.handler.accounts import payments, removal
from coach.handler.handler import Handler
from coach.handler.interactive_run import over
from coach.handler.known_optimizers import optimizers_here
from coach.handler.model_change import to_accept
from coach.handler.policies import with_policy
from coach.handler.prior_runs import budget_warning, initial_weights
from coach.handler.resume_rules import NotNowError, refuse_resume
from coach.handler.session import submit_new
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import Chosen, StateDirectory, StoredJob, choose, unknown_job
from coach.jobfiles.load import LoadedJob, load_contents
from coach.jobfiles.optimizers import nothing_known
from coach.report.accounting import account_rows, spending_rows
from coach.report.row_types import AccountRow, JobDetails, JobRow, Plan, SpendingRow
from coach.report.rows import Rows
from coach.service.requests import NO_KEY, KeyedRequest
from coach.service.schemas import TakenJob
from coach.service.searches import Searches

#: Seconds for which a prediction of when jobs start is shown.
STARTS_SECONDS = 15.0


class NoSuchJobError(UserError):
    """No job has that name."""


class ReadOnlyError(UserError):
    """The service shows jobs that ran elsewhere; it changes none."""


class StoppingError(CoachError):
    """The service is about to end and accepts no more jobs."""


class Service:
    """The jobs of one handler, for as long as it runs. `folders`: local paths in job files must lie in one of them."""

    #: Whether it only shows jobs that ran elsewhere (`coach.service.local.read_only`).
    read_only = False

    def __init__(
        self,
        home: StateDirectory,
        handler: Handler,
        *,
        journal: Path,
        past: dict[str, StoredJob],
        nodes: tuple[Node, ...],
        policy: Policy,
        folders: Sequence[Path],
        volumes: Sequence[Path] = (),
    ) -> None:
        self.home = home
        self.handler = handler
        self.journal = journal
        self.nodes = nodes
        self.folders = tuple(folders)
        self._volumes = tuple(volumes)
        self.policy = policy
        self.stopping = False
        #: Jobs of other journals: their names are taken and their measurements are used; they cannot be resumed here.
        self._past = {name: replace(one, held=True) for name, one in past.items() if one.journal != journal}
        self._left = {name: one for name, one in past.items() if one.journal == journal}
        #: Names of jobs whose submission is not in the journal yet.
        self._promised: set[str] = set()
        self._asked: dict[tuple[type, str], list[asyncio.Future[None]]] = {}
        #: By job: held from a request's check until what it asks for is in the journal.
        self._changing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._rows = Rows()
        self._starts: tuple[float, dict[str, Interval]] = float("-inf"), {}
        #: Accounts are set one after the other.
        self._setting = asyncio.Lock()
        self._changed = asyncio.Event()
        #: For reading the journal on the event loop.
        self.reader = Journal.read(journal)
        self.identity = self.reader.identity
        #: By job: number of the last record that may have changed its row.
        self.changed_at = self.reader.last_seqs()
        handler.observers.append(self._observe)
        self.searches = Searches(home, handler, nodes, self._past, self.set_account, self.until, self._reading)

    @property
    def _reading(self) -> dict[str, Any]:
        """See load_contents. On a cluster, which has volumes, no Python here knows the functions' optimizers."""
        knows = nothing_known if self._volumes else optimizers_here
        return {"inside": self.folders, "volumes": self._volumes, "knows": knows}

    async def _load(self, files: Sequence[tuple[Path, bytes]]) -> list[LoadedJob]:
        return await asyncio.to_thread(load_contents, files, **self._reading)

    def close(self) -> None:
        """Close the journal."""
        self.reader.close()

    def begin(self) -> list[str]:
        """Resume the jobs that no user stopped, once the handler runs; their names."""
        for name in self._left:
            self._know(name)
        jobs = self.handler.jobs
        left = [name for name, one in self._left.items() if not jobs[name].ended and not one.stopped]
        for name in left:
            stop = jobs[name].stop
            if stop.suspend and not (stop.cancel or jobs[name].decision.ending):  # else it only ends
                self.handler.resume(name)
        self.searches.begin([name for name in left if jobs[name].stop.suspend])
        return left

    async def warm(self) -> None:
        """Make all rows once, between other work, so that the first request need not wait for them."""
        for name in list(self.jobs):
            self.view(name)
            await asyncio.sleep(0)

    # -- reading ------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs of the service's journal."""
        return self.handler.jobs

    def job(self, name: str) -> Job:
        """The job of that name. Raises NoSuchJobError with the nearest names."""
        try:
            return self.jobs[name]
        except KeyError:
            raise NoSuchJobError(str(unknown_job(name, self.jobs))) from None

    def past(self, name: str) -> StoredJob:
        """The job, with the journal that holds it."""
        self.job(name)
        return self._past[name]

    def row(self, name: str) -> JobRow:
        """The row of a job."""
        return self._rows.row(self.job(name), self.handler.now())

    def last_seq(self) -> int:
        """Number of the last record of any job."""
        return self.reader.last_seq()

    def view(self, name: str) -> JobDetails:
        """The row of a job with what a page shows in addition."""
        seq, progress = self.changed_at.get(name, 0), self.progress(name)
        return self._rows.view(self.job(name), self.handler.now(), progress=progress, seq=seq)

    def news(self, names: Sequence[str], after: int) -> bool:
        """Whether there is a record later than `after` of these jobs."""
        return next(self.reader.rows(names, after, 1), None) is not None

    def others(self, name: str) -> tuple[Mapping[str, Job], tuple[Node, ...], tuple[Taken, ...]]:
        """The jobs that a job shares its handler with, itself among them, their nodes, and what others hold there."""
        del name
        return self.jobs, self.handler.nodes.there, tuple(self.handler.nodes.taken.values())

    def expected_starts(self) -> dict[str, Interval]:
        """When the jobs that wait for room are expected to start, as predicted less than STARTS_SECONDS ago."""
        waits = [name for name, job in self.jobs.items() if not (job.ended or job.gang.pods or job.stop.suspend)]
        if waits and self.handler.now() - self._starts[0] >= STARTS_SECONDS:
            from coach.core.lifecycle.start_forecast import expected_starts

            self._starts = (
                self.handler.now(),
                expected_starts(self.jobs.values(), self.handler.nodes.available, self.handler.now()),
            )
        return {name: self._starts[1][name] for name in waits if name in self._starts[1]}

    def progress(self, name: str) -> float | None:
        """The trained share of a job's running epoch; None where none runs."""
        job, seen = self.jobs.get(name), self.handler.progress.get(name)
        running = None if job is None else job.attempts.running
        if running is None or seen is None or running.token != seen.token or not seen.total:
            return None
        return min(1.0, seen.samples / seen.total)

    async def changed(self, seconds: float, enough: Callable[[], bool] = lambda: True) -> None:
        """Return when a change makes `enough` true, or after `seconds`, or at the end."""
        try:
            async with asyncio.timeout(seconds):
                while not self.stopping:
                    await self._changed.wait()
                    if enough():
                        return
        except TimeoutError:
            pass

    async def until(self, done: Callable[[], bool]) -> None:
        """Return once `done` holds; it is checked after every event."""
        while not done():
            await self._changed.wait()

    def _observe(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        if isinstance(event, ev.JobSubmitted):
            self._promised.discard(event.job)
        seq = self.last_seq()
        if event.job:
            self.changed_at[event.job] = seq
        else:
            self.changed_at |= {name: seq for name, job in self.jobs.items() if not job.ended}
        for record in (event, *actions):
            if record.job in self.jobs:
                self._know(record.job, ran=isinstance(record, act.RunEpoch))
        for answer in self._asked.pop((type(event), event.job), ()):
            if not answer.done():
                answer.set_result(None)
        self.wake()

    def wake(self) -> None:
        """Wake all that wait for a change."""
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()

    def _know(self, name: str, *, ran: bool = False) -> None:
        """Keep this job's measurements for other jobs. A job that a user stopped can be resumed later."""
        job = self.jobs[name]
        known = self._past.get(name) or self._left.get(name) or StoredJob(job, self.journal, True)
        nodes = known.nodes | {self.nodes} if ran else known.nodes
        self._past[name] = replace(known, job=job, held=job.ended or not over(job), nodes=nodes)

    # -- changing -----------------------------------------------------------------------------------------

    async def validate(self, files: Sequence[tuple[Path, bytes]]) -> tuple[list[str], list[str]]:
        """The names of the jobs in files, and warnings; starts nothing. Raises JobFileError with every mistake."""
        loaded = await self._load(files)
        return [one.spec.name for one in loaded], [str(each) for one in loaded for each in one.warnings]

    async def specs(self, files: Sequence[tuple[Path, bytes]]) -> list[TrainingJob]:
        """The jobs of files; starts nothing. Raises JobFileError with every mistake."""
        return [one.spec for one in await self._load(files)]

    async def plan(self, files: Sequence[tuple[Path, bytes]], policy: str = "") -> list[Plan]:
        """The predicted time and cost of the jobs of files; starts nothing. Raises JobFileError, UserError."""
        from coach.report.plan import plan

        specs = with_policy(policy, await self.specs(files), self.policy)
        past = dict(self._past)
        return await asyncio.to_thread(lambda: [plan(spec, past, self.nodes) for spec in specs])

    async def submit(
        self, files: Sequence[tuple[Path, bytes]], policy: str = "", request: KeyedRequest = NO_KEY
    ) -> list[TakenJob]:
        """Submit the jobs of files (path and content of each), all or none; what `request` did before isn't repeated.

        Raises JobFileError with every mistake of every file, UserError for a policy that is not this service's.
        """
        loaded = await self._load(files)
        taken = await self.take(with_policy(policy, [one.spec for one in loaded], self.policy), request)
        for one, file in zip(taken, loaded, strict=True):
            one.warnings = list(map(str, file.warnings))
        return taken

    async def take(self, specs: Sequence[TrainingJob], request: KeyedRequest = NO_KEY) -> list[TakenJob]:
        """Take on jobs, all or none: a new one, or one of the same description that was left in the middle.

        A job that was taken on for `request` before stays as it is.
        """
        self._refuse_when_stopping()
        chosen: dict[int, Chosen] = {}
        answers = []
        async with self._setting:  # no account goes meanwhile
            for number, spec in enumerate(specs):
                if request.before(number) is None:
                    promised = self._promised | {one.name for one in chosen.values()}
                    chosen[number] = choose(spec, self._past, promised)
            for one in chosen.values():
                if one.past is None:
                    self.handler.refuse(one.spec)
                    initial_weights(self._past, one.spec)
            for number, one in chosen.items():
                if one.past is None:
                    answers.append(self._answer(ev.JobSubmitted, one.name))
                    self._promised.add(one.name)
                    submit_new(self.handler, self.home, one.spec, self._past, self.nodes, request.part(number))
                else:
                    answers.append(self._answer(ev.ResumeRequested, one.name))
                    self.handler.resume(one.name, request=request.part(number))
        await asyncio.gather(*answers)
        taken = []
        for number in range(len(specs)):
            if done := request.before(number):
                taken.append(TakenJob(job=self.row(done.job), went_on=done.resumed, note="", warnings=[]))
            else:
                one = chosen[number]
                past = dict(self._past)
                warning = "" if one.past else await asyncio.to_thread(budget_warning, one.spec, past, self.nodes)
                note = "; ".join(filter(None, (one.said, warning)))
                taken.append(TakenJob(job=self.row(one.name), went_on=one.past is not None, note=note, warnings=[]))
        return taken

    async def resume(
        self,
        name: str,
        added: Money = 0,
        budget: Money | None = None,
        request: KeyedRequest = NO_KEY,
        *,
        accept_model: bool = False,
    ) -> JobRow:
        """Resume a job, or give a running one `added` nano-units more. Raises NotNowError.

        `budget` instead of `added`: its whole budget from now on. Asked again, nothing more happens: where the budget
        is that already and the job runs, its row is the answer; so it is where `request` was done before.
        `accept_model`: a model file that was changed since is trained as it is now, else refused.
        """
        if budget is not None and added:
            raise UserError("budget and add_budget exclude each other; give one of them")
        stopped = (job := self.job(name)).stop.cancel or job.stop.by_user
        async with self._changing[name]:
            self._refuse_when_stopping()
            if request.before(0):
                return self.row(name)
            job = self.job(name)
            if not stopped and (job.stop.cancel or job.stop.by_user):
                does = "was cancelled" if job.stop.cancel else "was suspended"
                raise NotNowError(f"{name} {does} meanwhile; to take that back: coach resume {name}")
            if budget is not None:
                has = job.money.ledger.budget
                if has is None:
                    raise NotNowError(f"{name} has no budget, so it cannot be changed")
                if budget < has:
                    raise NotNowError(f"{name} has a budget of {to_amount(has):g} already; it can only grow")
                if budget == has and not job.ended and not job.stop.suspend:
                    return self.row(name)
                added = budget - has
            refuse_resume(job, added)
            if job.ended or job.stop.suspend:
                model = await asyncio.to_thread(to_accept, job, accept=accept_model, inside=self.folders)
                if model is not None:
                    self.handler.accept_model(name, model)
            elif accept_model:
                raise NotNowError(f"{name} runs with the model that it has; stop it first: coach suspend {name}")
            answer = self._answer(ev.ResumeRequested, name)
            self.handler.resume(name, added if budget is None else 0, request.part(0), budget)
            await answer
            return self.row(name)

    async def cancel(self, name: str) -> JobRow:
        """End a job for good, now. Raises NotNowError for one that has ended."""
        async with self._changing[self.job(name).name]:
            job = self.job(name)
            if job.ended:
                raise NotNowError(f"{name} has ended already: {job.state.value}")
            answer = self._answer(ev.CancelRequested, name)
            self.handler.cancel(name)
            await answer
            return self.row(name)

    async def suspend(self, name: str, *, now: bool) -> None:
        """Stop a job so that it can be resumed: at the running epoch's checkpoint, or `now`. An ended one stays so."""
        async with self._changing[self.job(name).name]:
            if not over(self.job(name)):
                answer = self._answer(ev.SuspendRequested, name)
                self.handler.suspend([name], now=now)
                await answer

    async def set_priority(self, name: str, priority: int) -> None:
        """Change a job's priority, from its next decision on."""
        answer = self._answer(ev.PriorityChanged, self.job(name).name)
        self.handler.set_priority(name, priority)
        await answer

    def accounts(self) -> list[AccountRow]:
        """The budgets over jobs."""
        return account_rows(self.handler.accounts, self.jobs, self.handler.now())

    async def spending(self) -> list[SpendingRow]:
        """What each job paid out of which account."""
        known, jobs = self.handler.accounts, dict(self.jobs)
        paying = {name: known.innermost(job) for name, job in jobs.items()}
        paid = await asyncio.to_thread(lambda: list(payments(self.home, paying)))
        return spending_rows(known, jobs, paid)

    async def set_account(self, wanted: ev.AccountSet) -> AccountRow:
        """Make a budget over jobs, or change its terms. Raises UserError for terms that cannot be."""
        await self._set(lambda: wanted)
        return next(row for row in self.accounts() if row.name == wanted.account)

    async def remove_account(self, name: str) -> None:
        """Remove a budget over jobs. Raises UserError where there is none, or a job needs it."""
        await self._set(lambda: removal(self.handler.accounts, name))

    async def _set(self, wanted: Callable[[], ev.AccountSet]) -> None:
        self._refuse_when_stopping()
        async with self._setting:
            await self.until(lambda: not self._promised)  # whom it pays is known then
            self.handler.set_account(wanted())
            await self._answer(ev.AccountSet, "")

    def _refuse_when_stopping(self) -> None:
        if self.stopping:
            raise StoppingError("the service is stopping; ask the next one: coach serve")

    def _answer(self, kind: type, name: str) -> asyncio.Future[None]:
        """Return once an event of that kind for that job, with its actions, is in the journal."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault((kind, name), []).append(answer)
        return answer
