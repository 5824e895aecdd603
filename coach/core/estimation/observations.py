"""What was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """One measured speed: `epochs_per_second` of the whole job with `workers` and `servers`.

    `weight` says how many measurements of ordinary length it is worth: its noise has variance 1 / weight.
    `computing_part` of the time a worker's busiest thread computed, the rest it waited; 0 where that is not known.
    `mini`: in a mini-epoch, that is in a few steps.
    """

    workers: int
    servers: int
    epochs_per_second: float
    weight: float = 1.0
    computing_part: float = 0.0
    mini: bool = False


class KnownSpeed(NamedTuple):
    """What earlier jobs measured with `workers` and `servers`, all epochs there together; as in `SpeedPoint`."""

    workers: int
    servers: int
    epochs_per_second: float
    computing_part: float = 0.0


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One measured value of a learning curve after `x` = samples seen / data set size."""

    x: float
    value: float
