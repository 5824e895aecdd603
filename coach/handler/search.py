"""A search: trials are jobs that one account pays; after each epoch a policy says which of them gets the next one.

A trial that does not get it is suspended, with its pods released and its checkpoint kept, and may come back. What is
written of a search is its definition and its parameters, `searches/NAME.json` in the state folder; all else follows
from the journal, so a search whose handler was killed goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import REASON_INFO, Reason, State
from coach.core.money import Money, to_amount
from coach.core.search.freeze_thaw import FreezeThaw
from coach.core.search.trials import (
    AllToTheEnd,
    End,
    Halving,
    Hyperband,
    Median,
    Next,
    Search,
    SearchPolicy,
    Trial,
    TrialState,
)
from coach.core.spec.job import TrainingJob
from coach.core.spec.program import Goal
from coach.handler import accounts, samplers
from coach.handler.handler import Handler
from coach.handler.interactive_run import INTERRUPTED, over
from coach.handler.prior_runs import known_points
from coach.handler.private_files import make_folder, opener
from coach.handler.samplers import Tried
from coach.handler.session import Session, checkpoints_uri, suspend_orphans
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import Chosen, StateDirectory, StoredJob
from coach.jobfiles.search_space import SEARCH, TRIAL, Space, Value, trial_job, written

PRUNERS: dict[str, type[SearchPolicy]] = {
    one.name: one for one in (FreezeThaw, Halving, Hyperband, Median, AllToTheEnd)
}
#: A search ends when its first trials, so many, have all failed.
FAILURES = 5
#: Ends of a trial for which its money is the reason.
MONEY = (Reason.BUDGET_SPENT, Reason.BUDGET_USED)
#: Ends that are no failure of a trial.
LIMITS = (Reason.TARGET_MISSED, Reason.EPOCH_LIMIT, Reason.TIME_LIMIT)
#: Longest name of a search: its trials add a number.
LONGEST_NAME = 34


@dataclass(frozen=True, slots=True)
class Definition:
    """What is searched: the `job` of a trial without its parameters, and how. `parameters`: of the trials so far."""

    name: str
    job: dict[str, Any]
    sets: tuple[str, ...]
    seeds: int = 0
    sampler: str = samplers.GRID
    pruner: str = FreezeThaw.name
    trials: int = 0  #: at most so many; 0: no limit but the grid's
    parallel: int = 1
    seed: int = 0
    parent: str = ""  #: the account that the search's own is in
    parameters: tuple[dict[str, Value], ...] = ()

    @property
    def base(self) -> TrainingJob:
        """The job of a trial without its parameters."""
        return TrainingJob.from_json(self.job)

    @property
    def space(self) -> Space:
        """Its parameters."""
        return Space.read(self.sets, self.seeds)

    @property
    def most(self) -> float:
        """How many trials there are at most."""
        grid = self.space.grid if self.sampler == samplers.GRID else None
        limits = [len(grid)] if grid is not None else []
        return min([*limits, *([self.trials] if self.trials else [])], default=float("inf"))

    def check(self) -> None:
        """Raises UserError for what cannot be searched so."""
        space, base = self.space, self.base
        samplers.check(self.sampler, space)
        if self.pruner not in PRUNERS:
            raise UserError(f"--pruner {self.pruner}: there are {', '.join(PRUNERS)}")
        if PRUNERS[self.pruner].needs_max_epochs and base.spec.max_epochs is None:
            raise UserError(
                f"--pruner {self.pruner}: needs the epochs of a whole trial: --max-epochs 50, or spec.maxEpochs"
            )
        for parameters in (space.grid if self.sampler == samplers.GRID else None) or space.corners():
            trial_job(base, self.name, 1, parameters)

    def same(self, other: Definition) -> bool:
        """Whether both search the same, whatever was tried so far."""
        return replace(self, name="", parameters=()) == replace(other, name="", parameters=())


def path_of(home: StateDirectory, name: str, ending: str = ".json") -> Path:
    """The file of a search: its definition, or Optuna's study of it."""
    return home.path / "searches" / f"{name}{ending}"


def load(home: StateDirectory, name: str) -> Definition:
    """A search by its name. Raises UserError."""
    try:
        data = json.loads(path_of(home, name).read_text(encoding="utf-8"))
    except OSError:
        known = sorted(one.stem for one in (home.path / "searches").glob("*.json"))
        there = f"there are {', '.join(known)}" if known else "none was started; start one: coach search FILE --set ..."
        raise UserError(f"there is no search {name!r}; {there}") from None
    return Definition(**{**data, "sets": tuple(data["sets"]), "parameters": tuple(data["parameters"])})


