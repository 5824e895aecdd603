"""DRF, SRTF, FIFO and Tetris by the rules of the simulator that DL²'s authors published, which are not Coach's.

In each slot all is handed out anew, from nothing: no job keeps what it had, and none has a minimum. What is handed out
is one worker and one server at once, on one node. DRF, SRTF and FIFO ask only the node that is used least, and hand out
nothing more in the slot once it has no room. SRTF goes by the part of each job that is left; Tetris, node
after node, prefers the job with the *most* left.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coach_research.dl2.slots import Case

#: Of a node: slots of its cores, and of its GPUs (4 slots each).
NODE = np.array([8, 8])


@dataclass
class Slot:
    """What is handed out in one slot: a job's pairs of a worker and a server, and what each node has in use."""

    nodes: int
    most: int
    #: Of the active jobs, in the order of arrival: what a pair uses [job, resource], and the part left [job].
    pair: NDArray[np.intp]
    left: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.given = np.zeros(len(self.left), np.intp)
        self.used = np.zeros((self.nodes, 2), np.intp)
        self._least = [(0, node) for node in range(self.nodes)]

    def on_least_used(self, job: int) -> bool:
        """A pair for this job on the node that is used least; False if it has no room."""
        _, node = heapq.heappop(self._least)
        fits = self.on(job, node)
        heapq.heappush(self._least, (int(self.used[node].sum()), node))
        return fits

    def on(self, job: int, node: int) -> bool:
        """A pair for this job on this node; False if it has no room."""
        if (self.used[node] + self.pair[job] > NODE).any():
            return False
        self.used[node] += self.pair[job]
        self.given[job] += 1
        return True


def drf(slot: Slot) -> None:
    """Always the job with the smallest dominant share."""
    queue = [(0, job) for job in range(len(slot.left))]
    while queue:
        _, job = heapq.heappop(queue)
        if not slot.on_least_used(job):
            return
        if slot.given[job] < slot.most:
            heapq.heappush(queue, (int(slot.given[job] * slot.pair[job].max()), job))


def fifo(slot: Slot) -> None:
    """All it may have for the oldest, then for the next."""
    _one_by_one(slot, range(len(slot.left)))


def srtf(slot: Slot) -> None:
    """All it may have for the job with the smallest part left, then for the next."""
    _one_by_one(slot, np.argsort(slot.left, kind="stable").tolist())


def _one_by_one(slot: Slot, jobs: Any) -> None:
    for job in jobs:
        for _ in range(slot.most):
            if not slot.on_least_used(job):
                return


def tetris(slot: Slot) -> None:
    """Node after node, the job that fits it best and has the most left, until that job does not fit."""
    size = slot.pair.sum(axis=1) * slot.left
    for node in range(slot.nodes):
        while True:
            fit = slot.pair @ (NODE - slot.used[node])
            if not fit.any():
                break
            score = np.where(slot.given < slot.most, fit + size * fit.sum() / size.sum(), -np.inf)
            best = int(score.argmax())
            if score[best] == -np.inf or not slot.on(best, node):
                break


RULES: Mapping[str, Callable[[Slot], None]] = {"DRF": drf, "SRTF": srtf, "FIFO": fifo, "Tetris": tetris}


def run(case: Case, nodes: int, seed: int, rule: Callable[[Slot], None]) -> tuple[float, float]:
    """Mean completion time and makespan, in slots, of the jobs of a trace."""
    arrival, kinds = case.trace(np.random.default_rng([seed, 0]))
    left, end, now = np.ones(len(kinds)), np.zeros(len(kinds)), 0
    pairs = np.rint(case.uses[kinds, 2][:, [0, 2]] * [1, 4]).astype(np.intp)
    while (left > 0).any():
        active = np.flatnonzero((arrival <= now) & (left > 0))
        if len(active):
            slot = Slot(nodes, case.most, pairs[active], left[active])
            rule(slot)
            rate = case.progress[kinds[active], slot.given, slot.given]
            done = (rate >= left[active] - 1e-12) & (rate > 0)
            end[active[done]] = now + left[active[done]] / rate[done]
            left[active] = np.where(done, 0.0, left[active] - rate)
        now += 1
    return float((end - arrival).mean()), float(end.max() - arrival.min())
