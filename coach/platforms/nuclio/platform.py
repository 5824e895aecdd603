"""The Nuclio platform: a `KubernetesPlatform` whose pods are made by Nuclio's controller, of one function each.

A function is made parked, woken for its pod, and parked when the pod is released: a pod that stays between two epochs
is warm. Nuclio's own states are not read as failures: it calls functions unhealthy that wait for their gang.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from coach.core.cluster import Instance, Pod, PodId
from coach.core.errors import PermanentError
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import PodError
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes import platform as kubernetes
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api, Object
from coach.platforms.kubernetes_api.refusals import meaning
from coach.platforms.kubernetes_api.watch import Collection
from coach.platforms.nuclio import resources
from coach.platforms.nuclio.functions import Functions, status

#: Seconds without a pod after which it is asked why there is none.
NO_POD_SECONDS = 5.0


class NuclioPlatform(kubernetes.KubernetesPlatform):
    """`functions` is the folder with the three roles' function.yaml; the rest is as KubernetesPlatform has it."""

    #: Nuclio's processor does not end by itself: functions stay until the next handler parks them.
    linger_seconds = math.inf

    def __init__(  # noqa: PLR0917 - those of its base, after its own
        self,
        functions: Path,
        connect: Callable[[], Awaitable[Api]],
        settings: Settings,
        logs: Callable[[str], Path],
        now: Callable[[], float],
        offer_price: Callable[[str], Instance] | None = None,
    ) -> None:
        super().__init__(connect, settings, logs, now, offer_price)
        self._roles = functions
        #: Held while a function is being woken or parked.
        self._changing: dict[PodId, asyncio.Lock] = defaultdict(asyncio.Lock)

    def _refusal(self, spec: TrainingJob) -> str:
        if spec.spec.program is not None:
            return (
                "Nuclio runs functions, and a program is none: run it on this machine "
                "(coach run --platform local), or on a cluster without Nuclio (--platform kubernetes)"
            )
        return super()._refusal(spec)

    async def _check(self) -> None:
        if self._settings.pod_groups:
            kind = self._settings.scheduler_kind
            raise PermanentError(f"scheduler.kind={kind}: Nuclio makes pods that are in no PodGroup; right is coach")
        await super()._check()
        self._functions = Functions(self._api, self._settings)
        await self._functions.prepare()

    def _more_to_follow(self, ours: str) -> Sequence[Collection]:
        self._seen_functions = Collection(self._api, self._functions.path, ours)
        # What waits for a pod looks again when Nuclio says something about its function.
        self._seen_functions.listeners.append(lambda _name, _found: self._pods.look_again())
        return (self._seen_functions,)

    async def _start(self, pod: Pod, spec: TrainingJob) -> None:
        name = pod.id.name
        owners = await self._owner(self._gangs_path, pod.id.job)
        function = resources.function(pod, spec, self._roles, self._settings, owners, self._key_of(pod.id.job).name)
        for again in (True, False):
            await self._start_function(pod.id, function, spec.spec.start_timeout)
            await self._until_made(pod.id)
            found = self._object(pod.id)
            if found is None or found["spec"].get("schedulerName") == self._settings.scheduler:
                return
            self._functions.distrust(name)
            await self._end(pod.id, force=True)
            if not again:
                raise self._functions.sent_elsewhere(name, found["spec"])

    async def _start_function(self, pod: PodId, function: Object, seconds: float) -> None:
        async with self._changing[pod]:
            try:
                async with asyncio.timeout(seconds):
                    changed = await self._functions.start(function)
            except TimeoutError:
                raise PodError(
                    Reason.START_TIMED_OUT,
                    f"Nuclio made nothing of function {pod.name} in {seconds:g} s; does its controller "
                    "run? kubectl get pods -A -l nuclio.io/app=controller",
                ) from None
            await self._seen_functions.until(lambda: self._version(pod.name) >= _version(changed))

    async def _until_made(self, pod: PodId) -> None:
        """Wait until the pod of a function is there, or will not be."""
        while self._object(pod) is None and self._why_none(pod) is None:
            try:
                async with asyncio.timeout(NO_POD_SECONDS):
                    await self._pods.until(lambda: bool(self._object(pod)) or self._why_none(pod) is not None)
            except TimeoutError:
                if words := await self._functions.why_no_pod(pod.name):
                    reason = meaning(403, "Forbidden", words)
                    raise PodError(reason, f"{pod.name} was refused: {words}") from None

    def _why_none(self, pod: PodId) -> tuple[Reason, str] | None:
        function = self._seen_functions.objects.get(pod.name)
        if function is None:
            return Reason.FUNCTION_LOST, "its function was deleted, not by Coach"
        state, words = status(function)
        return (Reason.POD_REFUSED, f"Nuclio says: {words}") if state == "error" else None

    async def _end(self, pod: PodId, *, force: bool = False) -> None:
        async with self._changing[pod]:
            there = pod.name in self._seen_functions.objects
            if there and not force:
                await self._functions.park(pod.name)
                try:
                    async with asyncio.timeout(kubernetes.FORCE_SECONDS):
                        await self._pods.until(lambda: not self._objects.get(pod))
                        return
                except TimeoutError:
                    kubernetes.log.warning("%s did not end in time; ending it by force", pod.name)
            if there:
                await self._functions.park(pod.name, force=True)
            while left := list(self._objects.get(pod, ())):
                await asyncio.gather(*(self._delete(name, force=True) for name in left))

    async def forget(self, job: str) -> None:
        """The job holds nothing and wants nothing: its Gang goes, and the functions that were made for it."""
        await super().forget(job)
        await asyncio.gather(
            *(
                self._functions.remove(name)
                for name, found in self._seen_functions.objects.items()
                if found["metadata"]["labels"].get(manifests.JOB) == job and not resources.deployed(found)
            )
        )

    async def _sweep(self) -> None:
        """Remove all functions of this handler, and what is left of earlier ones; park those that users deployed."""
        ours = f"{manifests.HANDLER}={self._settings.handler}"
        functions = (await self._api.get(self._functions.path, labelSelector=ours))["items"]
        gone = await self._functions.left_behind(ours)
        kept = {one["metadata"]["name"] for one in functions if resources.deployed(one)}
        names = {one["metadata"]["name"] for one in functions}
        await asyncio.gather(
            *(self._functions.remove(name) for name in (names | gone) - kept),
            *(self._functions.park(name, force=True) for name in kept),
        )
        await super()._sweep()

    def _version(self, function: str) -> int:
        found = self._seen_functions.objects.get(function)
        return _version(found) if found else 0


def _version(found: Object) -> int:
    return int(found["metadata"]["resourceVersion"])
