"""Measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """One measured speed: `epochs_per_second` of the whole job with `workers` and `servers`.

    `weight` counts measurements of ordinary length: its noise has variance 1 / weight. `computing_part` is the share of
    the time in which a worker's busiest thread computed; the rest it waited; 0 where that is unknown. `mini`: measured
    in a mini-epoch, that is in a few steps.
    """

    workers: int
    servers: int
    epochs_per_second: float
    weight: float = 1.0
    computing_part: float = 0.0
    mini: bool = False


class KnownSpeed(NamedTuple):
    """The speed of earlier jobs with `workers` and `servers`, over all their epochs there; as in `SpeedPoint`."""

    workers: int
    servers: int
    epochs_per_second: float
    computing_part: float = 0.0


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One measured value of a learning curve after `x` = samples seen / data set size."""

    x: float
    value: float
