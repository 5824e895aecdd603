"""Follows the TrainingJobs, TrainingBudgets and TrainingSearches of a namespace and makes the service do what they say.

Nothing is remembered that the objects and the journal do not say: a controller that was killed goes on where they
stand. A job knows its object by two labels, so that an object that was deleted and applied again is another job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from coach.controller import budgets, searches, status
from coach.controller.reconcile import FINALIZER, Resource, Step, StepKind, next_step
from coach.controller.uninstall import KINDS, let_go
from coach.core.errors import CoachError, UserError
from coach.core.estimation.interval import Interval
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import file_and_net
from coach.handler.private_files import make_folder
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_contents
from coach.platforms.kubernetes import model_files
from coach.platforms.kubernetes.manifests import DATA, OWNER_NAME, OWNER_UID, VOLUME
from coach.platforms.kubernetes_api.client import COACH, CORE, Api, ApiError, Object
from coach.platforms.kubernetes_api.watch import Collection
from coach.service.operations import Service

log = logging.getLogger(__name__)

#: Seconds between two looks at everything, whatever has happened.
RESYNC_SECONDS = 5.0
#: Seconds between two statuses of a job whose state is the same.
STATUS_SECONDS = 1.0
#: Seconds for which predicted starts of jobs that wait are kept.
STARTS_SECONDS = 15.0
#: Relative paths in a TrainingJob are relative to the volume's data.
BASE = Path(VOLUME, DATA)


class Controller:
    """Reconciles TrainingJobs with jobs of `service`, TrainingBudgets with accounts, TrainingSearches with searches."""

    def __init__(self, connect: Callable[[], Awaitable[Api]], service: Service, folders: Sequence[Path]) -> None:
        self._connect = connect
        self._service = service
        self._folders = tuple(folders)
        self._wake = asyncio.Event()
        #: The last status written for each object, and when.
        self._written: dict[str, tuple[dict[str, Any], float]] = {}
        #: Objects that are no jobs, with their generation and what is wrong.
        self._refused: dict[str, tuple[int, str]] = {}
        #: Why the last look at an object failed, by its name: it was said then.
        self._failed: dict[str, str] = {}
        #: When jobs that wait start, and when that was predicted.
        self._starts: tuple[float, dict[str, Interval]] = (-math.inf, {})

    async def run(self) -> None:
        """Follow the objects until this is cancelled. Raises ApiError, TemporaryError where the first list fails."""
        async with await self._connect() as api:
            self._api = api
            jobs, accounts, found_searches = (
                Collection(api, f"{COACH}/namespaces/{api.namespace}/{plural}") for plural in KINDS.values()
            )
            self._service.handler.observers.append(lambda _event, _actions: self._wake.set())
            try:
                for collection in (accounts, jobs, found_searches):
                    collection.listeners.append(lambda _name, _found: self._wake.set())
                    await collection.open()
                while True:
                    self._wake.clear()
                    # Each before those in it, and all before the jobs that name them.
                    for found in sorted(accounts.objects.values(), key=lambda one: "parent" in one["spec"]):
                        await self._guarded(found, self._reconcile_budget)
                    for found in list(jobs.objects.values()):
                        await self._guarded(found, self._reconcile)
                    for found in list(found_searches.objects.values()):
                        await self._guarded(found, self._reconcile_search)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(STATUS_SECONDS if self._unfinished() else RESYNC_SECONDS):
                            await self._wake.wait()
            finally:
                await asyncio.gather(jobs.close(), accounts.close(), found_searches.close())
                with contextlib.suppress(CoachError):
                    await let_go(api)

    async def _guarded(self, found: Object, reconcile: Callable[[Object], Awaitable[None]]) -> None:
        name = f"{found['kind'].lower()} {found['metadata']['name']}"
        try:
            await reconcile(found)
        except CoachError as error:
            if isinstance(error, ApiError) and error.status in (404, 409):
                return  # it has changed or gone: the watch says so
            if self._failed.get(name) != str(error):
                self._failed[name] = str(error)
                log.warning("%s: %s", name, error)
        else:
            self._failed.pop(name, None)

    async def _reconcile(self, found: Object) -> None:
        step = next_step(Resource.of(found), self._job(found))
        if step is not None:
            await self._do(step, found)
        if step is None or step.kind not in (StepKind.ADD_FINALIZER, StepKind.REMOVE_FINALIZER):
            await self._report(found)

    async def _reconcile_budget(self, found: Object) -> None:
        """Give an account the terms of a TrainingBudget, and the object the account's status."""
        metadata, now = found["metadata"], self._service.handler.now()
        deleting = "deletionTimestamp" in metadata
        if not deleting and await self._finalizer(found, budgets.FINALIZER):
            return
        problem = await budgets.obey(found, self._service)
        if deleting and not problem:
            await self._finalizer(found, budgets.FINALIZER, wanted=False)
            return
        row = next((one for one in self._service.accounts() if one.name == metadata["name"]), None)
        made = budgets.status_of(found, row, problem, now)
        last, at = self._written.get(metadata["uid"], (found.get("status", {}), 0.0))
        if budgets.settled(made) == budgets.settled(last) and now - at < budgets.MOVING_SECONDS:
            return
        await self._write(found, made, now)
        for event in budgets.notices(found, made, last, row, now) if row else ():
            await self._api.create(f"{CORE}/namespaces/{self._api.namespace}/events", event)

    async def _reconcile_search(self, found: Object) -> None:
        """Have the search of a TrainingSearch, and write its status."""
        metadata, now = found["metadata"], self._service.handler.now()
        uid, deleting = metadata["uid"], "deletionTimestamp" in metadata
        if not deleting and await self._finalizer(found, searches.FINALIZER):
            return
        generation, problem = self._refused.get(uid, (0, ""))
        if deleting or generation != metadata["generation"]:
            problem = await searches.obey(found, self._service, BASE)
            self._refused[uid] = (metadata["generation"] if problem else 0, problem)
        if deleting and not problem:
            await self._finalizer(found, searches.FINALIZER, wanted=False)
            return
        definition = searches.of(found, self._service)
        row = self._service.searches.standing(definition).row() if definition else None
        made = searches.status_of(found, row, "" if definition else problem, now)
        last, at = self._written.get(uid, (found.get("status", {}), 0.0))
        moved = [one.get(key) for one in (made, last) for key in ("best", "conditions")]
        if made != last and (moved[:2] != moved[2:] or now - at >= STATUS_SECONDS):
            await self._write(found, made, now)

    async def _do(self, step: Step, found: Object) -> None:
        job = self._job(found)
        match step.kind:
            case StepKind.ADD_FINALIZER:
                await self._finalizer(found, FINALIZER)
            case StepKind.REMOVE_FINALIZER:
                self._written.pop(found["metadata"]["uid"], None)
                self._refused.pop(found["metadata"]["uid"], None)
                await self._finalizer(found, FINALIZER, wanted=False)
            case StepKind.SUBMIT:
                await self._submit(found)
            case StepKind.SUSPEND if job:
                await self._service.suspend(job.name, now=False)
            case StepKind.RESUME if job:
                await self._service.resume(job.name, budget=step.budget)
            case StepKind.SET_PRIORITY if job:
                await self._service.set_priority(job.name, Resource.of(found).priority)
            case StepKind.CANCEL if job:
                await self._service.cancel(job.name)

    async def _submit(self, found: Object) -> None:
        """Have the service take on the job, unless it was refused as it is."""
        uid, generation = found["metadata"]["uid"], found["metadata"]["generation"]
        if self._refused.get(uid, (0, ""))[0] == generation:
            return
        try:
            model = await self._model(found)
            spec = await asyncio.to_thread(self._loaded, found, model)
        except _AbsentError as error:
            self._refused[uid] = -1, str(error)  # looked for again: it may be made after the job
            return
        except JobFileError as error:
            self._refused[uid] = generation, status.mistakes(error)
            return
        self._refused.pop(uid, None)
        try:
            await self._service.take([spec])
        except UserError as error:
            self._refused[uid] = -1, str(error)  # its budget may be made, or raised, after the job

    async def _model(self, found: Object) -> Path | None:
        """The model file of a job that names a ConfigMap, in the state folder, and the files next to it there.

        Raises _AbsentError.
        """
        model = found["spec"].get("model", {})
        if "configMap" not in model:
            return None
        name, (key, _) = model["configMap"], file_and_net(model["file"])
        try:
            path = f"{CORE}/namespaces/{self._api.namespace}/configmaps/{name}"
            keys: dict[str, str] = (await self._api.get(path)).get("data", {})
            text = keys[key]
        except (ApiError, KeyError) as error:
            seen = "is not there" if isinstance(error, ApiError) else f"has no key {key}"
            raise _AbsentError(
                f"spec.model.configMap: ConfigMap {name} {seen}; make it: "
                f"kubectl -n {self._api.namespace} create configmap {name} --from-file={key}"
            ) from error
        folder: Path = self._service.home.path / "models" / found["metadata"]["uid"]
        make_folder(folder)
        file = folder / Path(key).name
        for other, content in keys.items():
            if other != key and (siblings := model_files.path_of(other)) is not None:
                make_folder((folder / siblings).parent)
                await asyncio.to_thread((folder / siblings).write_text, content)
        await asyncio.to_thread(file.write_text, text)
        return file

    def _loaded(self, found: Object, model: Path | None) -> TrainingJob:
        """The object as a job file. Raises JobFileError."""
        metadata, spec = found["metadata"], dict(found["spec"])
        if model:
            spec["model"] = {key: value for key, value in spec["model"].items() if key != "configMap"}
            if (net := file_and_net(spec["model"]["file"])[1]) is not None:
                spec["model"]["net"] = net
            spec["model"]["file"] = str(model)
        document = {
            "apiVersion": found["apiVersion"],
            "kind": found["kind"],
            "metadata": {
                "name": metadata["name"],
                "labels": {
                    **(metadata.get("labels") or {}),
                    OWNER_NAME: metadata["name"],
                    OWNER_UID: metadata["uid"],
                },
            },
            "spec": {**spec, "suspend": False},
        }
        text = json.dumps(document).encode()
        volumes = (BASE, BASE.parent / "checkpoints")
        inside = (*self._folders, *([model.parent] if model else []))
        (loaded,) = load_contents([(BASE / f"{metadata['name']}.yaml", text)], inside=inside, volumes=volumes)
        return loaded.spec

    def _job(self, found: Object) -> Job | None:
        uid = found["metadata"]["uid"]
        jobs = self._service.jobs.values()
        return next((job for job in jobs if _owner_uid(job) == uid), None)

    # -- status -------------------------------------------------------------------------------------------

    async def _report(self, found: Object) -> None:
        """Write the status where it has changed."""
        metadata, before = found["metadata"], found.get("status", {})
        uid, now, job = metadata["uid"], self._service.handler.now(), self._job(found)
        if job is not None:
            start = self._service.expected_starts().get(job.name) if not job.gang.pods else None
            made = status.of_job(found, job, self._service.row(job.name), now, start)
        elif uid in self._refused or found["spec"].get("suspend"):
            made = status.without_job(found, self._refused.get(uid, (0, ""))[1], now)
        else:
            return
        last, at = self._written.get(uid, (before, 0.0))
        if made == last or (made.get("state") == last.get("state") and now - at < STATUS_SECONDS):
            return
        await self._write(found, made, now)
        if (made["state"], made.get("reason")) != (last.get("state"), last.get("reason")):
            path = f"{CORE}/namespaces/{self._api.namespace}/events"
            await self._api.create(path, status.event(found, made, now))

    async def _write(self, found: Object, made: dict[str, Any], now: float) -> None:
        """Write a status."""
        body = {key: found[key] for key in ("apiVersion", "kind")}
        body |= {"metadata": {"name": found["metadata"]["name"]}, "status": made}
        self._written[found["metadata"]["uid"]] = made, now
        await self._api.apply(f"{self._path(found)}/status", body)

    def _unfinished(self) -> bool:
        """Whether a job has not ended: then a status that `_report` withheld may still have to be written."""
        return any(not job.ended for job in self._service.jobs.values())

    async def _finalizer(self, found: Object, name: str, *, wanted: bool = True) -> bool:
        """Put a finalizer on an object, or take it off, if it is still as it was seen; whether that was needed."""
        metadata = found["metadata"]
        before = list(metadata.get("finalizers") or ())
        if (name in before) is wanted:
            return False
        left = [one for one in before if one != name]
        change = {
            "resourceVersion": metadata["resourceVersion"],
            "finalizers": [*before, name] if wanted else left,
        }
        await self._api.merge(self._path(found), {"metadata": change})
        return True

    def _path(self, found: Object) -> str:
        return f"{COACH}/namespaces/{self._api.namespace}/{KINDS[found['kind']]}/{found['metadata']['name']}"


class _AbsentError(Exception):
    """Something that a job names is not there yet; the message has the command that makes it."""


def _owner_uid(job: Job) -> str | None:
    return (job.job_file.metadata.labels or {}).get(OWNER_UID)
