"""What ends the pods of a program when their money does, also where the handler is dead.

A lease is a Job of no pods, which is done at once. Kubernetes deletes a Job that is done after its
`ttlSecondsAfterFinished`, which may be changed, and with it the pods that it owns, in their grace period. (A pod's own
`activeDeadlineSeconds` can only be shortened.) Kubernetes counts from when the Job was done, so the clocks of handler
and cluster need not agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from coach.core.errors import CoachError
from coach.core.spec.job import TrainingJob
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes.program_manifests import MADE_AT, lease, lease_name
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api, ApiError, Object, until_answered

log = logging.getLogger(__name__)

#: Seconds that pods may stay without a handler before their program's first report is waited for.
WAITING_SECONDS = 90.0
#: Seconds between two looks whether a lease has gone.
LOOK_SECONDS = 0.1


class Leases:
    """The leases of a handler's programs, by job. `keep` runs a request in the background."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        now: Callable[[], float],
        keep: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._api, self._settings, self._now, self._keep = api, settings, now, keep
        self._path = f"/apis/batch/v1/namespaces/{api.namespace}/jobs"
        self._objects: dict[str, Object] = {}
        #: Until when each was renewed last, on the handler's clock.
        self._until: dict[str, float] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._objects

    def owner(self, job: str) -> list[Object]:
        """What refers to a lease as the owner of pods."""
        return manifests.owner(self._objects[job])

    async def make(self, job: TrainingJob, owners: list[Object]) -> None:
        """Make a new one, in place of one that may have run out. Raises ApiError."""
        await self._delete(job.name)
        while await self._there(job.name):
            await asyncio.sleep(LOOK_SECONDS)
        made = lease(job, math.ceil(WAITING_SECONDS), self._now(), self._settings, owners)
        self._objects[job.name] = await until_answered(lambda: self._api.create(self._path, made))

    async def left(self) -> Collection[str]:
        """The jobs whose leases an earlier handler left, which are known from now on. Raises ApiError."""
        ours = f"{manifests.HANDLER}={self._settings.handler}"
        try:
            found = (await self._api.get(self._path, labelSelector=ours))["items"]
        except ApiError as error:
            if error.status != 403:
                raise
            return ()  # who may not see leases has made none
        for one in found:
            if "deletionTimestamp" not in one["metadata"]:
                one |= {"apiVersion": "batch/v1", "kind": "Job"}  # a list's items do not say it
                self._objects[one["metadata"]["labels"][manifests.JOB]] = one
        return self._objects.keys()

    async def forget(self, job: str) -> None:
        """Delete one, and the pods that are left of it."""
        if self._objects.pop(job, None) is not None:
            await self._delete(job)

    def renew(self, job: str, until: float) -> None:
        """Have one last until then, on the handler's clock; an earlier renewal that was not sent yet is not sent."""
        self._until[job] = until
        self._keep(self._send(job, until))

    async def _send(self, job: str, until: float) -> None:
        if job not in self._objects:
            return
        made_at = float(self._objects[job]["metadata"]["annotations"][MADE_AT])
        spec = {"ttlSecondsAfterFinished": max(1, math.floor(until - made_at))}

        async def send() -> None:
            if self._until[job] == until:
                await self._api.merge(f"{self._path}/{lease_name(job)}", {"spec": spec})

        try:
            await until_answered(send)
        except CoachError as error:
            log.warning("the lease of %s was not renewed, so its pods end: %s", job, error)

    async def _there(self, job: str) -> bool:
        with contextlib.suppress(ApiError):
            await until_answered(lambda: self._api.get(f"{self._path}/{lease_name(job)}"))
            return True
        return False

    async def _delete(self, job: str) -> None:
        # Without a policy the API server leaves behind what a Job owns.
        path = f"{self._path}/{lease_name(job)}"
        await until_answered(lambda: self._api.delete(path, propagationPolicy="Background"))
