"""The pods of one program: followed by their objects and their logs, from when they run to their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coach.core.cluster import PodId
from coach.core.errors import CoachError
from coach.core.jobs.reasons import Reason
from coach.platforms.kubernetes.manifests import CHECKPOINTS, VOLUME
from coach.platforms.kubernetes.pod_logs import lines, nanoseconds
from coach.platforms.kubernetes.program_manifests import grace_seconds
from coach.platforms.kubernetes_api import pods
from coach.platforms.kubernetes_api.client import CORE, Api, Object, until_answered
from coach.platforms.kubernetes_api.watch import Collection
from coach.platforms.local.supervisor import LAST_WORDS_SECONDS, Ended
from coach.platforms.logged_programs import LoggedWorker, Printed
from coach.platforms.program_metrics.status import Flags, Sender

#: Kubernetes's words for a command that cannot be run.
_NO_START = frozenset({"StartError", "ContainerCannotRun"})
#: A pod that ends so many seconds before its lease does is ended by it.
LEASE_SLACK = 3.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """What all programs use: requests, the handler's pods as they are, work in the background, its clock."""

    api: Api
    pods: Collection
    keep: Callable[[Coroutine[Any, Any, None]], None]
    now: Callable[[], float]
    #: Reports a pod as lost, and ends what is left of it.
    lose: Callable[[PodId, Reason, str], None]


class WorkerPod(LoggedWorker):
    """One worker's pod. `identity` is its object's; `memory` its limit, GiB."""

    def __init__(self, cluster: Cluster, pod: PodId, identity: str, memory: float, log: Path) -> None:
        super().__init__(pod, memory, log, f"{VOLUME}/{CHECKPOINTS}/{pod.job}")
        self.identity = identity
        self._cluster = cluster
        self._path = f"{CORE}/namespaces/{cluster.api.namespace}/pods/{pod.name}"
        self._seen: Object = cluster.pods.objects.get(pod.name, {"metadata": {}})
        self._all_printed = asyncio.Event()
        #: By what its program sends and asks.
        self.sender = Sender(Flags(), self._sent)
        self._loop = asyncio.get_running_loop()

    def began(self) -> int:
        """When its container started, nanoseconds since 1970 on the node's clock, to the second."""
        return nanoseconds(stamp) if (stamp := pods.started_at(self._seen)) else 0

    def end(self, grace: float, cause: str = "asked") -> None:
        """SIGTERM now, SIGKILL after `grace` seconds; one that the cluster takes away has its own."""
        if self._run.disrupted:
            grace = max(grace, self._run.grace)
        self.sender.flags.stop = True
        super().end(grace, cause)
        self._cluster.keep(self._delete(grace_seconds(grace)))

    def lose(self, words: str) -> None:
        """Its node does not report any more."""
        self._lost = words
        self._cluster.pods.look_again()

    async def _delete(self, grace: int) -> None:
        there = self._cluster.pods.objects.get(self.name, {"metadata": {}})["metadata"].get("uid")
        if there not in (None, self.identity):
            return  # it has gone; another program of the job has its name
        with contextlib.suppress(CoachError):
            await until_answered(lambda: self._cluster.api.delete(self._path, gracePeriodSeconds=grace))

    async def _follow(self, printed: Printed) -> Ended:
        printing = asyncio.create_task(self._print(printed))
        self._cluster.pods.listeners.append(self._see)
        try:
            await self._cluster.pods.until(self._is_over)
            self._all_printed.set()
            await asyncio.wait({printing}, timeout=LAST_WORDS_SECONDS)
        finally:
            self._cluster.pods.listeners.remove(self._see)
            printing.cancel()
            await asyncio.gather(printing, return_exceptions=True)
        return self._how(printed.last)

    def _see(self, name: str, found: Object | None) -> None:
        """Each state of its pod: the one with the exit code may be followed at once by its deletion."""
        if name != self.pod.name or found is None or found["metadata"]["uid"] != self.identity:
            return
        self._seen = found
        if pods.ending(found) and not self._has_ended():  # also where Kubernetes, or another, ends it
            self._run.ends(self, float(found["metadata"].get("deletionGracePeriodSeconds") or 0.0))

    def _has_ended(self) -> bool:
        phase = self._seen.get("status", {}).get("phase")
        return phase in ("Succeeded", "Failed") or pods.terminated(self._seen) is not None

    def _is_over(self) -> bool:
        found = self._cluster.pods.objects.get(self.pod.name)
        self._see(self.pod.name, found)
        if self._has_ended():
            return True
        if found is None or found["metadata"]["uid"] != self.identity:
            self._lost = self._lost or "its pod was deleted, not by Coach"
        return bool(self._lost)

    def _how(self, last: str) -> Ended:
        terminated = pods.terminated(self._seen)
        code = 137 if terminated is None else int(terminated.get("exitCode", 137))
        seconds = _seconds(terminated)
        if not self._cause and pods.ending(self._seen):
            if self._run.expired(self._cluster.now() + LEASE_SLACK):
                self._cause = "deadline"
            else:
                taken = pods.disrupted(self._seen)
                self.disrupted = bool(taken)
                self._lost = taken or "its pod was deleted, not by Coach"
        if self._cause:
            return Ended(code, self._cause, last, seconds)
        word = "" if terminated is None else terminated.get("reason", "")
        if self._lost or terminated is None:
            _, words = pods.failure(self._seen) or (None, "its pod was lost")
            return Ended(code or 137, "lost", self._lost or words, seconds)
        if word == "OOMKilled":
            return Ended(code, "memory", "", seconds, self._memory)
        if word in _NO_START:
            return Ended(code, "cannot start", str(terminated.get("message", "")), seconds)
        return Ended(code, "", last, seconds)

    def _sent(self, kind: str, record: Mapping[str, Any]) -> None:
        """A record that its program sent; called by another thread."""
        self._loop.call_soon_threadsafe(self._note, kind, record)

    def _note(self, kind: str, record: Mapping[str, Any]) -> None:
        if self.reader is not None:
            self.reader.record(round(1e9 * self._cluster.now()), kind, record)

    async def _print(self, printed: Printed) -> None:
        """Keep what it prints, and look for metrics in it."""
        try:
            async for time, line in lines(self._cluster.api, self.pod.name, self._all_printed, after=self._run.mark):
                await printed.take(time, line)
            await printed.finish()
        finally:
            await printed.close()


def _seconds(terminated: Object | None) -> float:
    """For how long a container ran."""
    times = [(terminated or {}).get(key) for key in ("startedAt", "finishedAt")]
    began, ended = (nanoseconds(str(time)) if time else 0 for time in times)
    return max(0.0, (ended - began) / 1e9)
