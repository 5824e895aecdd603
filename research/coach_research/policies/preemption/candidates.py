"""The running best-effort jobs as arrays: a victim is found by a few operations on all of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.policies.preemption.victims import scores
from coach_research.scheduling.api import IntArray, JobId, JobState, NodeId
from coach_research.workload import FloatArray

#: Rows of the table: demand (cores, GiB, devices), |D|, GP, whether PC < P, priority, when it would end, its number.
CPU, MEMORY, GPU, SIZE, GRACE, OPEN, PRIORITY, END, NUMBER = range(9)
DEMAND = slice(CPU, GPU + 1)


class BestEffort:
    """The running ones, [row, job], without gaps; of single tasks also their node. J of equation 1."""

    def __init__(self, weight: FloatArray, most: int) -> None:
        """`weight`: 1 / the maximum of each resource over the nodes, shape (3,); `most`: P."""
        self._unit = weight.tolist()
        self._most = most
        self._table = np.zeros((9, 64))
        self._nodes = np.zeros(64, np.intp)
        self._at: dict[JobId, int] = {}
        self._jobs: list[JobState] = []
        #: Jobs on several nodes, or with several pods: the arrays do not cover them.
        self.wide = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> Sequence[JobState]:
        """The jobs, in arbitrary order."""
        return self._jobs

    def add(self, job: JobState, demand: FloatArray, node: NodeId, end: float) -> None:
        """`job` runs, holds `demand` in all, and would end at `end`; `node` is -1 where it is not a single task."""
        place = len(self._jobs)
        if place == len(self._nodes):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
            self._nodes = np.concatenate([self._nodes, np.zeros_like(self._nodes)])
        cpu, memory, gpu = demand.tolist()
        a, b, c = self._unit
        size = math.sqrt((cpu * a) ** 2 + (memory * b) ** 2 + (gpu * c) ** 2)
        unspent = job.preemptions < self._most
        self._table[:, place] = (cpu, memory, gpu, size, job.grace, unspent, job.priority, end, job.id)
        self._nodes[place] = node
        self._at[job.id] = place
        self._jobs.append(job)
        self.wide += node < 0

    def remove(self, number: JobId) -> None:
        """Remove a job that stopped running; one that is not here (a trial-and-error job) is ignored."""
        place = self._at.pop(number, None)
        if place is None:
            return
        if self.wide:
            self.wide -= int(self._nodes[place] < 0)
        last = self._jobs.pop()
        if last.id != number:
            end = len(self._jobs)
            self._table[:, place] = self._table[:, end]
            self._nodes[place] = self._nodes[end]
            self._jobs[place] = last
            self._at[last.id] = place

    def score(self, s: float) -> FloatArray:
        """Equation 1 of each."""
        n = len(self._jobs)
        return scores(self._table[SIZE, :n], self._table[GRACE, :n], s)

    def ends(self) -> FloatArray:
        """When each is predicted to end, seconds."""
        return self._table[END, : len(self._jobs)]

    def alone(self, need: FloatArray, room: FloatArray, priority: int, rank: FloatArray) -> JobId | None:
        """Equation 2: of the single tasks without which `need` fits on their node, the one with the lowest `rank`.

        `room` is N, [node, resource]. None where there is no such task.
        """
        n = len(self._jobs)
        table = self._table[:, :n]
        there = table[DEMAND] + room[self._nodes[:n]].T >= (need - TOLERANCE)[:, None]
        candidates = np.flatnonzero(there[0] & there[1] & there[2] & self._allowed(priority))
        if not len(candidates):
            return None
        ranks = rank[candidates]
        best = candidates[ranks == ranks.min()]
        return int(table[NUMBER, best].min() if len(best) > 1 else table[NUMBER, best[0]])

    def together(
        self, need: FloatArray, room: FloatArray, priority: int, rank: FloatArray, *, trim: bool
    ) -> list[JobId]:
        """Single tasks by `rank`, lowest first, until `need` fits on some node; [] where all of them do not suffice.

        `trim`: only those on that node, and of them only the necessary ones.
        """
        n = len(self._jobs)
        line: IntArray = np.flatnonzero(self._allowed(priority))
        line = line[np.lexsort((self._table[NUMBER, line], rank[line]))]
        places, nodes = line.tolist(), self._nodes[:n][line].tolist()
        goal = (need - TOLERANCE).tolist()
        free: dict[NodeId, list[float]] = {}
        taken = 0
        for place, node in zip(places, nodes, strict=True):
            taken += 1
            have = free.get(node) or room[node].tolist()
            free[node] = have = [a + b for a, b in zip(have, self._table[DEMAND, place].tolist(), strict=True)]
            if have[0] >= goal[0] and have[1] >= goal[1] and have[2] >= goal[2]:
                break
        else:
            return []
        chosen = places[:taken]
        if trim:
            chosen = [place for place, at in zip(chosen, nodes, strict=False) if at == node]
            for place in reversed(chosen):
                less = [a - b for a, b in zip(have, self._table[DEMAND, place].tolist(), strict=True)]
                if less[0] >= goal[0] and less[1] >= goal[1] and less[2] >= goal[2]:
                    have = less
                    chosen.remove(place)
        return [int(self._table[NUMBER, place]) for place in chosen]

    def _allowed(self, priority: int) -> NDArray[np.bool_]:
        n = len(self._jobs)
        allowed: NDArray[np.bool_] = (
            (self._table[OPEN, :n] > 0) & (self._table[PRIORITY, :n] <= priority) & (self._nodes[:n] >= 0)
        )
        return allowed
