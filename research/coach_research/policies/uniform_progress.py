"""Uniform Progress, and the greedy policy it is compared with: spot and on-demand machines under a deadline.

Source: Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines" (NSDI 2024), sections 4 and 5. One
worker; the budget has no part in it.
"""

from __future__ import annotations

from coach.core.cluster import CapacityType
from coach.core.policies.spot import Holding, Situation, Terms


def uniform_progress(now: Situation, terms: Terms) -> Holding:
    """Follow the line from nothing at the start to all work at the deadline.

    Spot where it is there (exploitation), also when behind (taking risks). Without it on-demand when behind the line
    (catching up), until two changes' worth ahead of it (hysteresis). Near the deadline on-demand to the end (safety
    net).
    """
    if (near := _safety_net(now, terms)) is not None:
        return near
    if now.available:
        return now.holding.changed(CapacityType.SPOT, 1, terms.change)
    line = now.elapsed * (now.done + now.work) / (now.elapsed + now.hours)
    ahead = 2 * terms.change if now.holding.kind is CapacityType.ON_DEMAND else 0.0
    if now.done < line + ahead:
        return now.holding.changed(CapacityType.ON_DEMAND, 1, terms.change)
    return Holding()


def greedy(now: Situation, terms: Terms) -> Holding:
    """Spot where it is there, else wait; near the deadline on-demand to the end."""
    if (near := _safety_net(now, terms)) is not None:
        return near
    return now.holding.changed(CapacityType.SPOT, 1, terms.change) if now.available else Holding()


def _safety_net(now: Situation, terms: Terms) -> Holding | None:
    """On-demand once no more than two changes are left to lose; spot that runs is kept until it goes."""
    if now.hours - terms.step >= now.work + 2 * terms.change:
        return None
    if now.holding.kind is CapacityType.SPOT and now.available:
        return now.holding
    return now.holding.changed(CapacityType.ON_DEMAND, 1, terms.change)
