"""Requests to the API server of one cluster, as JSON.

The official client (`kubernetes.aio`) finds the cluster, aiohttp asks it; `credentials` says who asks. Objects stay
plain dictionaries, as their YAML reads: Coach uses few fields of few kinds, and the client's own classes for them know
no custom resource.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import logging
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import aiohttp
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from coach import __version__
from coach.core.errors import PermanentError, TemporaryError
from coach.platforms.kubernetes_api.credentials import Credential, Credentials, token_file
from coach.platforms.kubernetes_api.kubeconfig import Kubeconfig

log = logging.getLogger(__name__)

T = TypeVar("T")
#: A Kubernetes object, or a list of them, as its YAML reads.
Object = dict[str, Any]

CORE = "/api/v1"
COACH = "/apis/coach.dev/v1alpha1"
#: Who owns the fields that Coach applies.
FIELD_MANAGER = "coach"
#: Seconds that a request may take.
REQUEST_SECONDS = 30.0
#: Seconds before a request is repeated that the API server did not take.
RETRY_SECONDS = 1.0
#: How often a request is sent again that the API server wants later (Retry-After), and the longest that it may wait.
LATER_TIMES, LATER_SECONDS = 10, 60.0
#: Seconds without a line after which a watch counts as broken. The API server sends a bookmark every minute or so.
SILENT_SECONDS = 100.0

#: Seconds that a failure lasts before it is said: an API server that restarts is no news.
SAID_AFTER = 10.0
_WHOLE = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
_STREAM = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=SILENT_SECONDS)
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiError(TemporaryError):
    """The API server refused a request; `status` is HTTP's, `reason` Kubernetes's word such as AlreadyExists."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Api:
    """The API server; `namespace` is the one that is meant where a user names none."""

    def __init__(
        self,
        configuration: Configuration,
        namespace: str,
        credentials: Credentials,
        *,
        inside: bool = False,
        now: Callable[[], float] = time.time,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self._tls: ssl.SSLContext = RESTClientObject(configuration).ssl_context
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls),  # as many connections as there are requests
            headers={"User-Agent": f"coach/{__version__}"},  # in the API server's audit log and metrics
            proxy=configuration.proxy,
            trust_env=True,
            read_bufsize=1 << 21,  # a line of a watch has a whole object
        )
        self._server_name = configuration.tls_server_name
        self._credentials = credentials
        #: The certificate that new connections show, and whether there was another before.
        self._certificate: tuple[str, str] | None = None
        self._certificate_changes = False
        self._now = now
        #: Called before each request that changes something: it waits, or ends the process, where that may not be.
        self._may_write = may_write
        self.namespace = namespace
        #: Whether this process runs in the cluster, so that it reaches its pods by their addresses.
        self.inside = inside
        self.server = str(configuration.host)
        self._outages = Outages(self.server, now)

    @classmethod
    async def connect(
        cls,
        context: str | None = None,
        namespace: str | None = None,
        now: Callable[[], float] = time.time,
        may_write: Callable[[], None] = lambda: None,
    ) -> Self:
        """The cluster of a kubeconfig's context (None: its current one), or the one that this pod runs in.

        Raises UserError where there is no such context, PermanentError where no cluster is configured at all, or its
        user cannot log in.
        """
        inside = _SERVICE_ACCOUNT / "namespace"
        if context is None and inside.exists():
            configuration, token = Configuration(), _SERVICE_ACCOUNT / "token"
            InClusterConfigLoader(str(token), str(_SERVICE_ACCOUNT / "ca.crt"), False).load_and_set(configuration)
            read = token_file(token, now)
            credentials = Credentials(await read(), read, "this pod's service account", now)
            namespace = namespace or inside.read_text().strip()
            return cls(configuration, namespace, credentials, inside=True, now=now, may_write=may_write)
        try:
            user = Kubeconfig(context, now)
            configuration = await user.cluster()
        except (ConfigException, yaml.YAMLError) as error:
            raise PermanentError(
                f"no cluster: {error}; set KUBECONFIG to a kubeconfig file, or see what kubectl says: "
                "kubectl config get-contexts"
            ) from error
        try:
            credentials = Credentials(await user.read(interactive=True), user.read, user.who, now)
        except TemporaryError as error:
            raise PermanentError(
                f"no login of {user.who}: {error}; see what kubectl says: kubectl --context {user.context} auth whoami"
            ) from error
        return cls(configuration, namespace or user.namespace, credentials, now=now, may_write=may_write)

    async def close(self) -> None:
        """Close all connections."""
        await self._credentials.close()
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, path: str, **query: Any) -> Object:
        """An object, or a list. Raises ApiError."""
        return await self._request("GET", path, query)

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection `path`. Raises ApiError."""
        return await self._request("POST", path, {}, body)

    async def apply(self, path: str, body: Object) -> Object:
        """Make the object at `path` have these fields (server-side apply). Raises ApiError."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, body, "application/apply-patch+yaml")

    async def merge(self, path: str, body: Object) -> Object:
        """Change these fields of the object at `path`; null removes one. Raises ApiError."""
        return await self._request("PATCH", path, {}, body, "application/merge-patch+json")

    async def delete(self, path: str, **query: Any) -> None:
        """Delete an object, or a collection; what is not there is deleted already. Raises ApiError."""
        try:
            await self._request("DELETE", path, query)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(self, path: str, **query: Any) -> AsyncIterator[tuple[str, Object]]:
        """Changes of a collection since `resourceVersion`: ADDED, MODIFIED, DELETED or BOOKMARK, and the object.

        Ends when the API server ends it. Raises ApiError (410: too old), TemporaryError where it breaks or is silent.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", **query}
        what = f"to watch {_kind(path)}"
        answer = self._answer("GET", path, query, timeout=_STREAM, what=what, answers=lambda status: status == 410)
        async with answer as response:
            self._outages.over(what)
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(event["object"].get("code", 500), json.dumps(event["object"]))
                yield event["type"], event["object"]

    async def text(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        """What is no JSON, such as a pod's log, in pieces as they come. Raises ApiError, TemporaryError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        async with self._answer("GET", path, query, timeout=timeout) as response:
            async for piece in response.content.iter_any():
                yield piece

    async def forward(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[int, bytes]:
        """POST JSON as it is to a proxied address; status and body of the answer. Raises TemporaryError."""
        async with self._answer("POST", path, {}, dict(body), refuses=False, headers=headers) as response:
            return response.status, await response.read()

    @contextlib.asynccontextmanager
    async def pod_stream(self, pod: str, port: int) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A connection in both directions to a port of a pod.

        Raises PermanentError where the user may not, TemporaryError where it breaks.
        """
        name, path = f"{self.namespace}/{pod}", f"{CORE}/namespaces/{self.namespace}/pods/{pod}/portforward"
        try:
            for last in (False, True):
                credential = await self._show()
                try:
                    socket = await self._session.ws_connect(
                        f"{self.server}{path}?ports={port}",
                        protocols=("v4.channel.k8s.io",),
                        headers=_shown(credential),
                        heartbeat=30,
                        server_hostname=self._server_name,
                    )
                    break
                except aiohttp.WSServerHandshakeError as error:
                    if last or error.status != 401 or not await self._credentials.renewed(credential):
                        raise
            async with socket:
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403):
                raise PermanentError(
                    f"you may not reach ports of pod {name} (pods/portforward: HTTP {error.status}); ask for that "
                    f"right, or look at the jobs alone: kubectl -n {self.namespace} get trainingjobs"
                ) from error
            raise TemporaryError(f"pod {name} cannot be reached now: HTTP {error.status}") from error
        except aiohttp.ClientError as error:
            raise TemporaryError(f"the API server at {self.server} does not respond: {error}") from error

    async def _request(
        self,
        method: str,
        path: str,
        query: Object,
        body: Object | None = None,
        kind: str = "application/json",
    ) -> Object:
        async with self._answer(method, path, query, body, kind, what=f"{method} {_kind(path)}") as response:
            return json.loads(await response.text())  # type: ignore[no-any-return]

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        query: Object,
        body: Object | None = None,
        kind: str = "application/json",
        *,
        timeout: aiohttp.ClientTimeout = _WHOLE,
        what: str = "",
        answers: Callable[[int], bool] = lambda status: not passes(status),
        refuses: bool = True,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request, broken off at the end of the block.

        Raises ApiError, unless it `refuses` nothing, and TemporaryError, which names the server, for what a connection
        may raise. How requests of the kind `what` went is kept; an error with a status for which `answers` holds is an
        answer.
        """
        try:
            response = await self._send(method, path, query, body, kind, timeout, what, headers)
            try:
                if refuses and response.status >= 400:
                    raise self._error(response.status, await response.text())
                yield response
            finally:
                _break_off(response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            words = f"the API server at {self.server} does not respond: {str(error) or type(error).__name__}"
            self._outages.failed(what, words)
            raise TemporaryError(words) from error
        except TemporaryError as error:
            if isinstance(error, ApiError) and answers(error.status):
                self._outages.over(what)
            else:
                self._outages.failed(what, str(error))
            raise
        self._outages.over(what)

    async def _send(  # noqa: PLR0917
        self,
        method: str,
        path: str,
        query: Object,
        body: Object | None,
        kind: str,
        timeout: aiohttp.ClientTimeout,
        what: str,
        more: Mapping[str, str],
    ) -> aiohttp.ClientResponse:
        """Send a request, and again: with renewed credentials, or later where the API server wants it later."""
        renewed, later = False, 0
        while True:
            credential = await self._show()
            if method != "GET":
                self._may_write()
            headers = {"Content-Type": kind, "Accept": "application/json", **more, **_shown(credential)}
            if self._certificate_changes:
                headers["Connection"] = "close"  # a connection keeps the certificate that it began with
            response = await self._session.request(
                method,
                f"{self.server}{path}",
                params=query,
                headers=headers,
                json=body,
                timeout=timeout,
                server_hostname=self._server_name,
            )
            seconds = _wait(response.status, response.headers, self._now())
            if response.status == 401 and not renewed and await self._credentials.renewed(credential):
                renewed = True
            elif seconds is not None and later < LATER_TIMES:
                later += 1
                self._outages.failed(what, f"HTTP {response.status} {response.reason}")
                await asyncio.sleep(seconds)
            else:
                return response
            response.release()

    async def _show(self) -> Credential:
        """The credential of the next request; its certificate is that of new connections. Raises TemporaryError."""
        credential = await self._credentials.current()
        if credential.certificate not in (None, self._certificate):
            self._certificate_changes = self._certificate is not None or credential.ends is not None
            self._certificate = credential.certificate
            with tempfile.TemporaryDirectory(prefix="coach-") as folder:  # its owner alone reads it
                files = Path(folder, "certificate"), Path(folder, "key")
                for file, content in zip(files, self._certificate or (), strict=True):
                    file.write_text(content)
                self._tls.load_cert_chain(*files)
        return credential

    def _error(self, status: int, text: str) -> ApiError:
        """What it says, and for whom, where it does not know them."""
        error = _error(status, text)
        if status != 401:
            return error
        words = f"{error}: the API server at {self.server} refuses the credentials of {self._credentials.who}"
        return ApiError(status, error.reason, f"{words}; see what kubectl says: kubectl auth whoami")


class Outages:
    """What fails for longer than a moment: said once, with its cause and since when, and once more when it is over.

    Where several kinds of requests fail for one cause, that is said once.
    """

    def __init__(self, server: str, now: Callable[[], float]) -> None:
        self._server = server
        self._now = now
        #: What fails: since when, and the last cause.
        self._failing: dict[str, tuple[float, str]] = {}
        #: The causes that were said.
        self._said: set[str] = set()

    def failed(self, what: str, cause: str) -> None:
        """A request of this kind failed, and will be sent again; those of no kind are not counted."""
        if not what:
            return
        since, _ = self._failing.get(what, (self._now(), ""))
        self._failing[what] = since, cause
        if self._now() - since >= SAID_AFTER and cause not in self._said:
            self._said.add(cause)
            at = time.strftime("%H:%M:%S", time.localtime(since))
            log.warning("%s fails since %s: %s", what, at, cause)

    def over(self, what: str) -> None:
        """A request of this kind was answered: so are others that failed for its cause."""
        since, cause = self._failing.pop(what, (0.0, ""))
        if cause in self._said:
            self._said.remove(cause)
            lasted = self._now() - since
            self._failing = {other: one for other, one in self._failing.items() if one[1] != cause}
            log.warning("%s: the API server at %s answers again, after %.0f s", what, self._server, lasted)


async def until_answered(request: Callable[[], Awaitable[T]]) -> T:
    """Send a request, again and again while the API server restarts, has too much to do or refuses the login.

    Raises ApiError where it is refused.
    """
    while True:
        try:
            return await request()
        except TemporaryError as error:
            if isinstance(error, ApiError) and not passes(error.status):
                raise
            log.debug("sent again: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


async def find(api: Api, path: str) -> Object | None:
    """The object at `path`; None where there is none. Raises ApiError."""
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def passes(status: int) -> bool:
    """Whether an error says that the API server cannot answer now, and not that it will not."""
    return status in (401, 429) or status >= 500


def _wait(status: int, headers: Mapping[str, str], now: float) -> float | None:
    """Seconds after which the API server wants to be asked again (Retry-After); None where it says none."""
    said = headers.get("Retry-After", "")
    if not said or (status != 429 and status < 500):
        return None
    try:
        seconds = float(said) if said.isdigit() else email.utils.parsedate_to_datetime(said).timestamp() - now
    except ValueError:
        return None
    return min(max(seconds, 0.0), LATER_SECONDS)


def _kind(path: str) -> str:
    """`pods` of the path of pods, or of one pod."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    return (parts[2] if parts[0] == "namespaces" and len(parts) > 2 else parts[0]) if parts else path


def _shown(credential: Credential) -> dict[str, str]:
    return {"Authorization": credential.authorization} if credential.authorization else {}


def _break_off(response: aiohttp.ClientResponse) -> None:
    """End a response that has no end at once: a connection that says goodbye outlives its event loop."""
    if (connection := response.connection) is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _error(status: int, text: str) -> ApiError:
    try:
        said = json.loads(text)
        return ApiError(status, str(said.get("reason", "")), str(said.get("message", text)))
    except (ValueError, AttributeError):
        return ApiError(status, "", text.strip() or f"HTTP {status}")
