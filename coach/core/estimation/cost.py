"""What an epoch takes and costs with (workers, servers): resource-seconds times the price book."""

from __future__ import annotations

from coach.core.budget import PriceBook
from coach.core.cluster import NOTHING, Resources
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedModel


def epoch_seconds(
    speed: SpeedModel, workers: int, servers: int, fixed_seconds: float, fraction: float = 1.0
) -> Interval:
    """Seconds of an epoch: `fixed_seconds` (start, stop, evaluation) and `fraction` of an epoch at speed."""
    epochs_per_second = speed.interval(workers, servers)
    return Interval(
        fixed_seconds + fraction / epochs_per_second.high,
        fixed_seconds + fraction / epochs_per_second.expected,
        fixed_seconds + fraction / epochs_per_second.low,
    )


def gang_requests(
    workers: int, servers: int, worker: Resources, server: Resources, scheduler: Resources = NOTHING
) -> Resources:
    """What a whole gang holds while it runs: one scheduler, `servers` servers and `workers` workers."""
    return scheduler + server * servers + worker * workers


def predict_cost(
    speed: SpeedModel,
    workers: int,
    servers: int,
    requests: Resources,
    prices: PriceBook,
    *,
    fixed_seconds: float = 0.0,
    fraction: float = 1.0,
    invocations: int = 0,
) -> Interval:
    """Currency units that one epoch costs with (workers, servers).

    `requests` is what the whole gang holds (see `gang_requests`), `invocations` the calls an epoch makes.
    """
    seconds = epoch_seconds(speed, workers, servers, fixed_seconds, fraction)
    return seconds * prices.rate(requests) + prices.invocation * invocations
