"""Calls of functions in pods through the API server, for a handler outside the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from coach.core.errors import TemporaryError
from coach.platforms.function_calls import Unanswered
from coach.platforms.kubernetes_api.client import CORE, Api


class PodProxy:
    """Sends what is meant for a pod's address to the API server, which passes it on (the `pods/proxy` resource).

    With the rights of the handler's user, and no tunnel. `pod_at` gives the name of the pod that has an IP address, or
    None.
    """

    def __init__(self, api: Api, pod_at: Callable[[str], str | None]) -> None:
        self._api = api
        self._pod_at = pod_at
        self.followed = 0

    async def post(self, address: str, body: Mapping[str, Any], seconds: float) -> tuple[int, bytes]:
        """See coach.platforms.function_calls."""
        host, _, port = address.rpartition(":")
        name = self._pod_at(host)
        if name is None:
            raise Unanswered(f"no pod has the address {host} any more")
        path = f"{CORE}/namespaces/{self._api.namespace}/pods/{name}:{port}/proxy/"
        try:
            async with asyncio.timeout(seconds):
                return await self._api.forward("POST", path, body)
        except TimeoutError as error:
            raise Unanswered(f"no answer in {seconds:g} s", late=True) from error
        except TemporaryError as error:
            raise Unanswered(str(error)) from error

    async def close(self) -> None:
        """It has no connections of its own."""
