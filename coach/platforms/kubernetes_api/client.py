"""Requests to the API server of one cluster, as JSON.

The official client (`kubernetes.aio`) finds the cluster; `credentials` says who asks. Objects stay plain dictionaries,
as their YAML reads: Coach uses few fields of few kinds, and the client's own classes for them know no custom resource.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import yaml
from kubernetes.aio import client as official
from kubernetes.aio import config
from kubernetes.aio.config import incluster_config, kube_config
from kubernetes.aio.stream.ws_client import WsApiClient

from coach import __version__
from coach.core.errors import PermanentError, TemporaryError, UserError
from coach.platforms.kubernetes_api.credentials import Credential, Credentials, TokenFile
from coach.platforms.kubernetes_api.kubeconfig import Kubeconfig
from coach.platforms.kubernetes_api.outages import Outages

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
        configuration: official.Configuration,
        namespace: str,
        credentials: Credentials | None = None,
        *,
        inside: bool = False,
        now: Callable[[], float] = time.time,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        configuration.connection_pool_maxsize = 0  # as many connections as there are requests
        self._configuration = configuration
        self._client = official.ApiClient(configuration)
        self._client.user_agent = f"coach/{__version__}"  # in the API server's audit log and metrics
        self._credentials = credentials or Credentials(Credential(), _anonymous, "no user")
        #: The certificate that new connections show, in a folder of its own, and whether there was another before.
        self._certificate: tuple[str, str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
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
        configuration = official.Configuration()
        inside = _SERVICE_ACCOUNT / "namespace"
        if context is None and inside.exists():
            token = _SERVICE_ACCOUNT / "token"
            incluster_config.InClusterConfigLoader(
                str(token), str(_SERVICE_ACCOUNT / "ca.crt"), try_refresh_token=False
            ).load_and_set(configuration)
            source = TokenFile(token, now)
            credentials = Credentials(await source.read(), source.read, "this pod's service account", now)
            namespace = namespace or inside.read_text().strip()
            return cls(configuration, namespace, credentials, inside=True, now=now, may_write=may_write)
        file = os.environ.get("KUBECONFIG") or "~/.kube/config"
        paths = [Path(path).expanduser() for path in file.split(os.pathsep) if path]
        if not any(path.exists() for path in paths):
            raise PermanentError(
                f"no cluster: there is no {' nor '.join(map(str, paths))}; set KUBECONFIG to a kubeconfig file"
            )
        files = os.pathsep.join(map(str, paths))
        try:
            contexts, current = kube_config.list_kube_config_contexts(files)
            chosen = next((c for c in contexts if c["name"] == context), None) if context else current
            if chosen is None:
                names = ", ".join(sorted(c["name"] for c in contexts)) or "none"
                raise UserError(f"--context {context}: no such context; the kubeconfig has: {names}")
            user = Kubeconfig(files, chosen["name"], now)
            await user.cluster(configuration)
            who = user.who()
        except (config.ConfigException, yaml.YAMLError) as error:
            raise PermanentError(
                f"no cluster: {error}; set KUBECONFIG to a kubeconfig file, or see what kubectl says: "
                "kubectl config get-contexts"
            ) from error
        try:
            credentials = Credentials(await user.read(interactive=True), user.read, who, now)
        except TemporaryError as error:
            raise PermanentError(
                f"no login of {who}: {error}; see what kubectl says: kubectl --context {chosen['name']} auth whoami"
            ) from error
        namespace = namespace or chosen["context"].get("namespace") or "default"
        return cls(configuration, namespace, credentials, now=now, may_write=may_write)

    async def close(self) -> None:
        """Close all connections."""
        await self._credentials.close()
        await self._client.close()
        if self._folder is not None:
            self._folder.cleanup()

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
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=SILENT_SECONDS)
        query = {"watch": "true", "allowWatchBookmarks": "true", **query}
        what = f"to watch {_kind(path)}"
        async with _Asking(self.server, self._outages, what, frozenset({410})):
            response = await self._send("GET", path, query, None, "application/json", timeout, what)
            try:
                if response.status >= 400:
                    raise self._error(response.status, await response.text())
                self._outages.over(what)
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"].get("code", 500), json.dumps(event["object"]))
                    yield event["type"], event["object"]
            finally:
                _break_off(response)

    async def text(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        """What is no JSON, such as a pod's log, in pieces as they come. Raises ApiError, TemporaryError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        async with _Asking(self.server):
            response = await self._send("GET", path, query, None, "application/json", timeout)
            try:
                if response.status >= 400:
                    raise self._error(response.status, await response.text())
                async for piece in response.content.iter_any():
                    yield piece
            finally:
                _break_off(response)

    async def forward(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Send JSON as it is to a proxied address; status and body of the answer. Raises TemporaryError."""
        async with _Asking(self.server):
            response = await self._send(method, path, {}, dict(body), "application/json", REQUEST_SECONDS)
            return response.status, await response.read()

    @contextlib.asynccontextmanager
    async def websocket(self, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A connection to what speaks in both directions. Raises aiohttp.ClientError, TemporaryError."""
        async with contextlib.AsyncExitStack() as stack:
            for last in (False, True):
                credential = await self._show()
                client = WsApiClient(self._configuration, heartbeat=30)
                stack.push_async_callback(client.close)
                _, url, headers, _, _ = await client.param_serialize("GET", path, header_params={})
                headers |= _shown(credential)
                try:
                    answer = await client.request("GET", url, headers=headers, _preload_content=False)
                    socket = await stack.enter_async_context(answer)
                    break
                except aiohttp.WSServerHandshakeError as error:
                    if last or error.status != 401 or not await self._credentials.renewed(credential):
                        raise
            yield socket

    async def _request(
        self,
        method: str,
        path: str,
        query: Object,
        body: Object | None = None,
        kind: str = "application/json",
    ) -> Object:
        what = f"{method} {_kind(path)}"
        async with _Asking(self.server, self._outages, what):
            response = await self._send(method, path, query, body, kind, REQUEST_SECONDS, what)
            text = await response.text()
            if response.status >= 400:
                raise self._error(response.status, text)
            return json.loads(text)  # type: ignore[no-any-return]

    async def _send(  # noqa: PLR0917
        self,
        method: str,
        path: str,
        query: Object,
        body: Object | None,
        kind: str,
        timeout: Any,
        what: str = "",
    ) -> aiohttp.ClientResponse:
        """Send a request, and again: with renewed credentials, or later where the API server wants it later."""
        full = f"{path}?{urlencode(query)}" if query else path
        headers = {"Content-Type": kind, "Accept": "application/json"}
        renewed, later = False, 0
        while True:
            credential = await self._show()
            if method != "GET":
                self._may_write()
            _, url, shown, _, _ = await self._client.param_serialize(method, full, header_params=headers)
            shown |= _shown(credential)
            if self._certificate_changes:
                shown["Connection"] = "close"  # a connection keeps the certificate that it began with
            answer = await self._client.rest_client.request(
                method, url, headers=shown, body=body, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = answer.response
            seconds = _wait(response.status, response.headers, self._now())
            if response.status == 401 and not renewed and await self._credentials.renewed(credential):
                renewed = True
            elif seconds is not None and later < LATER_TIMES:
                later += 1
                if what:
                    self._outages.failed(what, f"HTTP {response.status} {response.reason}")
                await asyncio.sleep(seconds)
            else:
                return response
            response.release()

    async def _show(self) -> Credential:
        """The credential of the next request; its certificate is that of new connections. Raises TemporaryError."""
        credential = await self._credentials.current()
        if credential.certificate not in (None, self._certificate):
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="coach-")  # its owner alone reads it
            self._certificate_changes = self._certificate is not None or credential.ends is not None
            self._certificate = credential.certificate
            files = Path(self._folder.name, "certificate"), Path(self._folder.name, "key")
            for file, content in zip(files, self._certificate or (), strict=True):
                file.write_text(content)
            self._configuration.cert_file, self._configuration.key_file = map(str, files)
            self._client.rest_client.ssl_context.load_cert_chain(files[0], files[1])
        return credential

    def _error(self, status: int, text: str) -> ApiError:
        """What it says, and for whom, where it does not know them."""
        error = _error(status, text)
        if status != 401:
            return error
        words = f"{error}: the API server at {self.server} refuses the credentials of {self._credentials.who}"
        return ApiError(status, error.reason, f"{words}; see what kubectl says: kubectl auth whoami")


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


async def _anonymous() -> Credential:
    return Credential()


def _break_off(response: aiohttp.ClientResponse) -> None:
    """End a response that has no end at once: a connection that says goodbye outlives its event loop."""
    if (connection := response.connection) is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


class _Asking:
    """Makes what a connection may raise a TemporaryError that names the server, and says what fails for long.

    `outages` keeps how requests of the kind `what` went; an answer with a status of `answers` is one.
    """

    def __init__(
        self,
        server: str,
        outages: Outages | None = None,
        what: str = "",
        answers: frozenset[int] | None = None,
    ) -> None:
        self._server = server
        self._outages = outages
        self._what = what
        self._answers = answers

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, aiohttp.ClientError | asyncio.TimeoutError | OSError | ValueError):
            words = str(error) or type(error).__name__
            broken = TemporaryError(f"the API server at {self._server} does not respond: {words}")
            self._went(broken)
            raise broken from error
        if error is None or isinstance(error, TemporaryError):
            self._went(error)

    def _went(self, error: TemporaryError | None) -> None:
        if self._outages is None:
            return
        status = error.status if isinstance(error, ApiError) else None
        refused = status is not None and (not passes(status) if self._answers is None else status in self._answers)
        if error is None or refused:
            self._outages.over(self._what)
        else:
            self._outages.failed(self._what, str(error))


def _error(status: int, text: str) -> ApiError:
    try:
        said = json.loads(text)
        return ApiError(status, str(said.get("reason", "")), str(said.get("message", text)))
    except (ValueError, AttributeError):
        return ApiError(status, "", text.strip() or f"HTTP {status}")
