"""The simulator under a scheduler that knows pods, not jobs: `coach simulate --placement default | thesis`.

The reducer's pods come without nodes and wait for one in a queue (`coach_research.platforms.kube_scheduler`). They hold
their requests from their placement on, not from their creation.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from coach.core.cluster import Node, Placement, Pod, PodId
from coach.core.jobs import events as ev
from coach.simulation.reducer_simulation import Driver, Standing
from coach_research.platforms.kube_scheduler import Default, PodByPodPlacement, parse_placement

__all__ = ["PodByPodDriver", "parse_placement"]


class PodByPodDriver(Driver):
    """`default` None: pods are placed as gangs, as by `Driver`."""

    def __init__(self, nodes: Sequence[Node], *given: Any, default: Default | None = None, **named: Any) -> None:
        self._default = default
        # Its own generator, so that faults and noise are the same under any placement.
        rng = np.random.default_rng([named.get("seed", 0), 3])
        self._scheduler = PodByPodPlacement(nodes, rng, default)
        self._created: Counter[PodId] = Counter()
        #: When the last scheduled end of a back-off is.
        self._retry = -math.inf
        #: By job: since when some of its pods have nodes while others wait for one.
        self._partial: dict[str, float] = {}
        super().__init__(nodes, *given, placement=Placement.DEFAULT if default else Placement.GANG, **named)

    def _deploy(self, pod: Pod) -> None:
        if self._default is None:
            super()._deploy(pod)
            return
        standing = self._keep(replace(pod, node=""))
        if not self._default.creation:
            self._ask(standing, pod)
            return
        # By pod and by how often it was created: the same under any placement.
        self._created[pod.id] += 1
        key = [self._seed, 4, zlib.crc32(pod.id.name.encode()), self._created[pod.id]]
        after = self._default.creation * np.random.default_rng(key).random()
        self.at(self.now + after, lambda: self._ask(standing, pod))

    def _ask(self, standing: Standing, pod: Pod) -> None:
        """Add a created pod to the kube-scheduler's queue, unless it was released before."""
        if self.standing.get(pod.id.job, {}).get(pod.id) is standing and not standing.leaving:
            self._scheduler.ask(pod, self.reducer.jobs[pod.id.job].progress.submitted_at)
            self._place_soon()

    def _place_soon(self) -> None:
        if self._default is not None:
            self.at(self.now, self._place)

    def _left(self, pod: Pod) -> None:
        if self._default is not None:
            self._scheduler.leave(pod)
            self._place_soon()

    def _place(self) -> None:
        """Start the waiting pods that the kube-scheduler finds nodes for."""
        for pod, node in self._scheduler.bind(self._unavailable, self.now):
            standing = self.standing[pod.job][pod]
            standing.pod, standing.since = replace(standing.pod, node=node), self.now
            self._start(standing, node)
        due = self._scheduler.due
        if due < math.inf and due != self._retry:
            self._retry = due
            self.at(due, self._place)
        self._watch()

    def _watch(self) -> None:
        """Cancel the jobs whose pods do not all get nodes in time, as a user would by hand."""
        timeout = self._default.deadlock_timeout if self._default else None
        if timeout is None:
            return
        waiting = dict.fromkeys(pod.job for pod in self._scheduler.waiting)
        stuck = [name for name in waiting if any(pod.pod.node for pod in self.standing[name].values())]
        for name in stuck:
            if name not in self._partial:
                self.at(self.now + timeout, partial(self._cancel, name, self.now))
        self._partial = {name: self._partial.get(name, self.now) for name in stuck}

    def _cancel(self, name: str, since: float) -> ev.Event | None:
        """Cancel a job, unless all its pods got nodes meanwhile."""
        return ev.CancelRequested(self.now, name) if self._partial.get(name) == since else None
