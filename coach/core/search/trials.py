"""A search as its policies see it, and what they answer: the trial that gets the next epoch, or the end.

A policy is pure: it reads the view, and has no clock and no randomness. Values fall: the loss itself, or what an
accuracy lacks of 1. The driver asks when a trial is at the end of an epoch, or has ended, and a place is free.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import ClassVar


class TrialState(StrEnum):
    """What a trial can do next."""

    READY = "ready"  #: paused, or at the end of an epoch: it can go on
    BUSY = "busy"  #: in the middle of an epoch
    ENDED = "ended"  #: it has no further epoch


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of parameters. `cost` of its next epoch, in currency units; `start`: of what comes before that."""

    number: int  #: from 1, in the order of their starts
    values: tuple[float, ...]  #: after each full epoch, falling
    cost: float
    state: TrialState = TrialState.READY
    start: float = 0.0
    at: tuple[float, ...] = ()  #: its parameters, each from 0 to 1; empty where they are not known

    @property
    def best(self) -> float:
        """Its lowest value so far."""
        return min(self.values, default=inf)


@dataclass(frozen=True, slots=True)
class Search:
    """All trials that have started, and what is left: of money, and of trials that have not."""

    trials: Sequence[Trial]
    money: float = inf  #: currency units
    new: float = inf  #: how many more trials there are
    new_cost: float = 1.0  #: of an epoch of one of these
    max_epochs: int | None = None  #: full epochs of one trial
    candidates: Sequence[tuple[float, ...]] = ()  #: parameters among which a new trial may be chosen

    @property
    def best(self) -> float:
        """The lowest value of all."""
        return min((trial.best for trial in self.trials), default=inf)

    def left(self, trial: Trial) -> float:
        """The epochs that a trial may still have."""
        return inf if self.max_epochs is None else self.max_epochs - len(trial.values)

    @property
    def ready(self) -> list[Trial]:
        """The trials that can get an epoch now."""
        return [one for one in self.trials if one.state is TrialState.READY and self.left(one) > 0]


@dataclass(frozen=True, slots=True)
class Next:
    """The trial that gets the next epoch, None for a new one, and why."""

    trial: int | None
    why: str = ""
    candidate: int = 0  #: of a new one: the index of its parameters


@dataclass(frozen=True, slots=True)
class End:
    """No trial gets an epoch, and why."""

    why: str


class SearchPolicy(ABC):
    """Decides which trial gets the next epoch."""

    #: As a user names it.
    name: ClassVar[str]
    #: It compares trials at shares of `max_epochs`, which it has to know.
    needs_max_epochs: ClassVar[bool] = False

    @abstractmethod
    def next(self, search: Search) -> Next | End:
        """The trial for a place that is free."""


@dataclass(frozen=True, slots=True)
class AllToTheEnd(SearchPolicy):
    """Every trial gets all its epochs, one after the other: random search, or a grid."""

    name: ClassVar[str] = "none"

    def next(self, search: Search) -> Next | End:
        """See `SearchPolicy`."""
        return go_on(search.ready) or begin(search, "no trial is left")


@dataclass(frozen=True, slots=True)
class Median(SearchPolicy):
    """A trial goes on unless its best value is above the median of the others' means so far at the same epoch.

    The median stopping rule (Golovin et al. 2017, Google Vizier, section 3.2.2), as Optuna's MedianPruner has it: the
    first `startup` trials go to the end.
    """

    name: ClassVar[str] = "median"
    startup: int = 5
    _stopped: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    def next(self, search: Search) -> Next | End:
        """See `SearchPolicy`."""
        return go_on([one for one in search.ready if not self._bad(search, one)]) or begin(search, "no trial is left")

    def _bad(self, search: Search, trial: Trial) -> bool:
        step = len(trial.values)
        done = [one for one in search.trials if one.state is TrialState.ENDED or search.left(one) <= 0]
        if step == 0 or len(done) < self.startup:
            return False
        if trial.number not in self._stopped:
            others = [one.values[:step] for one in search.trials if len(one.values) >= step and one != trial]
            means = sorted(sum(values) / step for values in others)
            if means and trial.best > means[len(means) // 2]:
                self._stopped.add(trial.number)
        return trial.number in self._stopped


@dataclass(frozen=True, slots=True)
class Halving(SearchPolicy):
    """Asynchronous successive halving (ASHA; Li et al. 2020, algorithm 2).

    Of the trials that have reached a rung, 1, eta, eta^2 ... epochs, the best part 1/eta goes on to the next rung, at
    any time later; where none does, a new trial begins.
    """

    name: ClassVar[str] = "halving"
    needs_max_epochs: ClassVar[bool] = True
    eta: int = 3
    brackets: int = 1

    def next(self, search: Search) -> Next | End:
        """See `SearchPolicy`."""
        assert search.max_epochs is not None
        ready, promoted = set(search.ready), []
        for bracket in range(self.brackets):
            trials = [one for one in search.trials if (one.number - 1) % self.brackets == bracket]
            rungs = self._rungs(search.max_epochs, bracket)
            for one in trials:
                if one in ready and len(one.values) not in rungs:
                    return Next(one.number, "it is between two rungs")
            for rung in rungs:
                reached = sorted((min(one.values[:rung]), one.number, one) for one in trials if len(one.values) >= rung)
                best = [one for *_, one in reached[: len(reached) // self.eta]]
                promoted += [(rung, -one.number) for one in best if len(one.values) == rung and one in ready]
        if promoted:
            rung, number = max(promoted)
            return Next(-number, f"among the best 1/{self.eta} after {rung} epochs")
        return begin(search, "") if search.new >= 1 else self._last(search)

    @staticmethod
    def _last(search: Search) -> Next | End:
        """Without a new trial for comparison the best one goes on to its end."""
        best = min(search.trials, key=lambda one: (one.best, one.number), default=None)
        if best is None or best not in search.ready:
            return End("the best trial has had all its epochs")
        return Next(best.number, "the best one goes on to its end")

    def _rungs(self, most: int, bracket: int) -> set[int]:
        rung, found = self.eta**bracket, set()
        while rung < most:
            found.add(rung)
            rung *= self.eta
        return found


@dataclass(frozen=True, slots=True)
class Hyperband(Halving):
    """Asynchronous Hyperband (Li et al. 2018): trials are shared out over brackets; each begins a rung later."""

    name: ClassVar[str] = "hyperband"
    brackets: int = 4


def go_on(ready: Sequence[Trial]) -> Next | None:
    """The first of these trials."""
    return Next(min(one.number for one in ready), "it goes on to its end") if ready else None


def begin(search: Search, otherwise: str) -> Next | End:
    """A new trial, where there is one."""
    return Next(None, "a new trial") if search.new >= 1 else End(otherwise)
