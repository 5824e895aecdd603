"""A job on one zone's published availability of spot machines, under any policy of `coach.core.policies.spot`.

A trace is a JSON file of skypilot-org/spot-traces: `metadata.gap_seconds`, and in `data` how many machines were to be
had at each tick. The files are read where they are; none is committed, as they have no licence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coach.core.cluster import CapacityType
from coach.core.policies.spot import Holding, Situation, Terms

Choose = Callable[[Situation, Terms], Holding]


@dataclass(frozen=True, slots=True)
class Trace:
    """Machines that are to be had at each tick of `step` hours [n]."""

    name: str
    step: float
    machines: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Raises OSError, KeyError and ValueError."""
        found = json.loads(path.read_text())
        return cls(path.stem, found["metadata"]["gap_seconds"] / 3600, np.array(found["data"], dtype=int))


@dataclass(frozen=True, slots=True)
class Ran:
    """What a job cost, and the hours it took; `work` left at the deadline, 0.0 where it was met."""

    cost: float
    hours: float
    work: float
    changes: int


def run(  # noqa: PLR0917
    choose: Choose, trace: Trace, start: int, work: float, deadline: float, terms: Terms, money: float
) -> Ran:
    """Run a job of `work` hours of one worker from tick `start` on, until it ends or its deadline passes.

    What spot has trained when it goes is kept: its notice is long enough for a checkpoint.
    """
    cost = elapsed = 0.0
    left, seen, changes, holding = work, 0.0, 0, Holding()
    for there in trace.machines[start:]:
        step = min(terms.step, deadline - elapsed)
        if step <= 1e-9:
            break
        if holding.kind is CapacityType.SPOT and not there:
            holding = Holding()
        now = Situation(deadline - elapsed, left, money - cost, bool(there), holding, elapsed, work - left, seen)
        before, holding = holding, choose(now, terms)
        changes += holding.kind is not CapacityType.NOTHING and holding is not before
        speed = terms.speeds[holding.workers - 1] if holding.workers else 0.0
        if speed and holding.loading + left / speed <= step:
            step = holding.loading + left / speed
            return Ran(cost + terms.rate(holding) * step, elapsed + step, 0.0, changes)
        cost += terms.rate(holding) * step
        left -= holding.trained(step, terms.speeds)
        holding = Holding(holding.kind, holding.workers, max(0.0, holding.loading - step))
        elapsed += step
        seen += step * bool(there)
    return Ran(cost, elapsed, left, changes)


def bound(trace: Trace, start: int, work: float, deadline: float, terms: Terms) -> float:
    """What one worker costs at least that knows the trace: spot for all its runs but their changes, on-demand for free.

    A lower bound: changes to on-demand are not paid.
    """
    there = trace.machines[start : start + round(deadline / trace.step)] > 0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(int), [0]])))
    runs = (edges[1::2] - edges[::2]) * trace.step
    useful = np.sort(np.maximum(runs - terms.change, 0.0))[::-1]
    spot, number = 0.0, 0
    while number < len(useful) and spot < work and useful[number] > 0.0:
        spot, number = spot + float(useful[number]), number + 1
    spot = min(spot, work)
    return terms.spot * (spot + number * terms.change) + terms.on_demand * (work - spot)
