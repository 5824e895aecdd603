"""Run a command in a pod, as `kubectl exec` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL, WsApiClient

from coach.core.errors import PermanentError, TemporaryError
from coach.platforms.kubernetes_api.client import CORE, Api


async def run_in_pod(api: Api, pod: str, command: Sequence[str], out: Callable[[int, bytes], None]) -> int:
    """Run `command` in the first container of a pod; its exit code.

    `out` is called with 1 (standard output) or 2 (standard error) and what came there. Raises PermanentError where the
    user may not do so, TemporaryError where the connection breaks.
    """
    query = [("command", word) for word in command] + [("stdout", "true"), ("stderr", "true")]
    path = f"{CORE}/namespaces/{api.namespace}/pods/{pod}/exec?{urlencode(query)}"
    try:
        async with api.websocket(path) as socket:
            async for message in socket:
                channel, data = message.data[0], message.data[1:]
                if channel in (STDOUT_CHANNEL, STDERR_CHANNEL):
                    out(channel, data)
                elif channel == ERROR_CHANNEL:
                    return int(WsApiClient.parse_error_data(data.decode()))
    except aiohttp.WSServerHandshakeError as error:
        if error.status in (401, 403):
            raise PermanentError(
                f"you may not run commands in pod {api.namespace}/{pod} (pods/exec: HTTP {error.status}); "
                f"ask for that right, or look at the jobs alone: kubectl -n {api.namespace} get trainingjobs"
            ) from error
        raise TemporaryError(f"pod {api.namespace}/{pod} runs no command now: HTTP {error.status}") from error
    except aiohttp.ClientError as error:
        raise TemporaryError(f"the API server at {api.server} does not respond: {error}") from error
    raise TemporaryError(f"the connection to pod {api.namespace}/{pod} broke; try again")
