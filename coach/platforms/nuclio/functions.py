"""What may be done with Nuclio functions through the Kubernetes API: make one, wake it, park it, remove it.

No nuctl and no dashboard: both replace a function's pods whenever they change anything.
"""

from __future__ import annotations

import asyncio
import logging

from coach.core.errors import PermanentError
from coach.core.jobs.reasons import REFUSED, Reason
from coach.platforms.base import PodError
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import CORE, Api, ApiError, Object, find, until_answered
from coach.platforms.kubernetes_api.refusals import meaning
from coach.platforms.nuclio import resources

log = logging.getLogger(__name__)

NUCLIO = "/apis/nuclio.io/v1beta1"
APPS = "/apis/apps/v1"
#: Seconds between two looks at what the controller has made.
LOOK_SECONDS = 0.1
#: Seconds that kube-controller-manager may take to scale a Deployment down.
SCALE_SECONDS = 10.0


class Functions:
    """The functions of one namespace."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._core = f"{CORE}/namespaces/{api.namespace}"
        self._deployments = f"{APPS}/namespaces/{api.namespace}/deployments"
        self.path = f"{NUCLIO}/namespaces/{api.namespace}/nucliofunctions"
        #: Functions whose Deployment is known to name Coach's scheduler.
        self._checked: set[str] = set()
        #: Whether Nuclio names it by itself; None until the first function has shown it.
        self._configured: bool | None = None
        self._first = asyncio.Lock()

    async def prepare(self) -> None:
        """Make the project that functions belong to. Raises PermanentError where the cluster has no Nuclio."""
        projects = f"{NUCLIO}/namespaces/{self._api.namespace}/nuclioprojects"
        try:
            await self._api.get(self.path, limit=1)
            await self._api.create(projects, resources.project())
        except ApiError as error:
            if error.status == 404:
                raise PermanentError(
                    f"the cluster at {self._api.server} has no NuclioFunction resource: install Nuclio there first, "
                    "with the values of deploy/nuclio-values.yaml (docs/advanced/nuclio.md)"
                ) from error
            if error.reason != "AlreadyExists":
                raise

    async def start(self, function: Object) -> Object:
        """Have the pod of a function made, by Coach's scheduler; the object as it is then. Raises PodError.

        Nuclio's controller sends few requests a second, and each change of a function takes it several. So functions
        are made awake at once; only the first one is made parked, to see how Nuclio is configured.
        """
        name = function["metadata"]["name"]
        async with self._first:
            if self._configured is None:
                return await self._start_parked(function)
        if self._configured and name not in self._checked:
            awake = {**function, "spec": {**function["spec"], "replicas": 1}}
            if (made := await self.create(awake)) is not None:
                return made
        return await self._start_parked(function)

    async def _start_parked(self, function: Object) -> Object:
        """Make the function parked, unless it is there; see that its Deployment names Coach's scheduler; wake it."""
        name = function["metadata"]["name"]
        new = await self.create(function) is not None
        named = await self.on_our_scheduler(name)
        if new:  # else the Deployment may have been changed before
            self._configured = named
        return await self.wake(function)

    def sent_elsewhere(self, name: str, pod: Object, why: str = "") -> PodError:
        """The error where pods of this spec go to another scheduler, and that cannot be changed."""
        return PodError(
            Reason.POD_REFUSED,
            f"Nuclio sends the pods of function {name} to {pod.get('schedulerName')}, not to scheduler "
            f"{self._settings.scheduler}: give Nuclio the values of deploy/nuclio-values.yaml{why}",
        )

    def distrust(self, name: str) -> None:
        """A pod of this function went to another scheduler: Nuclio's configuration has changed."""
        self._configured = None
        self._checked.discard(name)

    async def create(self, function: Object) -> Object | None:
        """Make a function; None where it is there. Raises PodError where it is refused or another handler's."""
        name = function["metadata"]["name"]
        try:
            made = await until_answered(lambda: self._api.create(self.path, function))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                reason = meaning(error.status, error.reason, str(error))
                reason = reason if reason in REFUSED else Reason.POD_REFUSED
                raise PodError(reason, f"function {name} was refused: {error}") from error
            found = await until_answered(lambda: self._api.get(f"{self.path}/{name}"))
            owner = (found["metadata"].get("labels") or {}).get(manifests.HANDLER)
            if owner != self._settings.handler:
                raise PodError(
                    Reason.POD_REFUSED,
                    f"there is a NuclioFunction {name} already, of handler {owner or 'unknown'}, not of "
                    f"{self._settings.handler}; rename the job, or: kubectl delete nucliofunction {name}",
                ) from error
            return None
        self._checked.discard(name)
        return made

    async def on_our_scheduler(self, name: str) -> bool:
        """Wait until the controller has made the function's Deployment; see that its pods go to Coach's scheduler.

        Nuclio knows no scheduler's name; its augmented config sets one. Where that is missing, the Deployment is
        changed, which the controller leaves so. Returns whether it named the scheduler before. Raises PodError where
        it may not be changed.
        """
        if name in self._checked:
            return True
        path = f"{self._deployments}/{resources.deployment(name)}"
        while (found := await self._there(path)) is None:
            function = await self._there(f"{self.path}/{name}")
            if function is None:
                raise _deleted(name)
            state, words = status(function)
            if state == "error":
                raise PodError(Reason.POD_REFUSED, f"Nuclio made nothing of function {name}: {words}")
            await asyncio.sleep(LOOK_SECONDS)
        template = found["spec"]["template"]["spec"]
        named = bool(template.get("schedulerName") == self._settings.scheduler)
        if not named:
            change = {"spec": {"template": {"spec": {"schedulerName": self._settings.scheduler}}}}
            try:
                await until_answered(lambda: self._api.merge(path, change))
            except ApiError as error:
                raise self.sent_elsewhere(name, template, f" ({error})") from error
        self._checked.add(name)
        return named

    async def wake(self, function: Object) -> Object:
        """Have a pod made, with the spec of `function`; the object as it is then. Raises PodError."""
        name, spec = function["metadata"]["name"], {"affinity": None, **function["spec"], "replicas": 1}
        try:
            return await self._change(name, {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            raise _deleted(name) from error

    async def park(self, name: str, *, force: bool = False) -> None:
        """Have the function's pod ended.

        With `force` the Deployment is changed, too, in place of a controller that may not run; returns once no pod
        will be made any more.
        """
        try:
            await self._change(name, {"spec": {"replicas": 0}})
            if force:
                path = f"{self._deployments}/{resources.deployment(name)}"
                await until_answered(lambda: self._api.merge(path, {"spec": {"replicas": 0}}))
                async with asyncio.timeout(SCALE_SECONDS):
                    while (found := await self._there(path)) and not _scaled_down(found):
                        await asyncio.sleep(LOOK_SECONDS)
        except ApiError as error:
            if error.status != 404:
                raise
        except TimeoutError:
            log.warning("the pods of %s are not scaled down: does kube-controller-manager run?", name)

    async def remove(self, name: str) -> None:
        """Delete a function, and what the controller made of it: it forgets those that went while it was away."""
        self._checked.discard(name)
        made = resources.deployment(name)
        await until_answered(lambda: self._api.delete(f"{self.path}/{name}"))
        for path in (self._deployments, f"{self._core}/services", f"{self._core}/configmaps"):
            await until_answered(lambda path=path: self._api.delete(f"{path}/{made}"))  # type: ignore[misc]

    async def left_behind(self, selector: str) -> set[str]:
        """Functions that are gone, but of whose objects some are there."""
        functions = await self._api.get(self.path, labelSelector=selector)
        there = {one["metadata"]["name"] for one in functions["items"]}
        made: set[str] = set()
        for path in (self._deployments, f"{self._core}/services"):
            found = await self._api.get(path, labelSelector=f"{selector},nuclio.io/class=function")
            made |= {one["metadata"]["labels"]["nuclio.io/function-name"] for one in found["items"]}
        return made - there

    async def why_no_pod(self, name: str) -> str:
        """What the function's Deployment says about a pod that it cannot make; empty where it says nothing."""
        found = await self._there(f"{self._deployments}/{resources.deployment(name)}") or {}
        for condition in found.get("status", {}).get("conditions") or ():
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                return f"{condition.get('reason')}: {condition.get('message', '')}"
        return ""

    async def _change(self, name: str, change: Object) -> Object:
        body = {**change, "status": {"state": resources.WAITING}}
        return await until_answered(lambda: self._api.merge(f"{self.path}/{name}", body))

    async def _there(self, path: str) -> Object | None:
        return await until_answered(lambda: find(self._api, path))


def _scaled_down(deployment: Object) -> bool:
    seen = deployment.get("status", {})
    new = deployment["metadata"]["generation"] > seen.get("observedGeneration", 0)
    return not new and not seen.get("replicas")


def _deleted(name: str) -> PodError:
    return PodError(Reason.FUNCTION_LOST, f"function {name} was deleted, not by Coach")


def status(function: Object) -> tuple[str, str]:
    """A function's state, and what its message says: Nuclio gives a stack of errors with lines of its source."""
    found = function.get("status") or {}
    lines = [line.strip().removeprefix("Error - ") for line in str(found.get("message") or "").splitlines()]
    said = [line for line in lines if line and not line.startswith("...") and line != "Call stack:"]
    return str(found.get("state") or ""), ": ".join(dict.fromkeys(said))
