"""How a cluster's function pods are made: what the chart's values say, by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import metadata
from typing import TYPE_CHECKING, Any, Self

from coach.core.errors import UserError

if TYPE_CHECKING:
    from coach.platforms.kubernetes_api.client import Api


#: The user of Coach's own images, and the group that owns its volume.
USER = 65532


#: Who may place the pods, and the profile that they name then.
SCHEDULERS = {
    "coach": "coach",
    "native": "default-scheduler",
    "coscheduling": "scheduler-plugins-scheduler",
    "default": "default-scheduler",
}
#: The PodGroups of those that have one for each gang.
_POD_GROUPS = {"native": "scheduling.k8s.io/v1beta1", "coscheduling": "scheduling.x-k8s.io/v1alpha1"}
#: Profiles that know no gang by themselves.
_ONE_BY_ONE = ("default-scheduler", "coach-thesis")


def _read_from(variable: str, default: Any = "") -> Any:
    """A field that an environment variable sets."""
    return field(default=default, metadata={"variable": variable})


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about function pods that no job file says.

    `volume_claim` names a claim that all nodes can mount: jobs find their data there, and keep their checkpoints.
    `handler` is the label that separates the pods of two handlers in one namespace.
    """

    image: str = _read_from("COACH_FUNCTIONS_IMAGE", MISSING)
    #: Of PyTorch jobs: Coach's own image has MXNet only.
    pytorch_image: str = _read_from("COACH_PYTORCH_IMAGE")
    pull_policy: str = _read_from("COACH_IMAGE_PULL_POLICY", "IfNotPresent")
    pull_secrets: tuple[str, ...] = ()
    service_account: str = _read_from("COACH_FUNCTIONS_SERVICE_ACCOUNT")
    scheduler: str = _read_from("COACH_SCHEDULER_NAME", "coach")
    #: A key of SCHEDULERS.
    scheduler_kind: str = "coach"
    volume_claim: str = _read_from("COACH_VOLUME_CLAIM")
    #: URI of the folder for checkpoints in an object store, in place of the volume's.
    checkpoints: str = _read_from("COACH_CHECKPOINTS_URI")
    #: Secret with the environment variables by which functions and programs reach object stores.
    store_secret: str = _read_from("COACH_STORE_SECRET")
    handler: str = _read_from("COACH_HANDLER", "coach")
    #: The claim with the journal, and the Secret with the token of the API: no program is given them.
    state_claim: str = _read_from("COACH_STATE_CLAIM")
    token_secret: str = _read_from("COACH_TOKEN_SECRET")
    opencost: str = _read_from("COACH_OPENCOST")  #: the URL of OpenCost's API
    #: Where programs send their metrics; empty: they cannot.
    status_url: str = ""
    #: The user that programs run as; 0: that of their image, which may be root.
    program_user: int = USER
    #: Whether each job gets a NetworkPolicy that lets its pods reach each other.
    isolates: bool = False

    @property
    def pod_groups(self) -> str:
        """The version of the PodGroup that each gang gets too; empty where it gets none."""
        return _POD_GROUPS.get(self.scheduler_kind, "")

    @property
    def deadlock(self) -> str:
        """How jobs can wait for each other for ever under this scheduler; empty where none can."""
        if self.scheduler not in _ONE_BY_ONE or self.pod_groups:
            return ""
        return f"{self.scheduler} places pods one by one: jobs with a part of the nodes each wait for each other"

    @classmethod
    def read(cls, handler: str, environment: Mapping[str, str] = os.environ) -> Self:
        """From COACH_FUNCTIONS_IMAGE and its kin; what is not set has its default.

        `handler` is used where COACH_HANDLER is not set. Raises UserError.
        """
        kind = environment.get("COACH_SCHEDULER_KIND") or "coach"
        if kind not in SCHEDULERS:
            raise UserError(f"COACH_SCHEDULER_KIND: one of {', '.join(SCHEDULERS)}, not {kind!r}")
        given: dict[str, Any] = {"scheduler_kind": kind, "scheduler": SCHEDULERS[kind]}
        variables = {one.name: environment.get(one.metadata.get("variable", "")) for one in fields(cls)}
        given |= {name: value for name, value in variables.items() if value}
        image = given.pop("image", f"coach-functions:{metadata.version('coach-trainer')}")
        given.setdefault("handler", handler)
        if user := environment.get("COACH_PROGRAM_USER"):
            if not user.isdigit():
                raise UserError(f"COACH_PROGRAM_USER: a user's number, not {user!r}; 0 is that of each image")
            given["program_user"] = int(user)
        given["isolates"] = environment.get("COACH_NETWORK_POLICY") == "true"
        secrets = tuple(filter(None, environment.get("COACH_IMAGE_PULL_SECRETS", "").split(",")))
        return cls(image, pull_secrets=secrets, **given)


async def chart_settings(api: Api, own: Settings) -> Settings:
    """What makes pods as the chart's own handler makes them, which wrote down how; `own` where no chart did."""
    from coach.platforms.kubernetes_api.client import CORE, ApiError

    maps = f"{CORE}/namespaces/{api.namespace}/configmaps"
    try:
        found = await api.get(maps, labelSelector="app.kubernetes.io/component=functions")
    except ApiError as error:
        if error.status != 403:
            raise
        return own
    for one in found["items"]:
        own = Settings.read(own.handler, {**one.get("data", {}), **os.environ})
    return own
