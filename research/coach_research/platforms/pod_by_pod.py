"""The local platform under a scheduler that knows pods, not jobs: `--placement default | thesis`.

Pods to deploy name no node. They wait in the simulator's own queue (`kube_scheduler`), and start as soon as they have a
node; so jobs can hold some of their pods while they wait for others, for ever if need be.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coach.core.cluster import Pod, PodId
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import Deployed, GangSize
from coach.platforms.local.runtime import FunctionProcess
from coach_research.platforms.kube_scheduler import Default, PodByPodPlacement
from coach_research.platforms.limited import LimitedPlatform


class PodByPodPlatform(LimitedPlatform):
    """`kind` says how pods get their nodes; `seed` orders those that come at one instant, and breaks ties."""

    places_pods = True

    def __init__(self, *given: Any, kind: Default, seed: int | None = None, **named: Any) -> None:
        """See `LocalPlatform`."""
        super().__init__(*given, **named)
        self._kind = kind
        self._rng = np.random.default_rng(seed)
        self._placement = PodByPodPlacement(self._nodes, self._rng, kind)
        #: When the first pod of each job that holds any was asked for, on the handler's clock.
        self._created: dict[str, float] = {}
        self._waiting: dict[PodId, tuple[Pod, asyncio.Future[None]]] = {}
        self._said: set[PodId] = set()  # those that are known to wait
        self._placed: dict[PodId, Pod] = {}
        self._binding: asyncio.Handle | None = None
        self._due: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> Collection[PodId]:
        """The pods that were asked for and have no node."""
        return self._waiting.keys()

    async def close(self) -> None:
        """See `LocalPlatform`."""
        for handle in (self._binding, self._due):
            if handle:
                handle.cancel()
        await super().close()

    async def gang(self, size: GangSize, spec: TrainingJob) -> None:
        """Which pods belong together is not known to this scheduler; only how old their job is."""
        self._created.setdefault(size.job, self.now())

    async def forget(self, job: str) -> None:
        """See `coach.platforms.base.Platform`."""
        self._created.pop(job, None)

    async def deploy(self, pod: Pod, spec: TrainingJob) -> Deployed:
        """Wait for a node, then start."""
        await asyncio.sleep(float(self._rng.uniform(0.0, self._kind.creation)))
        bound: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[pod.id] = pod, bound
        self._placement.ask(pod, self._created.get(pod.id.job, 0.0))
        self._bind_soon()
        try:
            await bound
            return await super().deploy(self._placed[pod.id], spec)
        except BaseException:
            self._leave(pod)
            raise

    async def release(self, pods: Sequence[PodId]) -> None:
        """See `LocalPlatform`; then others get the room."""
        await super().release(pods)
        for pod in pods:
            if placed := self._placed.get(pod):
                self._leave(placed)

    async def _watch(self, pod: PodId, function: FunctionProcess) -> None:
        await super()._watch(pod, function)
        if placed := self._placed.get(pod):
            self._leave(placed)

    def _leave(self, pod: Pod) -> None:
        self._waiting.pop(pod.id, None)
        self._said.discard(pod.id)
        self._placement.leave(self._placed.pop(pod.id, pod))
        self._bind_soon()

    def _bind_soon(self) -> None:
        """Place what fits, after all that is asked for or released at this instant."""
        if self._binding is None:
            self._binding = asyncio.get_running_loop().call_soon(self._bind)

    def _bind(self) -> None:
        self._binding = None
        for name, node in self._placement.bind(now=self.now()):
            pod, bound = self._waiting.pop(name)
            self._placed[name] = replace(pod, node=node)
            bound.set_result(None)
        for name in self._waiting.keys() - self._said:
            self._said.add(name)
            self._events.pod_pending(name, Reason.WAITING_CAPACITY, f"{name.name} fits on no node now")
        if self._due:
            self._due.cancel()
            self._due = None
        if (seconds := self._placement.due - self.now()) < math.inf:
            self._due = asyncio.get_running_loop().call_later(max(0.0, seconds), self._bind_soon)
