"""One handler in the foreground: what `coach run` does, without showing anything.

It chooses names and a journal, resumes interrupted jobs, submits the others, and waits until every job has ended or
was suspended. Signals stop it in three steps: at the checkpoint of the running epochs, at once, and
without waiting for anything. After all but the last, every pod is released. After each, the jobs can be resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.accounts import Accounts, Payer
from coach.core.jobs.job import Job
from coach.core.money import Money
from coach.core.policies.api.policy import Policy
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Model
from coach.handler import accounts
from coach.handler.clock import Clock
from coach.handler.endpoint import ServiceRunsError, find
from coach.handler.handler import Handler
from coach.handler.interactive_run import Foreground, RunObserver, over
from coach.handler.prior_runs import budget_warning, initial_weights, known_curves, known_epochs, known_points
from coach.handler.state.journal import Journal
from coach.handler.state.journal_file import JournalBusyError
from coach.handler.state.state_directory import Chosen, StateDirectory, StoredJob, choose
from coach.platforms.base import Platform, Progress

#: Makes the platform: from the nodes, the folder for a job's logs, and the handler's clock.
MakePlatform = Callable[[StateDirectory, Callable[[], float]], Platform]
#: What runs for as long as a handler does.
Meanwhile = Callable[[Handler, Journal], contextlib.AbstractAsyncContextManager[None]]


@dataclass(eq=False)
class Session(Foreground):
    """Runs `specs` in the foreground. `run` returns the exit code; then `jobs` has their final state.

    `resumed` names jobs that go on as they are, each with `added_budget` more nano-units, and with the model
    `accepted` where it is given. `meanwhile` is entered when the handler has started.
    """

    home: StateDirectory
    specs: Sequence[TrainingJob]
    _: KW_ONLY
    nodes: tuple[Node, ...]
    policy: Policy
    make_platform: MakePlatform
    watcher: RunObserver
    resumed: Sequence[str] = ()
    added_budget: Money = 0
    accepted: Model | None = None
    meanwhile: Meanwhile | None = None
    handler: Handler | None = field(default=None, init=False)
    chosen: list[Chosen] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__init__(self.watcher)
        self._pending: set[str] = set()

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs of this session (not all of the journal), in the order of the files."""
        known = self.handler.jobs if self.handler else {}
        return {one.name: known[one.name] for one in self.chosen if one.name in known}

    @property
    def progress(self) -> Mapping[str, Progress]:
        """How far running epochs are."""
        return self.handler.progress if self.handler else {}

    def now(self) -> float:
        """Seconds since 1970 on the handler's clock."""
        return self.handler.now() if self.handler else Clock().now()

    def run(self) -> int:
        """Run until all jobs have ended or are suspended. Raises CoachError if it cannot start or go on.

        ServiceRunsError: a service has the state folder, and the jobs should go there.
        """
        with contextlib.ExitStack() as planning:
            planning.enter_context(self.home.planning(lambda: self._say("another run is starting; waiting for it")))
            if find(self.home) and not self.resumed:
                raise ServiceRunsError(f"{self.home.path}: a service has just started; give it the jobs instead")
            past = self.home.past()
            self.chosen = self._choose(past)
            journal = self._open(_common_journal(self.chosen))
            with contextlib.closing(journal):
                return self._run(lambda: self._main(journal, past, planning))

    def _open(self, wanted: Path | None) -> Journal:
        """The journal of the resumed jobs, that of the accounts, or any that no handler has."""
        may_be = [one for one in self.chosen if Payer.of(one.spec)]
        known = accounts.read(self.home)[0] if may_be else Accounts()
        paid = [one.name for one in may_be if one.spec.spec.budget.account or known.paying(one.spec)]
        return self.home.open_journal(wanted) if not paid or wanted is not None else self._open_accounts(paid[0])

    def _open_accounts(self, who: str) -> Journal:
        """The journal of the accounts. Raises UserError where another handler has it."""
        try:
            return self.home.open_journal(self.home.journal(1))
        except JournalBusyError as error:
            raise UserError(
                f"{who}: another `coach run` has the accounts now; run both jobs by one service, "
                "`coach serve` and `coach submit FILE`, or wait for it to end: coach ps"
            ) from error

    def _choose(self, past: dict[str, StoredJob]) -> list[Chosen]:
        chosen = [Chosen(past[name].job.job_file, past[name]) for name in self.resumed]
        for spec in self.specs:
            chosen.append(choose(spec, past, [one.name for one in chosen]))
        return chosen

    async def _main(self, journal: Journal, past: dict[str, StoredJob], planning: contextlib.ExitStack) -> None:
        self._listen_to_signals()
        platform = self.make_platform(self.home, lambda: self.handler.now() if self.handler else 0.0)
        resumed = [one.name for one in self.chosen if one.past is not None]
        suspend_orphans(journal, resumed if platform.programs_outlive else ())
        self.handler = Handler(platform, journal, self.policy, resumed=resumed)
        self.handler.observers.append(self._observe)
        meanwhile = self.meanwhile(self.handler, journal) if self.meanwhile else contextlib.nullcontext()
        async with self._watched(), self.handler, meanwhile:
            self._start_jobs(self.handler, past)
            for one in self.chosen:
                if one.said:
                    self._say(one.said)
            await self.handler.wait(lambda: not self._pending)
            planning.close()
            await self.handler.wait(lambda: all(over(job) for job in self.jobs.values()))

    def _start_jobs(self, handler: Handler, past: dict[str, StoredJob]) -> None:
        """Submit the new jobs with the measurements of similar ones, and resume the others."""
        for one in self.chosen:
            if one.past is None:
                handler.refuse(one.spec)
                initial_weights(past, one.spec)
        for one in self.chosen:
            if one.past is None:
                if words := budget_warning(one.spec, past, self.nodes):
                    self._say(words)
                self._pending.add(one.name)
                submit_new(handler, self.home, one.spec, past, self.nodes)
            elif (job := handler.jobs[one.name]).ended or not job.decision.ending:  # else only its end is to be written
                self._pending.add(one.name)
                if self.accepted is not None:
                    handler.accept_model(one.name, self.accepted)
                handler.resume(one.name, self.added_budget)

    def _can_suspend(self) -> bool:
        return self.handler is not None and not self._pending

    def _suspend(self, names: Sequence[str], *, now: bool) -> None:
        assert self.handler is not None
        self.handler.suspend(names, now=now)

    def _observe(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        if isinstance(event, ev.JobSubmitted | ev.ResumeRequested):
            self._pending.discard(event.job)
        self._show(lambda: self._watcher.happened(event, actions))


def submit_new(  # noqa: PLR0917 - what a new job is made of
    handler: Handler,
    home: StateDirectory,
    spec: TrainingJob,
    past: Mapping[str, StoredJob],
    nodes: tuple[Node, ...],
    request: str = "",
) -> None:
    """Submit a new job, with the measurements of similar ones among `past`. Raises UserError."""
    home.make_folders(spec.name)
    handler.submit(
        spec,
        checkpoints_uri(home, spec, handler.checkpoints),
        known_points(past.values(), spec, nodes),
        known_epochs(past.values(), spec),
        request,
        weights=initial_weights(past, spec),
        known_curves=known_curves(past.values(), spec),
    )


def checkpoints_uri(home: StateDirectory, spec: TrainingJob, shared: str | None) -> str:
    """URI of the folder for a job's checkpoints: its own, also where several job files name one folder.

    `shared`: the default folder, if it is not the state folder.
    """
    uri = spec.spec.checkpoint.uri or shared
    # File URIs are not escaped: fsspec does not decode them.
    return f"{uri.rstrip('/')}/{spec.name}" if uri else f"file://{home.checkpoints(spec.name)}"


def _common_journal(chosen: Sequence[Chosen]) -> Path | None:
    """The journal of the resumed jobs; None if any will do."""
    journals = {one.past.journal: one.name for one in chosen if one.past}
    if len(journals) > 1:
        first, second, *_ = journals.values()
        raise UserError(
            f"{first} and {second} were left by different runs and cannot go on in one; "
            "give each its own: coach run FILE"
        )
    return next(iter(journals), None)


def suspend_orphans(journal: Journal, but: Collection[str] = ()) -> None:
    """Jobs whose handler was killed count as suspended, so that only the requested ones go on.

    Their users did not stop them: a service that starts goes on with them. Those of `but` are requested, and their
    programs may still run.
    """
    living = [job for job in journal.jobs().values() if not job.ended and not job.stop.suspend]
    orphans = [job for job in living if job.name not in but or job.spec.program is None]
    if orphans:
        journal.append([ev.SuspendRequested(journal.clock.now(), job.name, True, by_user=False) for job in orphans])
