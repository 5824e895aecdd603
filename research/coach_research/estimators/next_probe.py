"""Which configuration to measure next, where only the number of probes counts; `worth_measuring` is what jobs do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coach.core.estimation.forms import NO_SERVERS
from coach.core.estimation.speed import SpeedPoint, fit_speed

#: Minimum relative gain in speed that a probe must promise.
MIN_GAIN = 0.002
#: Configurations that are compared at most.
MAX_CANDIDATES = 256


def next_probe(
    points: Sequence[SpeedPoint],
    max_workers: int,
    max_servers: int,
    candidates: Sequence[tuple[int, int]] | None = None,
) -> tuple[int, int] | None:
    """The (workers, servers) whose measurement is expected to raise the best known speed most.

    It maximizes the expected improvement over the measured configuration with the highest predicted speed. The first
    probe is the smallest candidate. None when every candidate was measured, or when no probe is expected to raise the
    speed by MIN_GAIN.
    """
    if candidates is None:
        fewest = min(1, max_servers)
        candidates = [(w, s) for w in range(1, max_workers + 1) for s in range(fewest, max_servers + 1)]
    candidates = _thinned([c for c in candidates if c[0] <= max_workers and c[1] <= max_servers])
    if not points:
        return min(candidates, key=lambda c: (c[0] * c[1], c), default=None)
    measured = {(p.workers, p.servers) for p in points}
    if measured.issuperset(candidates):
        return None
    model = fit_speed(points)
    workers, servers = np.array(sorted(measured), dtype=np.float64).T
    best = math.exp(model.fit.log_mean(workers, np.maximum(servers, NO_SERVERS)).max())
    gain = model.improvement(candidates, best)
    gain[[c in measured for c in candidates]] = -1.0
    first = int(np.argmax(gain))
    return candidates[first] if gain[first] >= MIN_GAIN else None


def _thinned(candidates: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most about MAX_CANDIDATES of them, evenly spaced in the logarithm of workers and servers."""
    if len(candidates) <= MAX_CANDIDATES:
        return list(candidates)
    steps = math.sqrt(MAX_CANDIDATES) - 1
    reach = math.log(max(max(c) for c in candidates))
    cells = (tuple(round(math.log(n or NO_SERVERS) / reach * steps) for n in c) for c in candidates)
    return list(dict(zip(cells, candidates, strict=True)).values())
