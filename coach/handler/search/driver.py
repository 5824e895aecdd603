"""Drives a search on a handler: trials are jobs that one account pays; after each epoch a policy says which goes on.

A trial that does not get the next epoch is suspended, with its pods released and its checkpoint kept, and may come
back. What is written of a search is its definition and its parameters, `searches/NAME.json` in the state folder; all
else follows from the journal, so a search whose handler was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.search.trials import End, Next
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.interactive_run import over
from coach.handler.prior_runs import known_points
from coach.handler.search import samplers
from coach.handler.search.definition import PRUNERS, Definition, path_of, save
from coach.handler.search.standing import MONEY, Standing, failure, standing_on
from coach.handler.session import checkpoints_uri
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.jobfiles.search_space import SEARCH, SEED, TRIAL, Value, written


@dataclass(eq=False)
class Driver:
    """One search on a handler that has its account. After `begin` it acts on what happens, until it is `over`.

    `past`: jobs whose measurements new trials use. `say` shows a line that is in no journal.
    """

    definition: Definition
    home: StateDirectory
    handler: Handler
    nodes: tuple[Node, ...]
    past: Callable[[], Iterable[StoredJob]]
    say: Callable[[str], None]
    _starting: set[str] = field(default_factory=set)
    _pausing: set[str] = field(default_factory=set)
    _drawn: tuple[int, list[dict[str, Value]]] = (-1, [])
    _timer: asyncio.TimerHandle | None = None
    _closed: bool = False

    def __post_init__(self) -> None:
        self._policy = PRUNERS[self.definition.pruner]()

    def begin(self, starting: Collection[str] = ()) -> None:
        """Start or go on. Raises UserError where not even the first trial can be paid.

        `starting`: jobs of its own that were resumed just now.
        """
        handler, definition = self.handler, self.definition
        # A handler that was killed may not have submitted the last one.
        parameters = definition.parameters[: len(self.standing.jobs)]
        deadline = definition.deadline or (definition.time_limit and handler.now() + definition.time_limit)
        self._keep(parameters=parameters, deadline=deadline)
        self._starting.update(starting)
        handler.observers.append(self._observe)
        if deadline:
            late = max(0.0, deadline - handler.now())
            self._timer = asyncio.get_running_loop().call_later(late, self.stop, "the deadline has passed", True)
        self._decide(None)
        self._close_when_over()

    def close(self) -> None:
        """Act on nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(ValueError):
            self.handler.observers.remove(self._observe)
        if not self._closed:  # Optuna takes seconds to import: not on the loop, which jobs need
            self._closed = True
            asyncio.get_running_loop().run_in_executor(None, _save_study, self.home, self.standing)

    @property
    def standing(self) -> Standing:
        """The search as its jobs are now."""
        return standing_on(self.definition, self.handler)

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs of the trials, in the order of their numbers, and of the final seeds."""
        found = self.standing
        return {job.name: job for job in (*found.jobs.values(), *found.finals_of.values())}

    @property
    def submitted(self) -> bool:
        """Whether the journal has all jobs that it has begun or resumed."""
        return not self._starting

    @property
    def over(self) -> bool:
        """Whether nothing of it runs, or will."""
        return not self._starting and self.standing.over

    def stop(self, why: str, now: bool = False) -> None:
        """No trial and no final seed gets another epoch: from the end of the running ones on, or `now`."""
        self._keep(outcome=self.definition.outcome or why, stopped=True)
        for job in self.jobs.values():
            self._pause(job, why, now=now)

    def _keep(self, **changes: Any) -> None:
        changed = replace(self.definition, **changes)
        if changed != self.definition:
            self.definition = changed
            save(self.home, changed)

    def _observe(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        if isinstance(event, ev.JobSubmitted | ev.ResumeRequested):
            self._starting.discard(event.job)
        job = self.handler.jobs.get(event.job)
        if job is None or job.job_file.metadata.labels.get(SEARCH) != self.definition.name:
            return
        if isinstance(event, ev.SuspendRequested):
            self._pausing.discard(job.name)
        trial = TRIAL in job.job_file.metadata.labels
        boundary = isinstance(event, ev.EpochFinished) and job.epochs[-1].kind is EpochKind.FULL
        try:
            if boundary and trial and not self._ends_by_itself(job):
                self._decide(job)
            elif over(job):
                if trial:
                    self._look_at_end(job)
                self._decide(None)
        except UserError as error:  # a trial that cannot be paid, or a parameter that it cannot have
            self._end(str(error))
        self._close_when_over()

    def _close_when_over(self) -> None:
        if self.over:
            self.close()

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
        if failure(job) and self.standing.failed:
            count = len(self.standing.jobs)
            self._end(f"all {count} trials failed; the last one: {job.reason.value}: {job.message}")

    def _end(self, why: str) -> None:
        """No trial gets another epoch; those that have one are stopped at its end."""
        self._keep(outcome=self.definition.outcome or why)
        for job in self.standing.jobs.values():
            self._pause(job, "the search has ended")

    def _pause(self, job: Job, why: str, *, now: bool = False) -> None:
        done = job.spec.target is not None and job.consecutive_hits >= job.spec.target.epochs_in_a_row
        if not (job.ended or done or (not now and (job.stop.suspend or job.name in self._pausing)) or over(job)):
            self._pausing.add(job.name)
            self.handler.suspend([job.name], now=now, why=f"paused by search {self.definition.name}: {why}")

    def _decide(self, current: Job | None) -> None:
        """Give the free places their next epochs. `current`: a trial that is at the end of one."""
        why = "other trials are expected to gain more"
        while not self.definition.outcome:
            idle = {job.name for job in self.jobs.values() if over(job) or job.stop.suspend} | self._pausing
            busy = (self.jobs.keys() - idle - {current.name if current else ""}) | self._starting
            if len(busy) >= self.definition.parallel:
                break
            choice = self._choice(busy, current)
            if isinstance(choice, End):
                why = choice.why
                if not busy:
                    self._end(choice.why)
                break
            if current is not None and choice.trial == int(current.job_file.metadata.labels[TRIAL]):
                return
            why = choice.why
            self._start(choice)
        if current is not None:
            self._pause(current, why)
        if self.definition.outcome:
            self._start_finals()

    def _choice(self, busy: set[str], current: Job | None) -> Next | End:
        """What the policy says, as long as money and time for the final seeds are left."""
        found, deadline = self.standing, self.definition.deadline
        seconds = deadline - self.handler.now() if deadline else inf
        view = found.view(busy | self._pausing, current.name if current else "", seconds, self._candidates())
        if found.kept[1] >= seconds:
            return End("the time left is for the final seeds")
        cheapest = min(
            [*(one.cost + one.start for one in view.ready), *([view.new_cost] if view.new >= 1 else [])] or [0]
        )
        if found.kept[0] and cheapest > view.money:
            return End(f"the money left, {found.money:.4g}, is for the final seeds")
        return self._policy.next(view)

    def _candidates(self) -> list[dict[str, Value]]:
        """Parameters that the next trial may have, drawn once for each."""
        begun, definition = self.definition.parameters, self.definition
        if self._drawn[0] != len(begun) and len(begun) < definition.most:
            tried = self.standing.tried(falling=True)
            found = samplers.candidates(definition.sampler, definition.space, definition.seed, tried, begun)
            self._drawn = len(begun), found
        return self._drawn[1]

    def _start(self, choice: Next) -> None:
        if choice.trial is not None:
            self._resume(self.standing.jobs[choice.trial])
            return
        definition, number = self.definition, len(self.definition.parameters) + 1
        parameters = self._candidates()[choice.candidate]
        spec = definition.trial(number, parameters)
        self.handler.refuse(spec)
        self._keep(parameters=(*definition.parameters, parameters))
        self._submit(spec)
        self.say(f"{spec.name}: {written(parameters)} ({choice.why})")

    def _start_finals(self) -> None:
        """Train the best parameters with other seeds, when no trial runs any more."""
        found = self.standing
        if self._starting or self._pausing or not all(over(job) for job in found.jobs.values()):
            return
        places = self.definition.parallel - sum(not over(job) for job in found.finals_of.values())
        for seed, job in found.finals_left.items():
            if places <= 0 or (job is not None and not over(job)):
                continue
            places -= 1
            if job is not None:
                self._resume(job)
                continue
            assert found.best is not None
            parameters = {**self.definition.parameters[found.best - 1], SEED: seed}
            spec = self.definition.trial(found.best, parameters, found.jobs[found.best].full_epoch_count)
            try:
                self.handler.refuse(spec)
            except UserError as error:
                self.say(str(error))
                self.stop(str(error))
                return
            self._submit(spec)
            self.say(f"{spec.name}: the parameters of trial {found.best} with seed {seed}")

    def _resume(self, job: Job) -> None:
        self._starting.add(job.name)
        self.handler.resume(job.name)

    def _submit(self, spec: TrainingJob) -> None:
        home = self.home
        self._starting.add(spec.name)
        home.make_folders(spec.name)
        here = [StoredJob(job, home.journal(1), True, frozenset({self.nodes})) for job in self.jobs.values()]
        points = known_points([*self.past(), *here], spec, self.nodes)
        self.handler.submit(spec, checkpoints_uri(home, spec, self.handler.checkpoints), points)


def _save_study(home: StateDirectory, found: Standing) -> None:
    """Write the search as a study of Optuna, where that is installed."""
    if samplers.installed() and found.jobs:
        definition = found.definition
        path = path_of(home, definition.name, ".optuna.log")
        with contextlib.suppress(OSError):
            tried = found.tried(falling=False)
            samplers.study(definition.name, definition.space, tried, maximize=found.sign < 0, path=path)
