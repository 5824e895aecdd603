"""A search as its jobs are: what its policy, its tables and Optuna ask about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import mean, stdev

from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason, State
from coach.core.money import to_amount
from coach.core.search.trials import Search, Trial, TrialState
from coach.core.spec.job import TrainingJob
from coach.core.spec.program import Goal
from coach.handler.handler import Handler
from coach.handler.interactive_run import over
from coach.handler.search.definition import Definition
from coach.handler.search.samplers import Tried
from coach.jobfiles.search_space import FINAL, SEARCH, TRIAL, Value

#: A search ends when its first trials, so many, have all failed.
FAILURES = 5
#: Ends of a trial for which its money is the reason.
MONEY = (Reason.BUDGET_SPENT, Reason.BUDGET_USED)
#: Ends that are no failure of a trial.
LIMITS = (Reason.TARGET_MISSED, Reason.EPOCH_LIMIT, Reason.TIME_LIMIT)


def standing(definition: Definition, jobs: Mapping[str, Job], money: float = 0.0) -> Standing:
    """A search of which `money` is left, its jobs found among `jobs`."""
    trials, finals = {}, {}
    for job in jobs.values():
        labels = job.job_file.metadata.labels
        if labels.get(SEARCH) != definition.name:
            continue
        if TRIAL in labels:
            trials[int(labels[TRIAL])] = job
        else:
            finals[int(labels[FINAL]), int(job.name.rpartition("-")[2])] = job
    return Standing(definition, dict(sorted(trials.items())), finals, money)


def standing_on(definition: Definition, handler: Handler) -> Standing:
    """The same of a handler that has its account."""
    account = handler.accounts.known.get(definition.name)
    left = 0 if account is None else account.amount - handler.accounts.spent(account, handler.now())
    return standing(definition, handler.jobs, to_amount(left))


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
class SearchRow:
    """A search. Money in `currency`; `outcome`: why it ended, empty while it goes on; `best`: the trial.

    `reached`: whether a trial reached the target; None without one. `final_mean`, `final_half`: of the best parameters
    with other seeds, and half of the 95 % interval.
    """

    search: str
    metric: str
    currency: str
    outcome: str
    running: bool
    deadline: float | None
    reached: bool | None
    trials: int
    spent: float
    left: float
    best: int | None
    job: str | None
    value: float | None
    parameters: dict[str, Value] | None
    checkpoint: str | None
    final_values: list[float]
    final_mean: float | None
    final_half: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A search as its jobs are, with the questions that its policy, its tables and Optuna have about it."""

    definition: Definition
    jobs: Mapping[int, Job]  #: of the trials, by number
    #: By the trial whose parameters they train, and their seed.
    finals_of: Mapping[tuple[int, int], Job] = field(default_factory=dict)
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

    @property
    def spent(self) -> float:
        """By all its jobs, in currency units."""
        return sum(to_amount(job.money.ledger.spent) for job in (*self.jobs.values(), *self.finals_of.values()))

    @property
    def finals(self) -> dict[int, Job | None]:
        """The job of each final seed with the best trial's parameters; None where it has not begun."""
        return {seed: self.finals_of.get((self.best or 0, seed)) for seed in self.definition.seeds_at_end}

    @property
    def failed(self) -> bool:
        """Whether the first trials all failed."""
        trials = self.jobs.values()
        return len(trials) >= min(FAILURES, self.definition.most) and all(map(failure, trials))

    @property
    def finals_left(self) -> dict[int, Job | None]:
        """The final seeds that are still to be trained to their end."""
        if self.definition.stopped or self.failed or self.best is None:
            return {}
        return {seed: job for seed, job in self.finals.items() if job is None or not job.ended}

    @property
    def over(self) -> bool:
        """Whether nothing of it runs, or will."""
        idle = all(map(over, (*self.jobs.values(), *self.finals_of.values())))
        return idle and bool(self.definition.outcome) and not self.finals_left

    @property
    def kept(self) -> tuple[float, float]:
        """Money and seconds for the final seeds that have not ended: each takes what the best trial took."""
        left = len(self.finals_left)
        if self.best is None or not left:
            return 0.0, 0.0
        job = self.jobs[self.best]
        return left * to_amount(job.money.ledger.spent), -(-left // self.definition.parallel) * job.progress.run_seconds

    @property
    def final_values(self) -> list[float]:
        """The best value of each final seed that had all its epochs, or reached the target.

        A program's reports that come close together are one epoch, so the same epochs may count as fewer: what they
        were by the program, or that it ended by itself, counts too.
        """
        if self.best is None:
            return []
        best = self.jobs[self.best]
        done = [
            job
            for job in self.finals.values()
            if job
            and (
                job.full_epoch_count >= best.full_epoch_count
                or job.epochs_trained >= best.epochs_trained
                or job.reason in (Reason.TARGET_REACHED, Reason.PROGRAM_ENDED)
            )
        ]
        return [job.value(job.best) for job in done if job.best is not None]

    def view(
        self,
        busy: Collection[str] = (),
        current: str = "",
        seconds: float = inf,
        candidates: Sequence[Mapping[str, Value]] = (),
    ) -> Search:
        """As policies see it. `busy`: the jobs that have an epoch under way; `current` holds its pods.

        `candidates`: parameters that a new trial may have. `seconds`: until the deadline. The money is what can be
        spent by then, without that of the final seeds.
        """
        costs = [_epoch_cost(job) for job in self.jobs.values() if job.full_epoch_count]
        usual = sum(costs) / len(costs) if costs else 1e-9
        trials, place = [], self.definition.space.place
        for number, job in self.jobs.items():
            ended = (job.ended and job.reason not in MONEY) or (job.stop.suspend and not _can_go_on(job))
            state = TrialState.ENDED if ended else TrialState.BUSY if job.name in busy else TrialState.READY
            cost = _epoch_cost(job) if job.full_epoch_count else usual
            trials.append(
                Trial(
                    number,
                    self.falling(job),
                    cost,
                    state,
                    0.0 if job.name == current else _start_cost(job),
                    place(self.definition.parameters[number - 1]),
                )
            )
        new = max(0.0, self.definition.most - len(self.definition.parameters))
        kept, kept_seconds = self.kept
        ran = sum(job.progress.run_seconds for job in self.jobs.values())
        by_then = inf
        if ran > 0.0 and seconds < inf:
            by_then = max(0.0, seconds - kept_seconds) * self.definition.parallel * self.spent / ran
        money = min(max(0.0, self.money - kept), by_then)
        return Search(trials, money, new, usual, self.spec.spec.max_epochs, tuple(map(place, candidates)))

    def tried(self, *, falling: bool) -> list[Tried]:
        """The trials for Optuna. A paused one counts as pruned."""
        found = []
        for number, job in self.jobs.items():
            values = self.falling(job) if falling else tuple(map(job.value, job.full_epochs))
            best = (min if falling or self.sign > 0 else max)(values, default=None)
            failed = failure(job) and not values
            goes_on = "PRUNED" if job.stop.suspend else "RUNNING"
            state = "FAIL" if failed else "COMPLETE" if job.ended and values else goes_on
            notes = {"job": job.name, "spent": to_amount(job.money.ledger.spent)}
            found.append(Tried(self.definition.parameters[number - 1], values, best, state, notes))
        return found

    def row(self) -> SearchRow:
        """The search as one row."""
        best, spec, definition = self.best, self.spec.spec, self.definition
        job = self.jobs[best] if best is not None else None
        middle, half = interval(self.final_values) if self.final_values else (None, None)
        return SearchRow(
            definition.name, spec.metric, spec.price_book.currency, definition.outcome,
            not self.over, definition.deadline or None,
            any(one.reason is Reason.TARGET_REACHED for one in self.jobs.values()) if spec.target else None,
            len(self.jobs), self.spent, self.money, best, job.name if job else None,
            job.value(job.best) if job and job.best else None, definition.parameters[best - 1] if best else None,
            job.progress.weights if job else None, self.final_values, middle, half,
        )  # fmt: skip

    def rows(self) -> list[TrialRow]:
        """The table, the best trial first, those without a value last."""
        best = self.best
        rows = []
        for number, job in self.jobs.items():
            epoch = job.best
            value = None if epoch is None else job.value(epoch)
            state = "failed" if failure(job) else "ended" if job.ended else "paused" if over(job) else "running"
            state = "best" if number == best else state
            spent, why = to_amount(job.money.ledger.spent), job.message or job.reason.words
            at = None if epoch is None else epoch.ordinal
            parameters = self.definition.parameters[number - 1]
            rows.append(TrialRow(number, job.name, parameters, state, job.full_epoch_count, value, at, spent, why))
        return sorted(rows, key=lambda row: (row.best is None, self.sign * (row.best or 0.0), row.trial))


def exit_code(row: SearchRow) -> int:
    """Of a search that is over: 0, 1 without any value, 3 where its money ended before its target was reached."""
    return 1 if row.best is None else 3 if row.reached is False else 0


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean of final values, and half of its 95 % interval (Student's t); None for fewer than two."""
    if len(values) < 2:
        return mean(values), None
    from scipy.special import stdtrit  # slow to import

    return mean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / sqrt(len(values))


def failure(job: Job) -> bool:
    """Whether a trial failed, rather than came to an end."""
    return job.state is State.FAILED and job.reason not in LIMITS


def _can_go_on(job: Job) -> bool:
    """Whether a paused trial loses nothing when it goes on: a program that does not resume would begin anew."""
    return not (job.begins_anew and job.epochs)


def _epoch_cost(job: Job) -> float:
    """What an epoch of a trial has cost so far, all that it paid included."""
    return max(to_amount(job.money.ledger.spent) / job.full_epoch_count, 1e-12)


def _start_cost(job: Job) -> float:
    """What a trial costs before its next epoch begins: the seconds of a start, at what it has paid for a second."""
    seconds = job.progress.run_seconds
    return job.times.restart * to_amount(job.money.ledger.spent) / seconds if seconds > 0.0 else 0.0
