"""Functions that a user deploys before any job runs: parked, so that a run finds them and wakes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from coach.core.errors import CoachError, UserError
from coach.core.spec.job import TrainingJob
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import COACH, CORE, Api, ApiError, Object
from coach.platforms.nuclio import resources
from coach.platforms.nuclio.functions import NUCLIO, Functions

#: Seconds that Nuclio may take for all functions.
DEPLOY_SECONDS = 120.0


class Deployment:
    """The deployed functions of jobs in one namespace, of one handler."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._functions = Functions(api, settings)
        self._paths = {
            "Gang": f"{COACH}/namespaces/{api.namespace}/gangs",
            "ConfigMap": f"{CORE}/namespaces/{api.namespace}/configmaps",
        }

    async def deploy(self, jobs: Sequence[TrainingJob], folder: Path) -> AsyncIterator[Object]:
        """Make the functions of the jobs' largest gangs, and yield each once its pods would go to Coach's scheduler.

        A function that is there gets the job's spec, unless it is awake: a run uses it. Raises PodError, UserError,
        PermanentError.
        """
        await self._functions.prepare()
        for job in jobs:
            if not manifests.image(job, self._settings):
                raise UserError(f"job {job.name}: {manifests.NO_IMAGE}")
            for made in resources.objects(job, folder, self._settings):
                if made["kind"] == "NuclioFunction":
                    yield await self._put(made)
                elif made["kind"] == "ConfigMap":
                    await self._api.apply(f"{self._paths['ConfigMap']}/{made['metadata']['name']}", made)
                else:
                    await self._create_gang(made)

    async def delete(self, jobs: Sequence[str]) -> list[str]:
        """Remove what `deploy` made for the jobs; the names of the functions.

        Raises UserError where a run uses one of them; then nothing is removed. Of a job without functions nothing is
        removed either: its Gang may be that of a run in plain pods.
        """
        found = [one for job in jobs for one in await self._of(job)]
        if used := sorted({_job(one) for one in found if _awake(one) or not resources.deployed(one)}):
            raise UserError(f"a run uses the functions of {', '.join(used)}: stop it first (coach cancel {used[0]})")
        names = [one["metadata"]["name"] for one in found]
        await asyncio.gather(*(self._functions.remove(name) for name in names))
        for job in {_job(one) for one in found}:
            await self._api.delete(f"{self._paths['ConfigMap']}/{job}-model")
            await self._api.delete(f"{self._paths['Gang']}/{job}")
        await self._drop_empty_project()
        return names

    async def _create_gang(self, gang: Object) -> None:
        """Unless it is there: then a run knows better how large it is."""
        try:
            await self._api.create(self._paths["Gang"], gang)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _put(self, function: Object) -> Object:
        name = function["metadata"]["name"]
        found = await self._functions.create(function)
        if found is None:
            path = f"{self._functions.path}/{name}"
            found = await self._api.get(path)
            if not _awake(found):
                change = {
                    "spec": {"affinity": None, **function["spec"]},
                    "status": {"state": resources.WAITING},
                }
                found = await self._api.merge(path, change)
        try:
            async with asyncio.timeout(DEPLOY_SECONDS):
                await self._functions.on_our_scheduler(name)
        except TimeoutError:
            raise CoachError(
                f"Nuclio made nothing of function {name} in {DEPLOY_SECONDS:g} s; does its controller run? "
                "kubectl get pods -A -l nuclio.io/app=controller"
            ) from None
        return found

    async def _of(self, job: str) -> list[Object]:
        selector = f"{manifests.HANDLER}={self._settings.handler},{manifests.JOB}={job}"
        items: list[Object] = (await self._api.get(self._functions.path, labelSelector=selector))["items"]
        return items

    async def _drop_empty_project(self) -> None:
        rest = await self._api.get(self._functions.path, labelSelector=f"nuclio.io/project-name={resources.PROJECT}")
        if not rest["items"]:
            projects = f"{NUCLIO}/namespaces/{self._api.namespace}/nuclioprojects"
            with contextlib.suppress(ApiError):  # who may not delete projects leaves an empty one
                await self._api.delete(f"{projects}/{resources.PROJECT}")


def _awake(function: Object) -> bool:
    return bool(function["spec"].get("replicas"))


def _job(function: Object) -> str:
    return str(function["metadata"]["labels"][manifests.JOB])
