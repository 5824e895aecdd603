"""Spot and on-demand machines for one job with a deadline and a budget, both hard.

A spot machine is cheap and may go; an on-demand machine is dear and stays. The job may wait for spot, take one or more
workers of either kind, and change between them, each time for `change` hours in which it pays and does not train.

Before each step the job takes the cheapest thing after which on-demand machines could still end it in time, within the
money, whatever happens to spot in the step. A job of fixed size can wait for no longer than its deadline is loose. An
elastic one can wait longer, as more workers at once catch up, and it trains with several while spot is there. The rule
has no published source; Uniform Progress (`coach_research.policies.uniform_progress`) is what it is compared with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from coach.core.cluster import CapacityType

#: Before anything was seen, spot counts as there for so many of so many hours: with little, a job takes more workers.
SEEN_THERE, SEEN_HOURS = 1.0, 4.0
#: Fewer workers are taken where that saves so many times what the change costs.
WORTH_A_CHANGE = 2.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Prices of a machine for an hour, hours of a `change`, hours from one look to the next, and speeds.

    `speeds`: with 1, 2, ... workers, in multiples of one worker's. `machines`: how many these pay; without it one each.
    `kept`: whether what spot trained in a step counts where it goes before the step's end.
    """

    spot: float
    on_demand: float
    change: float
    step: float
    speeds: tuple[float, ...] = (1.0,)
    machines: tuple[float, ...] = ()
    kept: bool = True

    def rate(self, holding: Holding) -> float:
        """What it costs for an hour."""
        price = {CapacityType.NOTHING: 0.0, CapacityType.SPOT: self.spot, CapacityType.ON_DEMAND: self.on_demand}[
            holding.kind
        ]
        machines = self.machines[holding.workers - 1] if self.machines and holding.workers else holding.workers
        return price * machines if machines else 0.0


@dataclass(frozen=True, slots=True)
class Holding:
    """Machines of one kind, a worker on each; `loading`: hours until they train."""

    kind: CapacityType = CapacityType.NOTHING
    workers: int = 0
    loading: float = 0.0

    def changed(self, kind: CapacityType, workers: int, change: float) -> Holding:
        """These machines, or others, which have yet to load."""
        same = kind is self.kind and workers == self.workers
        return self if same else Holding(kind, workers, change if workers else 0.0)

    def trained(self, hours: float, speeds: tuple[float, ...]) -> float:
        """Work done in `hours`, in hours of one worker."""
        return speeds[self.workers - 1] * max(0.0, hours - self.loading) if self.workers else 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    """A job at one instant. `hours` until its deadline; `work` left in hours of one worker; `money` left.

    `available`: whether spot is to be had now; what is held of it then stays until the next look. `elapsed` hours since
    its start, in which it did `done` of its work, and spot was there for `there` hours.
    """

    hours: float
    work: float
    money: float
    available: bool
    holding: Holding
    elapsed: float = 0.0
    done: float = 0.0
    there: float = 0.0


def elastic(now: Situation, terms: Terms) -> Holding:
    """Coach's choice: the cheapest machines for the next step after which on-demand ones could still end the job.

    While spot is there: as many spot workers as do the rest, if it is there as often as it was so far. Without it the
    job waits. When that would lose the deadline it takes the fewest on-demand workers that keep it, and where none
    does, those that are least late, unless spot could still keep it, or it is over. Where these cost too much, money
    wins: nothing is taken that it does not cover for a step.
    """
    for choice in itertools.chain(_on_spot(now, terms), [Holding()]):
        if _pays(now, terms, choice) and _still_ends(now, terms, choice):
            return choice
    for choice in _on_demand(now, terms):
        if _ends(now.hours, now.work, now.money, terms, choice):
            return choice
    may_keep_it = any(_needed(now.work, terms, choice) <= now.hours for choice in _on_spot(now, terms))
    late = [choice for choice in _on_demand(now, terms) if _ends(math.inf, now.work, now.money, terms, choice)]
    if late and not may_keep_it and (now.hours > 0.0 or not now.available):
        return min(late, key=lambda choice: _needed(now.work, terms, choice))
    return next((choice for choice in _on_spot(now, terms) if _pays(now, terms, choice)), Holding())


def _on_spot(now: Situation, terms: Terms) -> Iterator[Holding]:
    """As many as are wanted, then as many as are allowed, and fewer; none while spot is not there."""
    if now.available:
        yield now.holding.changed(CapacityType.SPOT, _spot_workers(now, terms), terms.change)
        for workers in range(len(terms.speeds), 0, -1):
            yield now.holding.changed(CapacityType.SPOT, workers, terms.change)


def _spot_workers(now: Situation, terms: Terms) -> int:
    """The fewest with which the rest is done in time, by how often spot was there; all that are allowed, if none is."""
    share = (now.there + SEEN_THERE) / (now.elapsed + SEEN_HOURS)
    every = range(1, len(terms.speeds) + 1)
    wanted = next((n for n in every if terms.speeds[n - 1] * share * now.hours >= now.work), every[-1])
    held = now.holding
    if held.kind is CapacityType.SPOT and wanted < held.workers:
        saved = now.work * (held.workers / terms.speeds[held.workers - 1] - wanted / terms.speeds[wanted - 1])
        if saved < WORTH_A_CHANGE * terms.change * held.workers:
            return held.workers
    return wanted


def _on_demand(now: Situation, terms: Terms) -> Iterator[Holding]:
    """What runs, then the fewest workers."""
    if now.holding.kind is CapacityType.ON_DEMAND:
        yield now.holding
    for workers in range(1, len(terms.speeds) + 1):
        yield now.holding.changed(CapacityType.ON_DEMAND, workers, terms.change)


def _pays(now: Situation, terms: Terms, choice: Holding) -> bool:
    return terms.rate(choice) * terms.step <= now.money


def _still_ends(now: Situation, terms: Terms, choice: Holding) -> bool:
    """Whether on-demand machines could end the job after a step with `choice`, which is spot or nothing."""
    work, hours = now.work, terms.step
    if terms.kept:
        work -= choice.trained(hours, terms.speeds)
    else:  # an epoch, which begins once they are loaded
        hours += choice.loading
    money = now.money - terms.rate(choice) * hours
    return work <= 0.0 or shortest(work, money, terms) <= now.hours - hours + 1e-9


def shortest(work: float, money: float, terms: Terms) -> float:
    """Hours in which fresh on-demand machines end the work within the money; infinite where they cannot."""
    fresh = (Holding(CapacityType.ON_DEMAND, n, terms.change) for n in range(1, len(terms.speeds) + 1))
    return min(
        (_needed(work, terms, way) for way in fresh if _ends(math.inf, work, money, terms, way)), default=math.inf
    )


def _needed(work: float, terms: Terms, way: Holding) -> float:
    return way.loading + work / terms.speeds[way.workers - 1]


def _ends(hours: float, work: float, money: float, terms: Terms, way: Holding) -> bool:
    """Whether these on-demand machines end the work in time and within the money."""
    needed = _needed(work, terms, way)
    return needed <= hours + 1e-9 and terms.rate(way) * needed <= money + 1e-9