def save(home: StateDirectory, definition: Definition) -> None:
    """Write it, whole or not at all."""
    path = path_of(home, definition.name)
    make_folder(path.parent)
    new = path.with_suffix(".new")
    with open(new, "w", opener=opener, encoding="utf-8") as out:
        json.dump(asdict(definition), out)
    new.replace(path)


def named(home: StateDirectory, wanted: Definition) -> Definition:
    """The search of the same command that there is, to go on with; else a new one with a free name."""
    known = accounts.read(home)[0].known
    jobs = home.past()
    for number in range(1, 1000):
        ending = "" if number == 1 else f"-{number}"
        name = wanted.name[: LONGEST_NAME - len(ending)].rstrip("-") + ending
        if path_of(home, name).exists():
            found = load(home, name)
            if found.same(wanted):
                return found
        elif name not in known and not any(one.rpartition("-")[0] == name for one in jobs):
            return replace(wanted, name=name)
    raise UserError(f"{wanted.name}: there are 1000 searches of this name; give it another: --name NAME")


def trials_of(definition: Definition, jobs: Mapping[str, Job]) -> dict[int, Job]:
    """The jobs of a search's trials, by number."""
    found = {}
    for job in jobs.values():
        labels = job.job_file.metadata.labels
        if labels.get(SEARCH) == definition.name:
            found[int(labels[TRIAL])] = job
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial in a table. `spent` in currency units; `why`: what it waits for, or how it ended."""

    trial: int
    job: str
    parameters: dict[str, Value]
    state: str
    epochs: int
    best: float | None
    best_epoch: int | None
    spent: float
    why: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A search as its jobs are, with the questions that its policy, its tables and Optuna have about it."""

    definition: Definition
    jobs: Mapping[int, Job]
    money: float = 0.0  #: left, in currency units

    @property
    def spec(self) -> TrainingJob:
        """The job of a trial without its parameters."""
        return self.definition.base

    @property
    def sign(self) -> float:
        """Of values that fall as they get better."""
        return 1.0 if self.spec.spec.goal is Goal.MINIMIZE else -1.0

    def falling(self, job: Job) -> tuple[float, ...]:
        """A trial's values as curves are predicted: falling, those of an accuracy to 0."""
        top = 1.0 if self.spec.spec.curve == "accuracy" else 0.0
        return tuple(value if self.sign > 0 else top - value for value in map(job.value, job.full_epochs))

    @property
    def best(self) -> int | None:
        """The trial with the best value."""
        known = {number: job.best for number, job in self.jobs.items()}
        values = {n: self.sign * self.jobs[n].value(epoch) for n, epoch in known.items() if epoch is not None}
        return min(values, key=lambda number: (values[number], number), default=None)

    def view(self, busy: Collection[str] = (), current: str = "") -> Search:
        """As policies see it. `busy`: the jobs that have an epoch under way; `current` holds its pods."""
        costs = [_epoch_cost(job) for job in self.jobs.values() if job.full_epoch_count]
        usual = sum(costs) / len(costs) if costs else 1e-9
        trials = []
        for number, job in self.jobs.items():
            ended = (job.ended and job.reason not in MONEY) or (job.suspend and not _can_go_on(job))
            state = TrialState.ENDED if ended else TrialState.BUSY if job.name in busy else TrialState.READY
            cost = _epoch_cost(job) if job.full_epoch_count else usual
            trials.append(
                Trial(number, self.falling(job), cost, state, 0.0 if job.name == current else _start_cost(job))
            )
        new = max(0.0, self.definition.most - len(self.definition.parameters))
        return Search(trials, self.money, new, usual, self.spec.spec.max_epochs)

    def tried(self, *, falling: bool) -> list[Tried]:
        """The trials for Optuna. A paused one counts as pruned."""
        found = []
        for number, job in self.jobs.items():
            values = self.falling(job) if falling else tuple(map(job.value, job.full_epochs))
            best = (min if falling or self.sign > 0 else max)(values, default=None)
            failed = failure(job) and not values
            state = "FAIL" if failed else "COMPLETE" if job.ended and values else "PRUNED" if job.suspend else "RUNNING"
            notes = {"job": job.name, "spent": to_amount(job.ledger.spent)}
            found.append(Tried(self.definition.parameters[number - 1], values, best, state, notes))
        return found

    def rows(self) -> list[TrialRow]:
        """The table, the best trial first, those without a value last."""
        best = self.best
        rows = []
        for number, job in self.jobs.items():
            epoch = job.best
            value = None if epoch is None else job.value(epoch)
            state = "failed" if failure(job) else "ended" if job.ended else "paused" if over(job) else "running"
            state = "best" if number == best else state
            spent, why = to_amount(job.ledger.spent), job.message or REASON_INFO[job.reason].words
            at = None if epoch is None else epoch.ordinal
            parameters = self.definition.parameters[number - 1]
            rows.append(TrialRow(number, job.name, parameters, state, job.full_epoch_count, value, at, spent, why))
        return sorted(rows, key=lambda row: (row.best is None, self.sign * (row.best or 0.0), row.trial))


