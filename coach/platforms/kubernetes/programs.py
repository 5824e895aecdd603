"""Programs on a cluster: each worker is a pod that runs the user's image and command, and nothing of Coach.

Metrics come from the pods' logs. A handler that takes a program over reads on after the last report that was counted.
Leases end the pods when their money ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from pathlib import Path

from coach.core.cluster import Pod, PodId
from coach.core.errors import CoachError, UserError
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import EpochOrder, GangSize, PlatformEvents
from coach.platforms.kubernetes import kueue, manifests, program_files, program_manifests
from coach.platforms.kubernetes.program_manifests import MADE_AT, lease, lease_name
from coach.platforms.kubernetes.program_pods import Cluster, WorkerPod
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import CORE, ApiError, Object, find, until_answered
from coach.platforms.logged_programs import LoggedPrograms, LoggedRun
from coach.platforms.program_metrics.status import Sender

log = logging.getLogger(__name__)

#: Seconds before the end of what is paid by which all containers have ended: deleting a pod takes its time.
MARGIN = 2.0


#: Seconds that pods may stay without a handler before their program's first report is waited for.
WAITING_SECONDS = 90.0
#: Seconds between two looks whether a lease has gone.
LOOK_SECONDS = 0.1


class Leases:
    """What ends the pods of a handler's programs when their money does, also where the handler is dead: by job.

    A lease is a Job of no pods, which is done at once. Kubernetes deletes a Job that is done after its
    `ttlSecondsAfterFinished`, which may be changed, and with it the pods that it owns, in their grace period. (A pod's
    own `activeDeadlineSeconds` can only be shortened.) Kubernetes counts from when the Job was done, so the clocks of
    handler and cluster need not agree.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster, self._settings = cluster, settings
        self._path = f"/apis/batch/v1/namespaces/{cluster.api.namespace}/jobs"
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
        path = f"{self._path}/{lease_name(job.name)}"
        while await until_answered(lambda: find(self._cluster.api, path)) is not None:
            await asyncio.sleep(LOOK_SECONDS)
        made = lease(job, math.ceil(WAITING_SECONDS), self._cluster.now(), self._settings, owners)
        self._objects[job.name] = await until_answered(lambda: self._cluster.api.create(self._path, made))

    async def left(self) -> Collection[str]:
        """The jobs whose leases an earlier handler left, which are known from now on. Raises ApiError."""
        ours = f"{manifests.HANDLER}={self._settings.handler}"
        try:
            found = (await self._cluster.api.get(self._path, labelSelector=ours))["items"]
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
        self._cluster.keep(self._send(job, until))

    async def _send(self, job: str, until: float) -> None:
        if job not in self._objects:
            return
        made_at = float(self._objects[job]["metadata"]["annotations"][MADE_AT])
        spec = {"ttlSecondsAfterFinished": max(1, math.floor(until - made_at))}

        async def send() -> None:
            if self._until[job] == until:
                await self._cluster.api.merge(f"{self._path}/{lease_name(job)}", {"spec": spec})

        try:
            await until_answered(send)
        except CoachError as error:
            log.warning("the lease of %s was not renewed, so its pods end: %s", job, error)

    async def _delete(self, job: str) -> None:
        # Without a policy the API server leaves behind what a Job owns.
        path = f"{self._path}/{lease_name(job)}"
        await until_answered(lambda: self._cluster.api.delete(path, propagationPolicy="Background"))


class Programs(LoggedPrograms):
    """The programs of all jobs of a handler. `logs(job)` is the folder for a job's logs."""

    def __init__(
        self, cluster: Cluster, settings: Settings, logs: Callable[[str], Path], events: PlatformEvents
    ) -> None:
        super().__init__(cluster.now)
        self.events = events
        self._cluster, self._settings, self._logs = cluster, settings, logs
        self._leases = Leases(cluster, settings)
        self._services = f"{CORE}/namespaces/{cluster.api.namespace}/services"
        self._workers: dict[str, int] = {}
        #: By job: the files that were sent along, and their keys.
        self._files: dict[str, dict[str, str]] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._leases

    def sender(self, identity: str) -> Sender | None:
        """The program of the pod with this identity."""
        for run in list(self._runs.values()):
            for worker in run.workers:
                if isinstance(worker, WorkerPod) and worker.identity == identity:
                    return worker.sender
        return None

    async def left(self) -> Collection[str]:
        """The jobs whose programs an earlier handler left. Raises ApiError."""
        return await self._leases.left()

    async def gang(self, size: GangSize, job: TrainingJob, owners: list[Object], *, there: bool) -> None:
        """Make what the pods of a program share; `there`: some of them are. Raises ApiError, UserError."""
        self._workers[size.job] = size.desired.workers
        self._files[size.job] = await self._sent(job)
        if there and size.job in self._leases:
            return
        await self._leases.make(job, owners)
        if job.spec.limits.largest.workers > 1:
            path = f"{self._services}/{program_manifests.service_name(size.job)}"
            made = program_manifests.service(size.job, self._settings, owners)
            await until_answered(lambda: self._cluster.api.apply(path, made))

    def pod(self, of: Pod, job: TrainingJob) -> Object:
        """The pod of one worker."""
        owners = self._leases.owner(job.name)
        workers, files = self._workers[job.name], self._files[job.name]
        made = program_manifests.pod(of, job, workers, self._settings, owners, files)
        kueue.join(made, f"{job.name}-{owners[0]['uid'][:8]}", workers)
        return made

    async def _sent(self, job: TrainingJob) -> dict[str, str]:
        """The files of a program that were sent along. Raises ApiError, UserError where they are not there."""
        program = job.spec.program
        if program is None or program.code is None:
            return {}
        path = f"{CORE}/namespaces/{self._cluster.api.namespace}/configmaps/{program.code}"
        found = await until_answered(lambda: find(self._cluster.api, path))
        if found is None:
            raise UserError(f"program.code: no ConfigMap {program.code}; coach --context NAME submit FILE makes it")
        return program_files.names([*(found.get("data") or ()), *(found.get("binaryData") or ())])

    async def forget(self, job: str) -> None:
        """Delete what the pods of a job shared."""
        self._ended.pop(job, None)
        if job in self._leases:
            await self._leases.forget(job)
            path = f"{self._services}/{program_manifests.service_name(job)}"
            await until_answered(lambda: self._cluster.api.delete(path))

    def keep_waiting(self, jobs: Collection[str]) -> None:
        """Renew the leases of those of these jobs whose program is not followed yet."""
        for job in jobs:
            if job in self._leases and job not in self._runs:
                self._leases.renew(job, self._cluster.now() + WAITING_SECONDS)

    def lose(self, pod: PodId, reason: Reason, message: str) -> None:
        """Its pod goes, too."""
        self._cluster.lose(pod, reason, message)

    def worker(self, pod: PodId, order: EpochOrder) -> WorkerPod:
        """The pod of a worker."""
        memory = order.spec.spec.resources.worker.resources.memory
        log = self._logs(pod.job) / f"{pod.name}.log"
        return WorkerPod(self._cluster, pod, order.addresses[pod], memory, log)

    def until(self, run: LoggedRun, due: float) -> float:
        """Its pods get their grace period then, and Kubernetes takes its time."""
        return due - run.grace - MARGIN

    def renew(self, run: LoggedRun, until: float) -> None:
        """Have its lease last until then."""
        self._leases.renew(run.job, until)
