"""On which nodes a job with `spec.spot` trains its next epoch: the rule of `coach.core.policies.spot`, on a real job.

A step is an epoch, which is lost with its node: a decision counts none of it. Until the deadline counts the slow end of
what is predicted: of the epochs that remain, and of their seconds with the fewest workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coach.core.cluster import Allocation, CapacityType, Node
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle import forecast
from coach.core.money import HOUR, NANO, PriceBook, of_nodes
from coach.core.policies.spot import Holding, Situation, Terms, elastic, shortest

#: A change of nodes takes this many seconds, or more where the job's own took more.
CHANGE_SECONDS = 10.0
#: On-demand nodes are left for a wait of this many changes or more.
WORTH_WAITING = 3.0
#: Epochs that remain are at most this many times those that are expected.
MOST_EPOCHS = 3.0
#: A job that can only wait looks again after this many seconds, and at each change of the nodes.
LOOK_SECONDS = 600.0


class Choice(NamedTuple):
    """Nodes, with an allocation where speeds are known; `look_again`: seconds after which waiting is decided anew."""

    kind: CapacityType
    allocation: Allocation | None
    message: str
    look_again: float = LOOK_SECONDS


def by_kind(nodes: Iterable[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The spot nodes, and the others."""
    known = tuple(nodes)
    return tuple(node for node in known if node.spot), tuple(node for node in known if not node.spot)


def choose(job: Job, at: float, spot: Sequence[Node], others: Sequence[Node], *, has_spot: bool) -> Choice:
    """The nodes of the next epoch: of the `spot` ones, or of the `others`; each empty where they could never hold it.

    `has_spot`: spot ones have room for it now.
    """
    assert job.spec.spot is not None
    if not others:
        kind = CapacityType.SPOT if has_spot else CapacityType.NOTHING
        return Choice(kind, None, "no on-demand nodes can hold it")
    if job.speed is None:
        return Choice(CapacityType.SPOT if has_spot else CapacityType.ON_DEMAND, None, "its speed is not known yet")
    sizes = _sizes(job)
    seconds = [forecast.predicted_seconds(job, size, 1.0) for size in sizes]
    slowest, epochs = seconds[0], forecast.remaining(job).epochs
    assert slowest is not None
    work = slowest.high * min(epochs.high, MOST_EPOCHS * epochs.expected) / HOUR
    dear = _book(job, others)
    machines = [dear.rate(job.spec.resources.total(size)) for size in sizes]
    terms = Terms(
        spot=_book(job, spot or others).rate(job.spec.resources.total(sizes[0])) * HOUR,
        on_demand=machines[0] * HOUR,
        change=max(CHANGE_SECONDS, job.times.restart) / HOUR,
        step=max(CHANGE_SECONDS, slowest.high) / HOUR,
        speeds=tuple(slowest.expected / one.expected for one in seconds if one is not None),
        machines=tuple(one / machines[0] if machines[0] else 1.0 for one in machines),
        kept=False,
    )
    now = Situation(
        hours=(job.progress.submitted_at + job.spec.spot.deadline - at) / HOUR,
        work=work,
        money=math.inf if job.money.available is None else job.money.available / NANO,
        available=has_spot,
        holding=_holding(job, sizes),
        elapsed=(at - job.progress.submitted_at) / HOUR,
        there=job.progress.spot_seconds / HOUR,
    )
    needed = shortest(work, now.money, terms)
    found = elastic(now, terms)
    said = f"{_hours(now.hours)} until its deadline, on-demand nodes would take {_hours(needed)}"
    waits = job.decision.on is CapacityType.ON_DEMAND and job.reason is Reason.WAITING_CAPACITY
    if has_spot and needed > now.hours and waits:
        return Choice(CapacityType.SPOT, sizes[0], said)  # on-demand nodes have no room
    if found.kind is not CapacityType.NOTHING:
        return Choice(found.kind, sizes[found.workers - 1], said)
    if needed <= now.hours:
        wait = max(1.0, (now.hours - needed - terms.step) * HOUR)
        if now.holding.kind is CapacityType.ON_DEMAND and wait < WORTH_WAITING * terms.change * HOUR:
            return Choice(now.holding.kind, sizes[now.holding.workers - 1], said)
        return Choice(
            found.kind, None, f"takes on-demand nodes {_hours(needed + terms.step)} before its deadline", wait
        )
    if has_spot:  # whether its money covers an epoch there is seen next
        return Choice(CapacityType.SPOT, sizes[0], said)
    if spot or now.hours > 0.0:
        wait = max(1.0, now.hours * HOUR) if now.hours > 0.0 else LOOK_SECONDS
        return Choice(found.kind, None, "its money does not end it on on-demand nodes", wait)
    return Choice(CapacityType.ON_DEMAND, sizes[0], said)


def _sizes(job: Job) -> list[Allocation]:
    """By number of workers: the allocation with the cheapest epoch."""
    best: dict[int, Allocation] = {}
    for one in sorted(forecast.allocations(job), key=lambda at: (forecast.predicted_cost(job, at), at)):
        best.setdefault(one.workers, one)
    return [best[workers] for workers in sorted(best)]


def _book(job: Job, nodes: Iterable[Node]) -> PriceBook:
    return job.spec.billed_by(of_nodes(tuple(nodes), job.spec.resources.worker.resources))


def _holding(job: Job, sizes: Sequence[Allocation]) -> Holding:
    """What it holds; of a probe's allocation, the next smaller one."""
    if not job.gang.pods or job.decision.on in (None, CapacityType.NOTHING):
        return Holding()
    workers = sum(size.workers <= job.gang.held.workers for size in sizes)
    return Holding(job.decision.on, max(1, workers))


def _hours(hours: float) -> str:
    """`52.0 h`, `12 min`, `40 s`; of what the money does not pay, in words."""
    if not math.isfinite(hours):
        return "more than its money"
    seconds = max(0.0, hours * HOUR)
    return f"{hours:.1f} h" if hours >= 1.0 else f"{seconds / 60:.0f} min" if seconds >= 120.0 else f"{seconds:.0f} s"
