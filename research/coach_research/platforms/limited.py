"""The local platform whose nodes are behind links of limited bandwidth: `--bandwidth`."""

from __future__ import annotations

from typing import Any

from coach.core.cluster import Pod
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import Cluster, Deployed, PlatformEvents, PodError
from coach.platforms.local.platform import LocalPlatform
from coach_research.platforms.network import Bandwidth, Network


class LimitedPlatform(LocalPlatform):
    """Without a `bandwidth` it is the local platform."""

    def __init__(self, *given: Any, bandwidth: Bandwidth | None = None) -> None:
        """See `LocalPlatform`."""
        super().__init__(*given)
        self._bandwidth = bandwidth
        self._network: Network | None = None

    async def open(self, events: PlatformEvents) -> Cluster:
        """See `LocalPlatform`."""
        if self._bandwidth:
            self._network = await Network.open(self._nodes, self._bandwidth)
            self._addresses = self._network.addresses
        return await super().open(events)

    async def close(self) -> None:
        """See `LocalPlatform`."""
        await super().close()
        if self._network:
            await self._network.close()

    async def deploy(self, pod: Pod, spec: TrainingJob) -> Deployed:
        """See `LocalPlatform`."""
        if self._network and spec.spec.program is not None:
            raise PodError(Reason.POD_REFUSED, "programs run without --bandwidth only")
        return await super().deploy(pod, spec)

    def _namespace(self, node: str) -> str | None:
        return self._network.namespace(node) if self._network else None
