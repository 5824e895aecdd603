"""The cluster of DL²'s simulation in slots of time, many copies at once, to learn from.

The simulator decides what is right; `tests/research/dl2` compares each decision of each slot, and each job's end.

A slot begins with each job's minimum, one worker and one server. Then an action gives one of the `window` oldest jobs a
worker, a server, or both; "void" ends the slot. Capacity counts as a sum over the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coach_research.dl2.workload import (
    MODELS,
    NODE,
    SLOT,
    analytic_epochs_per_second,
    epochs_per_second,
    workload,
)
from coach_research.policies.dl2.network import MORE, STEPS, Array, job_features
from coach_research.workload import Work

Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
STEP = np.array([*STEPS, (0, 0)])


#: The slots of arrival and the kinds of the jobs of a trace, in the order of arrival.
Trace = tuple[Ints, Ints]


@dataclass(frozen=True)
class Case:
    """A cluster, and the kinds of its jobs."""

    kinds: tuple[str, ...]
    #: The part of a job that a slot does, [kind, workers, servers]; 0 without a worker or a server.
    progress: NDArray[np.float64]
    #: What a worker, a server and both use, [kind, step, resource].
    uses: NDArray[np.float64]
    capacity: NDArray[np.float64]
    #: Seconds.
    slot: float
    most: int
    window: int
    #: Jobs of a trace.
    jobs: int
    trace: Callable[[np.random.Generator], Trace]

    @classmethod
    def of(cls, parameters: Mapping[str, Any], window: int = 40) -> Case:
        """That of a scenario of `dl2_baselines`. With `analytic` its speeds are `analytic_epochs_per_second`."""
        most = int(parameters["most"])
        counts = np.array([(w, s) for w in range(1, most + 1) for s in range(1, most + 1)], float)
        progress = np.zeros((len(MODELS), most + 1, most + 1))
        uses = np.zeros((len(MODELS), len(STEPS), 3))
        for kind, (model, (size, part, devices)) in enumerate(MODELS.items()):
            speeds = epochs_per_second(model).several(counts).reshape(most, most) / size
            if parameters.get("analytic"):
                found = [analytic_epochs_per_second(model, int(w), int(s)) for w, s in counts]
                speeds = np.array(found).reshape(most, most)
            progress[kind, 1:, 1:] = speeds * SLOT / (part * parameters["epochs"])
            worker, server = np.array([2.0, 0.0, devices]), np.array([2.0, 0.0, 0.0])
            uses[kind] = worker, server, worker + server
        capacity = float(parameters["nodes"]) * np.array([NODE[0], 1.0, NODE[2]])
        numbers = {model: kind for kind, model in enumerate(MODELS)}

        def trace(rng: np.random.Generator) -> Trace:
            works = list(workload(parameters, rng))
            slots = np.array([round(work.arrival / SLOT) for work in works])
            return slots, np.array([numbers[work.kind] for work in works])

        jobs = int(parameters["jobs"])
        return cls(tuple(MODELS), progress, uses, capacity, SLOT, most, window, jobs, trace)

    @classmethod
    def of_works(
        cls,
        works: Sequence[Work],
        capacity: NDArray[np.float64],
        gap: float,
        jobs: int = 40,
        window: int = 40,
    ) -> Case:
        """Jobs like these, each a kind: any of them at random, every `gap` seconds on average (Poisson).

        A slot is a tenth of the mean time of a job with one worker and one server.
        """
        seconds = [work.work / _speed(work, 1, 1) for work in works]
        slot = float(np.mean(seconds)) / 10
        most = max(max(work.maximum) for work in works)
        progress = np.zeros((len(works), most + 1, most + 1))
        for kind, work in enumerate(works):
            for w in range(1, most + 1):
                for s in range(1, most + 1):
                    progress[kind, w, s] = _speed(work, w, s) * slot / work.work
        uses = np.array([(work.worker, work.server, work.worker + work.server) for work in works])

        def trace(rng: np.random.Generator) -> Trace:
            gaps = rng.exponential(gap / slot, jobs)
            return (np.cumsum(gaps) - gaps[0]).astype(np.intp), rng.integers(len(works), size=jobs)

        names = tuple(work.name for work in works)
        return cls(names, progress, uses, capacity, slot, most, window, jobs, trace)


def _speed(work: Work, workers: int, servers: int) -> float:
    """Epochs/s, with no more than the job may have."""
    assert work.speed is not None
    return work.speed(((0, min(workers, work.maximum.workers), min(servers, work.maximum.servers)),))


class Slots:
    """Copies of a case at once, each with its own trace; a copy whose jobs are all done takes the next trace."""

    def __init__(self, case: Case, copies: int, traces: Iterator[tuple[Ints, Ints]]) -> None:
        self.case = case
        self.traces = traces
        #: Whether an action may give a worker and a server at once.
        self.bundles = True
        jobs, window = case.jobs, case.window
        self.arrival = np.zeros((copies, jobs), np.intp)
        self.all_kinds = np.zeros((copies, jobs), np.intp)
        #: The part of each job that is left.
        self.left = np.zeros((copies, jobs))
        self.now = np.zeros(copies, np.intp)
        #: Completion times in slots of the present trace, and the mean of each trace that is done.
        self.completion = np.zeros((copies, jobs))
        self.means: list[float] = []
        #: The jobs of the window: their numbers, kinds, workers, servers, whether there is one.
        self.number = np.zeros((copies, window), np.intp)
        self.kind = np.zeros((copies, window), np.intp)
        self.counts = np.zeros((copies, window, 2), np.intp)
        self.there = np.zeros((copies, window), bool)
        self.used = np.zeros((copies, 3))
        self.features: Array = np.zeros((copies, window, self.columns(case)), np.float32)
        #: The active jobs beyond the window that have their minimum.
        self._others: list[Ints] = [np.zeros(0, np.intp)] * copies
        for copy in range(copies):
            self._load(copy)
            self.begin(copy)

    @staticmethod
    def columns(case: Case) -> int:
        """Of the features of a job."""
        return len(case.kinds) + MORE

    def _load(self, copy: int) -> None:
        self.arrival[copy], self.all_kinds[copy] = next(self.traces)
        self.left[copy], self.now[copy], self.completion[copy] = 1.0, 0, 0.0

    def begin(self, copy: int) -> None:
        """Start a slot: minimums in the order of arrival, as far as they fit."""
        case = self.case
        while not len(active := np.flatnonzero((self.arrival[copy] <= self.now[copy]) & (self.left[copy] > 0))):
            self.now[copy] += 1
        need = case.uses[self.all_kinds[copy, active], 2].cumsum(axis=0)
        fit = int((need <= case.capacity).all(axis=1).sum())
        self.used[copy] = need[fit - 1]
        window = active[: case.window]
        count = len(window)
        self.there[copy] = np.arange(case.window) < min(count, fit)
        self.number[copy, :count], self.kind[copy, :count] = window, self.all_kinds[copy, window]
        self.counts[copy] = self.there[copy][:, None]
        self._others[copy] = active[case.window : fit]
        self._describe(copy)

    def _describe(self, copy: int) -> None:
        """The features of all jobs of the window."""
        case = self.case
        slots = self.left[copy, self.number[copy]] / case.progress[self.kind[copy], 1, 1]
        self.features[copy] = job_features(len(case.kinds), self.kind[copy], slots, self.counts[copy], case.most)

    def _describe_one(self, copies: Ints, jobs: Ints) -> None:
        """What an action on one job of each copy changes of its features."""
        self.features[copies, jobs, len(self.case.kinds) + 1 :] = self.counts[copies, jobs] / self.case.most

    def possible(self) -> Bools:
        """Which actions are possible, [copy, job, step]."""
        case = self.case
        room = (case.uses[None] <= (case.capacity - self.used)[:, None, None] + 1e-9).all(axis=3)
        fits = np.take_along_axis(room, self.kind[:, :, None], axis=1)
        below = self.counts < case.most
        steps = np.concatenate([below, below.all(axis=2, keepdims=True) & self.bundles], axis=2)
        found: Bools = steps & fits & self.there[:, :, None]
        return found

    def act(self, actions: Ints) -> Bools:
        """Carry out an action in each copy, 3 times the job plus the step, or the last for void: which copies go on."""
        case, copies = self.case, np.arange(len(actions))
        job, step = actions // len(STEPS), actions % len(STEPS)
        going = job < case.window
        job, step = np.where(going, job, 0), np.where(going, step, len(STEPS))
        self.counts[copies, job] += STEP[step]
        self.used[going] += case.uses[self.kind[copies, job], np.minimum(step, 2)][going]
        self._describe_one(copies, job)
        return going

    def end(self, copy: int) -> NDArray[np.float64]:
        """Let the slot pass: the part of each job of the window that was done. Starts the next slot."""
        case, there = self.case, self.there[copy]
        number = np.concatenate([self.number[copy, there], self._others[copy]])
        pods = np.ones((len(number), 2), np.intp)
        pods[: there.sum()] = self.counts[copy, there]
        rate = case.progress[self.all_kinds[copy, number], pods[:, 0], pods[:, 1]]
        left = self.left[copy, number]
        gained = np.minimum(left, rate)
        done = rate >= left - 1e-12
        ended = number[done]
        self.completion[copy, ended] = self.now[copy] + left[done] / rate[done] - self.arrival[copy, ended]
        self.left[copy, number] = np.where(done, 0.0, left - gained)
        found = np.zeros(case.window)
        found[there] = gained[: there.sum()]
        self.now[copy] += 1
        if not (self.left[copy] > 0).any():
            self.means.append(float(self.completion[copy].mean()))
            self._load(copy)
        self.begin(copy)
        return found
