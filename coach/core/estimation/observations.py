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


class KnownCurve(NamedTuple):
    """The likeliest shape of an earlier run's curve, as in `Shapes`: with `rate` per epoch, and `midpoint` in epochs
    (0: none).

    `fall` is from its first value to where it levels off, of the falling quantity.
    """

    power: float
    rate: float
    midpoint: float
    fall: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One measured value of a learning curve after `x` = samples seen / data set size."""

    x: float
    value: float
