"""Requests to the API server of one cluster, as JSON.

The official client (`kubernetes.aio`) finds the cluster and holds the credentials: a kubeconfig with all its ways to
log in, or the service account of a pod. Objects stay plain dictionaries, as their YAML reads: Coach uses few fields of
few kinds, and the client's own classes for them know no custom resource.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client as official
from kubernetes.aio import config
from kubernetes.aio.config import kube_config

from coach.core.errors import PermanentError, TemporaryError, UserError

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
        self, configuration: official.Configuration, namespace: str, *, inside: bool = False
    ) -> None:
        configuration.connection_pool_maxsize = 0  # as many connections as there are requests
        self.configuration = configuration
        self._client = official.ApiClient(configuration)
        self.namespace = namespace
        #: Whether this process runs in the cluster, so that it reaches its pods by their addresses.
        self.inside = inside
        self.server = str(configuration.host)

    @classmethod
    async def connect(cls, context: str | None = None, namespace: str | None = None) -> Self:
        """The cluster of a kubeconfig's context (None: its current one), or the one that this pod runs in.

        Raises UserError where there is no such context, PermanentError where no cluster is configured at all.
        """
        configuration = official.Configuration()
        inside = _SERVICE_ACCOUNT / "namespace"
        if context is None and inside.exists():
            config.load_incluster_config(configuration)
            return cls(configuration, namespace or inside.read_text().strip(), inside=True)
        file = os.environ.get("KUBECONFIG") or None
        paths = [Path(path).expanduser() for path in (file or "~/.kube/config").split(os.pathsep) if path]
        if not any(path.exists() for path in paths):
            raise PermanentError(
                f"no cluster: there is no {' nor '.join(map(str, paths))}; set KUBECONFIG to a kubeconfig file"
            )
        try:
            contexts, current = kube_config.list_kube_config_contexts(file)
            chosen = next((c for c in contexts if c["name"] == context), None) if context else current
            if chosen is None:
                names = ", ".join(sorted(c["name"] for c in contexts)) or "none"
                raise UserError(f"--context {context}: no such context; the kubeconfig has: {names}")
            await config.load_kube_config(file, context=context, client_configuration=configuration)
        except config.ConfigException as error:
            raise PermanentError(
                f"no cluster: {error}; set KUBECONFIG to a kubeconfig file, or see what kubectl says: "
                "kubectl config get-contexts"
            ) from error
        return cls(configuration, namespace or chosen["context"].get("namespace") or "default")

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

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
        async with _broken(self.server):
            response = await self._send("GET", path, query, None, "application/json", timeout)
            try:
                if response.status >= 400:
                    raise _error(response.status, await response.text())
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"].get("code", 500), json.dumps(event["object"]))
                    yield event["type"], event["object"]
            finally:
                _break_off(response)

    async def text(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        """The lines of what is no JSON, such as a pod's log, as they come. Raises ApiError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        async with _broken(self.server):
            response = await self._send("GET", path, query, None, "application/json", timeout)
            try:
                if response.status >= 400:
                    raise _error(response.status, await response.text())
                async for line in response.content:
                    yield line
            finally:
                _break_off(response)

    async def forward(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Send JSON as it is to a proxied address; status and body of the answer. Raises TemporaryError."""
        async with _broken(self.server):
            content = json.loads(body) if body else None
            response = await self._send(method, path, {}, content, "application/json", REQUEST_SECONDS)
            return response.status, await response.read()

    async def _request(
        self,
        method: str,
        path: str,
        query: Object,
        body: Object | None = None,
        kind: str = "application/json",
    ) -> Object:
        async with _broken(self.server):
            response = await self._send(method, path, query, body, kind, REQUEST_SECONDS)
            text = await response.text()
        if response.status >= 400:
            raise _error(response.status, text)
        return json.loads(text)  # type: ignore[no-any-return]

    async def _send(  # noqa: PLR0917
        self, method: str, path: str, query: Object, body: Object | None, kind: str, timeout: Any
    ) -> aiohttp.ClientResponse:
        full = f"{path}?{urlencode(query)}" if query else path
        headers = {"Content-Type": kind, "Accept": "application/json"}
        _, url, headers, _, _ = await self._client.param_serialize(
            method, full, header_params=headers, auth_settings=["BearerToken"]
        )
        answer = await self._client.rest_client.request(
            method, url, headers=headers, body=body, _request_timeout=timeout
        )
        response: aiohttp.ClientResponse = answer.response
        return response


async def until_answered(request: Callable[[], Awaitable[T]]) -> T:
    """Send a request, again and again while the API server restarts or has too much to do.

    Raises ApiError where it is refused.
    """
    while True:
        try:
            return await request()
        except TemporaryError as error:
            if isinstance(error, ApiError) and error.status < 500 and error.status != 429:
                raise
            log.info("sent again: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


def _break_off(response: aiohttp.ClientResponse) -> None:
    """End a response that has no end at once: a connection that says goodbye outlives its event loop."""
    if (connection := response.connection) is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


class _broken:
    """Makes what a connection may raise a TemporaryError that names the server."""

    def __init__(self, server: str) -> None:
        self._server = server

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, aiohttp.ClientError | asyncio.TimeoutError | OSError | ValueError):
            what = str(error) or type(error).__name__
            raise TemporaryError(f"the API server at {self._server} does not respond: {what}") from error


def _error(status: int, text: str) -> ApiError:
    try:
        said = json.loads(text)
        return ApiError(status, str(said.get("reason", "")), str(said.get("message", text)))
    except (ValueError, AttributeError):
        return ApiError(status, "", text.strip() or f"HTTP {status}")