def failure(job: Job) -> bool:
    """Whether a trial failed, rather than came to an end."""
    return job.state is State.FAILED and job.reason not in LIMITS


def _can_go_on(job: Job) -> bool:
    """Whether a paused trial loses nothing when it goes on: a program that does not resume would begin anew."""
    return job.spec.program is None or job.spec.program.resumes or not job.epochs


def _epoch_cost(job: Job) -> float:
    """What an epoch of a trial has cost so far, all that it paid included."""
    return max(to_amount(job.ledger.spent) / job.full_epoch_count, 1e-12)


def _start_cost(job: Job) -> float:
    """What a trial costs before its next epoch begins: the seconds of a start, at what it has paid for a second."""
    return job.times.restart * to_amount(job.ledger.spent) / job.run_seconds if job.run_seconds > 0.0 else 0.0


@dataclass
class _Turn:
    """What the driver remembers between two events."""

    outcome: str = ""
    failed: bool = False
    starting: set[str] = field(default_factory=set)
    pausing: set[str] = field(default_factory=set)


class SearchSession(Session):
    """Runs a search in the foreground. `run` returns the exit code; then `outcome` says how it ended."""

    def __init__(self, definition: Definition, account: ev.AccountSet, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.definition = definition
        self._account = account
        self._policy = PRUNERS[definition.pruner]()
        self._turn = _Turn()

    @cached_property
    def currency(self) -> str:
        """Of the budget."""
        return self._account.currency

    @property
    def outcome(self) -> str:
        """Why the search ended; "" where it was interrupted."""
        return self._turn.outcome

    @property
    def standing(self) -> Standing:
        """The search as its jobs are now."""
        if self.handler is None:
            return Standing(self.definition, {})
        account = self.handler.accounts.known.get(self.definition.name)
        left = 0 if account is None else account.amount - self.handler.accounts.spent(account, self.now())
        return Standing(self.definition, trials_of(self.definition, self.handler.jobs), to_amount(left))

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs of the trials, in the order of their numbers."""
        return {job.name: job for job in self.standing.jobs.values()}

    def run(self) -> int:
        """Until no trial gets another epoch, or it is interrupted. Raises CoachError as `Session.run`."""
        super().run()
        standing = self.standing
        with contextlib.suppress(OSError):
            self._save_study(standing)
        if not self.outcome:
            return INTERRUPTED
        if standing.best is None or self._turn.failed:
            return 1
        reached = any(job.reason is Reason.TARGET_REACHED for job in standing.jobs.values())
        return 0 if reached or self.definition.base.spec.target is None else 3

    def _save_study(self, standing: Standing) -> None:
        if samplers.installed() and standing.jobs:
            path = path_of(self.home, self.definition.name, ".optuna.log")
            tried, maximize = standing.tried(falling=False), standing.sign < 0
            samplers.study(self.definition.name, self.definition.space, tried, maximize=maximize, path=path)

    def _choose(self, past: dict[str, StoredJob]) -> list[Chosen]:
        return []

    def _open(self, wanted: Path | None) -> Journal:
        return self._open_accounts(self.definition.name)

    async def _main(self, journal: Journal, past: dict[str, StoredJob], planning: contextlib.ExitStack) -> None:
        self._listen_to_signals()
        suspend_orphans(journal)
        platform = self._make_platform(self.home, lambda: self.handler.now() if self.handler else 0.0)
        self.handler = handler = Handler(platform, journal, self.policy, resumed=())
        handler.observers.append(self._observe)
        async with self._watched(), handler:
            known = handler.accounts.known.get(self.definition.name)
            if known is None or known.amount != self._account.amount:
                handler.set_account(self._account)
            await handler.wait(lambda: self._account_is_set(handler))
            self._past = past
            begun = len(self.standing.jobs)  # a handler that was killed may not have submitted the last one
            self.definition = replace(self.definition, parameters=self.definition.parameters[:begun])
            self._decide(None)
            planning.close()
            await handler.wait(lambda: self._over(handler))

    def _account_is_set(self, handler: Handler) -> bool:
        known = handler.accounts.known.get(self.definition.name)
        return known is not None and known.amount == self._account.amount

    def _over(self, handler: Handler) -> bool:
        idle = not self._turn.starting and all(over(job) for job in self.jobs.values())
        return idle and bool(self.outcome or self._stops)

    def _can_suspend(self) -> bool:
        return self.handler is not None

    def _observe(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        super()._observe(event, actions)
        self._turn.starting.difference_update(
            [event.job] if isinstance(event, ev.JobSubmitted | ev.ResumeRequested) else ()
        )
        job = self.handler.jobs.get(event.job) if self.handler else None
        if job is None or job.job_file.metadata.labels.get(SEARCH) != self.definition.name:
            return
        if isinstance(event, ev.SuspendRequested):
            self._turn.pausing.discard(job.name)
        boundary = isinstance(event, ev.EpochFinished) and job.epochs[-1].kind is EpochKind.FULL
        try:
            if boundary and not self._ends_by_itself(job):
                self._decide(job)
            elif over(job):
                self._look_at_end(job)
                self._decide(None)
        except UserError as error:  # a trial that cannot be paid, or a parameter that it cannot have
            self._end(str(error))

    def _ends_by_itself(self, job: Job) -> bool:
        """Whether it has reached its target or its number of epochs."""
        target, most = job.spec.target, job.spec.max_epochs
        reached = target is not None and job.consecutive_hits >= target.epochs_in_a_row
        if reached:
            self._end(f"trial {job.name} reached the target")
        return reached or (most is not None and job.full_epoch_count >= most)

    def _look_at_end(self, job: Job) -> None:
        """What the end of one trial means for all."""
        if job.reason in MONEY:
            self._end(f"the budget covers no further epoch of {job.name}: {job.message}")
        trials = list(self.standing.jobs.values())
        if failure(job) and len(trials) >= min(FAILURES, self.definition.most) and all(map(failure, trials)):
            self._turn.failed = True
            self._end(f"all {len(trials)} trials failed; the last one: {job.reason.value}: {job.message}")

    def _end(self, why: str) -> None:
        """No trial gets another epoch; those that have one are stopped at its end."""
        assert self.handler is not None
        self._turn.outcome = self._turn.outcome or why
        for job in self.jobs.values():
            self._pause(job, "the search has ended")

    def _pause(self, job: Job, why: str) -> None:
        assert self.handler is not None
        done = job.spec.target is not None and job.consecutive_hits >= job.spec.target.epochs_in_a_row
        if not (job.ended or job.suspend or done or job.name in self._turn.pausing):
            self._turn.pausing.add(job.name)
            self.handler.suspend([job.name], now=False, why=f"paused by search {self.definition.name}: {why}")

    def _decide(self, current: Job | None) -> None:
        """Give the free places their next epochs. `current`: a trial that is at the end of one."""
        assert self.handler is not None
        why = "other trials are expected to gain more"
        while not self.outcome and not self._stops:
            turn = self._turn
            idle = {job.name for job in self.jobs.values() if over(job) or job.suspend} | turn.pausing
            busy = (self.jobs.keys() - idle - {current.name if current else ""}) | turn.starting
            if len(busy) >= self.definition.parallel:
                break
            view = self.standing.view(busy | turn.pausing, current.name if current else "")
            choice = self._policy.next(view)
            if isinstance(choice, End):
                why = choice.why
                if not busy:
                    self._end(choice.why)
                break
            if current is not None and choice.trial == self._number(current):
                return
            why = choice.why
            self._start(choice)
        if current is not None:
            self._pause(current, why)

    @staticmethod
    def _number(job: Job) -> int:
        return int(job.job_file.metadata.labels[TRIAL])

    def _start(self, choice: Next) -> None:
        assert self.handler is not None
        if choice.trial is not None:
            job = self.standing.jobs[choice.trial]
            self._turn.starting.add(job.name)
            self.handler.resume(job.name)
            return
        definition, number = self.definition, len(self.definition.parameters) + 1
        tried = self.standing.tried(falling=True)
        parameters = samplers.propose(definition.sampler, definition.space, definition.seed + number, number, tried)
        spec = trial_job(definition.base, definition.name, number, parameters)
        self.handler.refuse_unpayable(spec)
        self.definition = replace(definition, parameters=(*definition.parameters, parameters))
        save(self.home, self.definition)
        self.home.make_folders(spec.name)
        here = [StoredJob(job, self.home.journal(1), True, frozenset({self.nodes})) for job in self.jobs.values()]
        points = known_points([*self._past.values(), *here], spec, self.nodes)
        self.handler.submit(spec, checkpoints_uri(self.home, spec, self.handler.checkpoints), points)
        self._turn.starting.add(spec.name)
        self._say(f"{spec.name}: {written(parameters)} ({choice.why})")


def money_left(home: StateDirectory, name: str) -> tuple[Money, Money, str]:
    """Amount and spent of a search's account, and its currency; zeros without one."""
    known, _ = accounts.read(home)
    account = known.known.get(name)
    if account is None:
        return 0, 0, ""
    return account.amount, account.payments.since(float("-inf")), account.currency
