"""The operations of a cluster's handler, from outside: a port of this machine is passed on to its API.

All of it with the rights of the kubeconfig's user: to list pods, to forward a port (`pods/portforward`), to read the
Secret with the API's token, and for what changes a job's object, to change that. Nothing runs in the handler's pod.
What a user wants of a job is written into its TrainingJob, as kubectl would.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from coach.core.errors import CoachError, PermanentError, UserError
from coach.platforms.kubernetes_api.client import COACH, CORE, Api, ApiError, Object
from coach.platforms.kubernetes_api.election import LEADER
from coach.platforms.kubernetes_api.pod_access import connection, forwarded
from coach.report.row_types import JobRow
from coach.service.calls import Operation
from coach.service.client import Client

T = TypeVar("T")


@dataclass(slots=True)
class Reached:
    """A cluster, and its handler's API on a port of this machine. `failed`: why a connection was refused last."""

    api: Api
    remote_port: int
    token: str
    port: int = 0
    failed: CoachError | None = None


@contextlib.contextmanager
def cluster(context: str, namespace: str) -> Iterator[There]:
    """The operations of the handler in a namespace of the cluster of a context ("": the current one).

    Raises UserError where no handler runs there, PermanentError where the user may not reach it.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_reached(context, namespace)) as reached,
        contextlib.closing(There(portal, reached)) as there,
    ):
        yield there


@contextlib.asynccontextmanager
async def _reached(context: str, namespace: str) -> AsyncIterator[Reached]:
    async with await Api.connect(context or None, namespace or None) as api:
        pod = await _handler(api)
        reached = Reached(api, _port(pod), await _token(api, pod))
        async with connection(api, pod["metadata"]["name"], reached.remote_port):
            pass  # whether this user may
        async with _forwarded(reached) as reached.port:
            yield reached


def _forwarded(reached: Reached, port: int = 0) -> contextlib.AbstractAsyncContextManager[int]:
    def failed(error: CoachError) -> None:
        reached.failed = error

    async def find() -> str:
        return str((await _handler(reached.api))["metadata"]["name"])

    return forwarded(reached.api, find, reached.remote_port, port, failed)


async def _handler(api: Api) -> Object:
    """The handler's pod; of several, the one that leads. Raises UserError where none runs."""
    labels = "app.kubernetes.io/name=coach,app.kubernetes.io/component=handler"
    found = (await api.get(f"{CORE}/namespaces/{api.namespace}/pods", labelSelector=labels))["items"]
    running = [pod for pod in found if pod["status"].get("phase") == "Running"]
    if not running:
        raise UserError(
            f"no handler of Coach runs in namespace {api.namespace} of {api.server}; name its --namespace, "
            "or install it there: helm install coach deploy/chart"
        )
    return min(running, key=lambda pod: LEADER not in pod["metadata"]["labels"])


def _port(pod: Object) -> int:
    ports = [port for one in pod["spec"]["containers"] for port in one.get("ports", ())]
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "http"), 8421)


async def _token(api: Api, pod: Object) -> str:
    """What the API's callers send, from the Secret that the handler's pod has. Raises PermanentError."""
    secrets = [volume["secret"] for volume in pod["spec"].get("volumes", ()) if volume["name"] == "token"]
    name = secrets[0]["secretName"] if secrets else "coach-token"
    try:
        found = await api.get(f"{CORE}/namespaces/{api.namespace}/secrets/{name}")
        return base64.b64decode(found["data"]["token"]).decode().strip()
    except (KeyError, ValueError) as error:
        raise PermanentError(f"Secret {api.namespace}/{name} has no token that can be read") from error
    except ApiError as error:
        if error.status not in (401, 403, 404):
            raise
        raise PermanentError(
            f"{error}; the API of the handler needs the token in Secret {api.namespace}/{name}, which its user has to "
            f"be allowed to read; or look at the jobs alone: kubectl -n {api.namespace} get trainingjobs"
        ) from error


class There(Client):
    """A cluster's operations. Those that change an object are the API server's, all others the handler's."""

    def __init__(self, portal: BlockingPortal, reached: Reached) -> None:
        super().__init__(url=f"http://127.0.0.1:{reached.port}", token=reached.token)
        self._portal = portal
        self._reached = reached

    def perform(self, operation: Operation[..., T], *args: Any, **kwargs: Any) -> Any:
        """Do it by the job's object, or by the handler."""
        own = {"suspend": self._suspend, "resume": self._resume}.get(operation.name)
        return own(*args, **kwargs) if own else super().perform(operation, *args, **kwargs)

    def _silent(self, error: Exception) -> Any:
        return self._reached.failed or super()._silent(error)

    def page(self, port: int, opened: Callable[[str, str, str], None]) -> None:
        """Pass `port` (0: a free one) on to the page until Ctrl-C. Raises UserError where it is taken."""
        code = self.login_codes().code
        try:
            with self._portal.wrap_async_context_manager(_forwarded(self._reached, port)) as local:
                where = f"{self._reached.api.namespace} at {self._reached.api.server}"
                words = f"the page of the jobs in {where}; Ctrl-C ends it"
                opened(f"http://127.0.0.1:{local}", code, words)
                ended = threading.Event()
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, lambda *_: ended.set())
                ended.wait()
        except OSError as error:
            raise UserError(f"port {port} cannot be used here ({error.strerror}); --port names another") from error

    def _suspend(self, name: str, *, now: bool = False) -> JobRow:
        if now:
            raise UserError("--now: not on a cluster, where a job stops when its epoch ends")
        return self._write(name, suspend=True)

    def _resume(self, name: str, *, add_budget: float = 0.0, accept_model: bool = False, **_: Any) -> JobRow:
        if add_budget or accept_model:
            raise UserError(
                "--add-budget, --accept-model: on a cluster the job's object says that; for more money: "
                f"kubectl edit trainingjob {name}, spec.budget.amount"
            )
        return self._write(name, suspend=False)

    def _write(self, name: str, **spec: Any) -> JobRow:
        api = self._reached.api
        path = f"{COACH}/namespaces/{api.namespace}/trainingjobs/{name}"
        try:
            self._portal.call(api.merge, path, {"spec": spec})
        except ApiError as error:
            raise UserError(f"{name}: {error}; see: coach --context NAME ps") from error
        row: JobRow = self.job(name).job
        return row
