"""The local platform as the papers' experiments need it: behind links of limited bandwidth, pods placed one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from coach.core.cluster import Node
from coach_research.platforms.kube_scheduler import parse_placement
from coach_research.platforms.limited import LimitedPlatform
from coach_research.platforms.network import Bandwidth, limited, require
from coach_research.platforms.pod_by_pod import PodByPodPlatform


def local_platform(
    nodes: Sequence[Node], bandwidth: str, placement: str
) -> tuple[tuple[Node, ...], Callable[..., LimitedPlatform]]:
    """The nodes as `--bandwidth` names them, and what makes their platform. Raises UserError, PermanentError."""
    limit = Bandwidth.parse(bandwidth) if bandwidth else None
    if limit:
        require(nodes)
        nodes = limited(nodes, limit)
    kind = parse_placement(placement)
    if kind is None:
        return tuple(nodes), partial(LimitedPlatform, bandwidth=limit)
    return tuple(nodes), partial(PodByPodPlatform, bandwidth=limit, kind=kind)
