"""A platform in memory, with the contract of `coach.platforms.base.Platform`: pods and epochs take milliseconds.

`tests/handler/test_handler.py` holds it to that contract, and the handler to its own with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import fsspec

from coach.core.cluster import Node, Pod, PodId, Resources
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import (
    Cluster,
    Deployed,
    EpochError,
    EpochOrder,
    GangSize,
    PlatformEvents,
    PodError,
    Progress,
)

CLUSTER = (Node("node-0", Resources(4.0, 16.0)), Node("node-1", Resources(4.0, 16.0)))
DATA_SIZE = 10_000


@dataclass
class FakePlatform:
    """Pods are entries of a dict, epochs are sleeps; `on_*` are called at the start of each and may raise."""

    nodes: tuple[Node, ...] = CLUSTER
    linger_seconds: float = 0.0
    programs_outlive: bool = False
    start_seconds: float = 0.0
    #: Pods that are started wait for it, where there is one.
    gate: asyncio.Event | None = None
    epoch_seconds: float = 0.001
    speed: Callable[[int, int], float] = lambda workers, servers: 0.1 * workers
    loss: Callable[[float], float] = lambda epochs_trained: 1 / (0.4 * epochs_trained + 0.5) + 0.1
    on_deploy: Callable[[Pod], None] = lambda pod: None
    on_epoch: Callable[[EpochOrder], None] = lambda order: None
    on_release: Callable[[Sequence[PodId]], None] = lambda pods: None
    #: Changes the report that an epoch is about to give.
    on_report: Callable[[EpochReport], EpochReport] = lambda report: report
    pods: dict[PodId, str] = field(default_factory=dict)
    gangs: dict[str, GangSize] = field(default_factory=dict)
    places_pods: bool = False
    checkpoints: str | None = None
    epochs: dict[str, asyncio.Future[Reason]] = field(default_factory=dict)
    orders: list[EpochOrder] = field(default_factory=list)
    released: list[PodId] = field(default_factory=list)
    #: Set once an epoch has told how far it is.
    told: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: bool = False
    _count: int = 0

    def refusal(self, spec: TrainingJob) -> str:
        return ""

    async def open(self, events: PlatformEvents) -> Cluster:
        self._events = events
        self.is_open = True
        return Cluster(self.nodes)

    def leave(self, jobs: Collection[str]) -> Collection[str]:
        return ()

    async def close(self) -> None:
        self.pods.clear()
        self.is_open = False

    async def gang(self, size: GangSize, spec: TrainingJob) -> None:
        assert self.is_open
        self.gangs[size.job] = size

    async def forget(self, job: str) -> None:
        assert not [pod for pod in self.pods if pod.job == job]
        self.gangs.pop(job, None)

    async def deploy(self, pod: Pod, spec: TrainingJob) -> Deployed:
        assert pod.id.job in self.gangs
        assert self.is_open and pod.id not in self.pods
        assert pod.requests == spec.spec.resources.of(pod.id.role)
        self._count += 1
        address = f"127.0.0.1:{self._count}"
        self.pods[pod.id] = address
        try:
            self.on_deploy(pod)
            await asyncio.sleep(self.start_seconds)
            if self.gate is not None:
                await self.gate.wait()
        except PodError:
            self.pods.pop(pod.id, None)
            raise
        return Deployed(address, pod.node or self.nodes[0].name)

    async def release(self, pods: Sequence[PodId]) -> None:
        self.on_release(pods)
        for pod in pods:
            self.pods.pop(pod, None)
        await asyncio.sleep(0)
        self.released += pods

    async def run_epoch(self, order: EpochOrder, progress: Callable[[Progress], None]) -> tuple[EpochReport, int]:
        action = order.action
        self.orders.append(order)
        stop: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        self.epochs[action.token] = stop
        try:
            self.on_epoch(order)
            for pod in action.pods:
                if self.pods.get(pod) != order.addresses[pod]:
                    raise EpochError(Reason.FUNCTION_LOST, f"{pod.name} is not there", 1)
            if action.weights_in is not None and not _exists(action.weights_in):
                raise EpochError(Reason.CHECKPOINT_MISSING, action.weights_in, 1)
            progress(Progress(action.token, "training", 0, DATA_SIZE))
            self.told.set()
            done, _ = await asyncio.wait({stop}, timeout=self.epoch_seconds)
            if done:
                raise EpochError(stop.result(), "stopped", 3)
            speed = self.speed(*action.allocation)
            fraction = action.fraction
            if action.seconds is not None:
                fraction = min(fraction, action.seconds * speed)
            samples = max(1, round(fraction * DATA_SIZE))
            loss = self.loss((action.position + samples) / DATA_SIZE)
            report = EpochReport(
                samples=samples,
                data_size=DATA_SIZE,
                loss=loss,
                accuracy=max(0.0, 1 - loss / 3),
                weights=action.weights_out,
                train_seconds=samples / DATA_SIZE / speed,
                evaluate_seconds=0.0,
            )
            with fsspec.open(action.weights_out, "w", auto_mkdir=True) as file:
                file.write(action.token)
            for uri in order.obsolete:
                with contextlib.suppress(FileNotFoundError):
                    fsspec.core.get_fs_token_paths(uri)[0].rm_file(uri)
            return self.on_report(report), 3 * len(action.pods)
        finally:
            del self.epochs[action.token]

    async def kill_program(self, job: str) -> None:
        """It has no programs."""

    async def stop_epoch(self, token: str, reason: Reason) -> None:
        if token in self.epochs and not self.epochs[token].done():
            self.epochs[token].set_result(reason)

    def lose(self, pod: PodId, reason: Reason = Reason.FUNCTION_LOST) -> None:
        """A pod dies by itself; an epoch it takes part in fails."""
        if self.pods.pop(pod, None) is not None:
            for order in self.orders:
                stop = self.epochs.get(order.action.token)
                if stop is not None and pod in order.action.pods and not stop.done():
                    stop.set_result(Reason.PEER_LOST)
            self._events.pod_lost(pod, reason, "killed")


def _exists(uri: str) -> bool:
    files, path = fsspec.core.url_to_fs(uri)
    return bool(files.exists(path))
