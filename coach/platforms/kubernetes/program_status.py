"""What the pods of programs send to a handler in the cluster: Kubeflow's TrainJob status (KEP-2779).

Each pod has a token of its service account for this purpose alone, which the kubelet makes and renews. The API server
says whose it is, down to the pod, so a program reports for itself and for no other.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from coach.core.errors import CoachError
from coach.platforms.kubernetes_api.client import Api
from coach.platforms.program_metrics.status import Sender, StatusServer

log = logging.getLogger(__name__)

PORT = 8422
#: What a token is for; no other service accepts it.
AUDIENCE = "coach.dev"
#: Connections at once, of all programs; characters of a token.
MAX_CONNECTIONS, LONGEST_TOKEN = 64, 8192
#: Seconds for which an answer of the API server counts, and how many are kept; seconds that one may take.
KNOWN_SECONDS, MAX_KNOWN, REVIEW_SECONDS = 60.0, 1000, 4.0
#: Unknown tokens that the API server is asked about at once.
MAX_REVIEWS = 8
_POD = "authentication.kubernetes.io/pod-uid"
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


class Statuses:
    """Listens until `close`. `find` gives the program of a pod, by its object's unique id, in several threads."""

    def __init__(self, api: Api, find: Callable[[str], Sender | None], port: int = PORT) -> None:
        self._api, self._find = api, find
        self._loop = asyncio.get_running_loop()
        #: By a token's hash: its pod, empty where it is of none; and until when that counts.
        self._known: dict[bytes, tuple[str, float]] = {}
        self._asking = threading.Semaphore(MAX_REVIEWS)
        listening = socket.create_server(("", port), backlog=MAX_CONNECTIONS)
        self.port: int = listening.getsockname()[1]
        self._server = StatusServer(listening, self._sender_of, MAX_CONNECTIONS)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    def _sender_of(self, authorization: str) -> Sender | None:
        kind, _, token = authorization.partition(" ")
        if kind != "Bearer" or not 0 < len(token) <= LONGEST_TOKEN:
            return None
        key = hashlib.sha256(token.encode(errors="replace")).digest()
        pod, until = self._known.get(key, ("", 0.0))
        if time.monotonic() >= until:
            if not self._asking.acquire(blocking=False):
                return None
            try:
                pod = asyncio.run_coroutine_threadsafe(self._pod_of(token), self._loop).result(REVIEW_SECONDS)
            except (TimeoutError, CoachError) as error:
                log.warning("a program's report was not taken: its token could not be reviewed: %s", error)
                return None
            finally:
                self._asking.release()
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = pod, time.monotonic() + KNOWN_SECONDS
        return self._find(pod) if pod else None

    async def _pod_of(self, token: str) -> str:
        """The unique id of the pod whose token this is; empty where it is of none. Raises CoachError."""
        review = {"spec": {"token": token, "audiences": [AUDIENCE]}}
        status = (await self._api.create(_REVIEWS, review)).get("status", {})
        mine = status.get("authenticated", False) and AUDIENCE in status.get("audiences", ())
        found: list[str] = status.get("user", {}).get("extra", {}).get(_POD, [""]) if mine else [""]
        return found[0]
