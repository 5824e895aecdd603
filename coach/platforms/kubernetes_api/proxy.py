"""HTTP to pods through the API server, for a handler outside the cluster: with its user's own rights, and no tunnel."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from coach.core.errors import TemporaryError
from coach.platforms.kubernetes_api.client import CORE, Api


class PodProxy(httpx.AsyncBaseTransport):
    """Sends what is meant for a pod's address to the API server, which passes it on (the `pods/proxy` resource).

    `pod_at` gives the name of the pod that has an IP address.
    """

    def __init__(self, api: Api, pod_at: Callable[[str], str]) -> None:
        self._api = api
        self._pod_at = pod_at

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.ConnectError where the API server cannot be reached."""
        name = self._pod_at(request.url.host)
        port, rest = request.url.port, request.url.raw_path.decode("ascii")
        path = f"{CORE}/namespaces/{self._api.namespace}/pods/{name}:{port}/proxy{rest}"
        try:
            status, body = await self._api.forward(request.method, path, await request.aread())
        except TemporaryError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        return httpx.Response(status, content=body, request=request)
