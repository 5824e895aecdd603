"""Tables of speeds that no estimator was made for: synthetic laws with random constants, and parts of measured grids.

Times are in units of one worker's share of the work at (1, 1). A constant in [low, high] is log-uniform; a term is left
out with the probability stated. Each law's table deviates from it by 2 to 10 %; in 30 % of the tables a part of that
is the same for a number of workers, or of servers, as it is where nodes differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from coach_research.estimators.evaluation import Speeds

Law = Callable[[float, float], float]  #: epochs/s with w workers and s servers, in any unit
KINDS = ("parameter server", "ring", "server-bound", "stragglers", "saturating")
#: Laws of each kind, and parts of each measured grid.
LAWS, PARTS = 40, 12
#: Chosen before the first look at what it draws.
SEED = 20261126
#: Share of a table's cells that were measured in a slow minute, and by how much slower.
SPOILED, SLOWER = 0.04, (1.5, 5.0)
STEPS = (1, 2, 3, 4, 6, 8, 10, 12)


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its kind or model, and the speed in every cell."""

    kind: str
    speeds: Speeds


def _law(kind: str, dice: np.random.Generator) -> Law:
    def drawn(low: float, high: float, left_out: float = 0.0) -> float:
        value = math.exp(dice.uniform(math.log(low), math.log(high)))
        return 0.0 if dice.random() < left_out else value

    form = int(dice.integers(3))
    if kind == "parameter server":
        b, c, d = drawn(0.01, 1, 0.1), drawn(0.02, 2, 0.2), drawn(0.002, 0.2, 0.3)
        e, f = drawn(0.0005, 0.05, 0.3), drawn(0.01, 2, 0.3)
        return lambda w, s: 1 / (1 / w + b + c * w / s + d * w + e * s + f / s)
    if kind == "ring":
        b, c, d = drawn(0.01, 0.5, 0.2), drawn(0.02, 1.5), drawn(0.001, 0.15, 0.3)
        return lambda w, _: 1 / (1 / w + b + c * (w - 1) / w + d * (w - 1))
    if kind == "server-bound":
        b, c, d = drawn(0.005, 0.2, 0.3), drawn(0.1, 3), drawn(0.001, 0.05, 0.3)
        g, h = drawn(0.02, 1), drawn(0.1, 3)
        laws: list[Law] = [
            lambda w, s: 1 / (max(1 / w, c / s) + b + d * w),
            lambda w, s: 1 / (max(1 / w, g * w / s) + b + d * w),
            lambda w, s: min(w / (1 + d * w * w), s / h) / (1 + b * w),
        ]
        return laws[form]
    if kind == "stragglers":
        k, b, q, c = drawn(0.05, 1), drawn(0.01, 0.2, 0.3), drawn(0.002, 0.1), drawn(0.02, 1)
        laws = [
            lambda w, s: 1 / ((1 + k * math.log(w)) / w + b + q * w**1.5 + c / s),
            lambda w, s: 1 / ((1 + k * math.sqrt(2 * math.log(w))) / w + b + q * w + c * w / s),
            lambda w, s: 1 / ((1 / w + c * w / s) * (1 + 0.3 * k * (w - 1)) + b),
        ]
        return laws[form]
    k, r, power = drawn(0.5, 30), drawn(0.05, 10), drawn(0.3, 1)
    laws = [
        lambda w, s: w / (w + k) * s / (s + r),
        lambda w, s: (1 - math.exp(-w / k)) * (1 - math.exp(-s / r)) ** power,
    ]
    return laws[form % 2]


def _grid(dice: np.random.Generator) -> list[tuple[int, int]]:
    """3 to 12 workers and servers: every number, every second, or ever larger steps."""
    kind = int(dice.integers(3))
    sides = []
    for _ in range(2):
        every = (tuple(range(1, 13)), tuple(range(1, 13, 2)), STEPS)[kind]
        sides.append(every[: int(dice.integers(3, len(every) + 1))])
    return [(w, s) for w in sides[0] for s in sides[1]]


def laws(seed: int = SEED, each: int = LAWS) -> Iterator[Table]:
    """`each` tables of each kind of law."""
    for kind_number, kind in enumerate(KINDS):
        for number in range(each):
            dice = np.random.default_rng([seed, kind_number, number])
            law, grid, noise = _law(kind, dice), _grid(dice), dice.uniform(0.02, 0.10)
            by_place = dice.random() < 0.3
            axis = int(dice.integers(2))
            common = 0.7 * noise * dice.standard_normal(13)
            unit = math.exp(dice.uniform(-7, 7))
            own = (0.7 if by_place else 1.0) * noise * dice.standard_normal(len(grid))
            speeds = {}
            for at, alone in zip(grid, own.tolist(), strict=True):
                deviation = alone + (float(common[at[axis]]) if by_place else 0.0)
                speeds[at] = unit * law(*at) * math.exp(deviation)
            yield Table(kind, speeds)


def parts(models: Mapping[str, Speeds], seed: int = SEED, each: int = PARTS) -> Iterator[Table]:
    """`each` parts of each measured grid: largest numbers drawn from its upper half, four fifths of the cells kept."""
    for number, (model, speeds) in enumerate(models.items()):
        sides = [sorted({at[axis] for at in speeds}) for axis in (0, 1)]
        for part in range(each):
            dice = np.random.default_rng([seed, 100 + number, part])
            largest = [side[int(dice.integers(len(side) // 2, len(side)))] for side in sides]
            cells = [at for at in speeds if at[0] <= largest[0] and at[1] <= largest[1]]
            kept = {at: speeds[at] for at in cells if dice.random() < 0.8 or at == min(cells)}
            yield Table(model, kept)


def spoiled(tables: Iterator[Table], seed: int = SEED) -> Iterator[Table]:
    """The same, with some cells measured slower: the table's truth, as no estimator can know better."""
    for number, table in enumerate(tables):
        dice = np.random.default_rng([seed, 1000, number])
        slow = {at: float(dice.uniform(*SLOWER)) if dice.random() < SPOILED else 1.0 for at in table.speeds}
        yield Table(table.kind, {at: speed / slow[at] for at, speed in table.speeds.items()})
