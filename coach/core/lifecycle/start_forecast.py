"""When jobs that wait for room are expected to start: their queue, run ahead under many possible ends of the others.

The queue's own strict rule: in its order, each job starts as soon as its smallest gang fits,
and none passes the one before it. A running job is taken to keep its pods until it ends. It may also shrink for those
that wait, at the end of an epoch; to count on that predicts starts that are too early.

How long each job takes is predicted as an 80 % interval (`coach.core.lifecycle.forecast`). Each of SCENARIOS futures
takes one length for each job from it, from quantiles that each job has once, in an order of its own (a Latin
hypercube, McKay, Beckman and Conover 1979, by multiplication modulo a prime). The starts of a job in all of them are
its interval. Nothing is random: the same question has the same answer.

Errors of lengths have a part in common: jobs of one queue take more than predicted together, as they shrink for those
that wait and are predicted by the same rules. Without it the sum over a queue would look far too certain (ranks by
Iman and Conover 1982). Both choices, that jobs keep their pods and COMMON, were made on jobs of another seed than the
benchmark's (`benchmarks/waits.py`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

import numpy as np

from coach.core.cluster import NOTHING, Node, Resources, Role
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval
from coach.core.jobs.job import Job, Phase
from coach.core.lifecycle import forecast
from coach.core.lifecycle.cluster_state import queue_key

#: Possible futures, a prime.
SCENARIOS = 41
#: Of a normal distribution whose 10 and 90 % quantiles are -1 and 1: one quantile for each future.
QUANTILES = [NormalDist(0.0, 1 / NormalDist().inv_cdf(0.9)).inv_cdf((k + 0.5) / SCENARIOS) for k in range(SCENARIOS)]
#: Share of the variance of the logarithms of lengths that all jobs have in common.
COMMON = 0.2
#: With more nodes than this, their free capacity is taken together.
MAX_NODES = 16
#: A job of which nothing is known takes as long as the others in the median, up to this many times as long or short.
UNKNOWN_SPREAD = 3.0


def expected_starts(jobs: Iterable[Job], nodes: Sequence[Node], now: float) -> dict[str, Interval]:
    """In how many seconds each job that waits for room starts, as an 80 % interval.

    Without those whose start depends on an end that nothing predicts: of a job that never reaches its target, say.
    """
    live = sorted((job for job in jobs if not job.ended and not job.stop.suspend), key=queue_key)
    waiting = [job for job in live if not job.gang.pods]
    if not waiting:
        return {}
    known = {job.name: length for job in live if (length := _length(job, now)) is not None}
    usual = median(length.expected for length in known.values()) if known else math.inf
    unknown = Interval(usual / UNKNOWN_SPREAD, usual, usual * UNKNOWN_SPREAD)
    queue = _queue_of(live, nodes)
    lengths = _futures([known.get(job.name, unknown) for job in live]).tolist()
    starts = np.array([_starts(queue, row) for row in lengths])
    low, middle, high = np.quantile(starts, (0.1, 0.5, 0.9), axis=0, method="inverted_cdf")
    found = zip(waiting, low, middle, high, strict=True)
    return {job.name: Interval(float(a), float(b), float(c)) for job, a, b, c in found if math.isfinite(c)}


def _length(job: Job, now: float) -> Interval | None:
    """Seconds that a job still holds its pods, or will; None where nothing says so."""
    if job.phase is Phase.ENDING:
        return Interval(0.0, 0.0, 0.0)
    left = forecast.seconds_left(job, forecast.remaining(job), now)
    if left is not None and math.isfinite(left.high):
        return left
    if job.spec.time_limit is not None:  # Slurm knows no more than this
        limit = max(1.0, job.spec.time_limit - job.progress.run_seconds)
        return Interval(limit / 10, limit / 2, limit)
    return None


def _futures(lengths: Sequence[Interval]) -> FloatArray:
    """Seconds [SCENARIOS, job]: on either side of the expected value logarithms are normal, up to the bound at 90 %."""
    count = len(lengths)
    low, middle, high = np.array([[*one] for one in lengths]).T
    with np.errstate(divide="ignore", invalid="ignore"):
        down = np.where((low > 0) & (middle > low) & np.isfinite(middle), np.log(middle / low), 0.0)
        up = np.where((middle > 0) & (high > middle) & np.isfinite(high), np.log(high / middle), 0.0)
    number = np.arange(count)
    order = np.arange(SCENARIOS)[:, None] * (1 + number % (SCENARIOS - 1)) + 7 * number**2 + 13 * (number // SCENARIOS)
    own, common = np.array(QUANTILES)[order % SCENARIOS], np.array(QUANTILES)[np.arange(SCENARIOS) * 23 % SCENARIOS]
    mixed = math.sqrt(1.0 - COMMON) * own + math.sqrt(COMMON) * common[:, None]
    z = np.array(QUANTILES)[mixed.argsort(axis=0).argsort(axis=0)]  # each quantile once, in the order of the mixed ones
    return np.asarray(middle * np.exp(np.where(z < 0, down, up) * z))


#: Resources by the index of a node.
Room = list[tuple[int, Resources]]


@dataclass(frozen=True, slots=True)
class _Queue:
    """What all futures have in common; jobs are known by their index."""

    free: list[Resources]  #: of each node
    held: list[tuple[int, Room]]  #: by the jobs that run, until their ends
    #: The pods of the smallest gang of each job that waits, the largest first.
    waiting: list[tuple[int, list[Resources]]]


def _queue_of(live: Sequence[Job], nodes: Sequence[Node]) -> _Queue:
    together = len(nodes) > MAX_NODES
    free = [sum((node.capacity for node in nodes), NOTHING)] if together else [node.capacity for node in nodes]
    place = {node.name: 0 if together else index for index, node in enumerate(nodes)}
    queue = _Queue(free, [], [])
    for number, job in enumerate(live):
        if job.gang.pods:
            room = [(place[one.pod.node], one.pod.requests) for one in job.gang.pods.values() if one.pod.node in place]
            queue.held.append((number, room))
            for where, requests in room:
                free[where] -= requests
            continue
        least, of = job.minimum, job.spec.resources
        counts = {Role.SCHEDULER: of.schedulers, Role.SERVER: least.servers, Role.WORKER: least.workers}
        pods = [of.of(role) for role, count in counts.items() for _ in range(count)]
        pods.sort(key=lambda one: (one.gpu, one.cpu, one.memory), reverse=True)
        queue.waiting.append((number, pods))
    return queue


def _starts(queue: _Queue, lengths: Sequence[float]) -> list[float]:
    """The start of each waiting job in seconds, where job i takes `lengths[i]`; infinite where it never fits."""
    free = list(queue.free)
    back = [(lengths[number], number, room) for number, room in queue.held]
    heapq.heapify(back)
    clock, starts = 0.0, list[float]()
    for number, pods in queue.waiting:
        while (placed := _placed(pods, free)) is None and back:
            clock, _, given = heapq.heappop(back)
            for where, requests in given:
                free[where] += requests
        if placed is None:
            return starts + [math.inf] * (len(queue.waiting) - len(starts))
        starts.append(clock)
        for where, requests in placed:
            free[where] -= requests
        heapq.heappush(back, (clock + lengths[number], number, placed))
    return starts


def _placed(pods: Sequence[Resources], free: Sequence[Resources]) -> Room | None:
    """Where the pods fit, each on the first node that has room; None where one does not."""
    left, placed = list(free), Room()
    for requests in pods:
        where = next((index for index, room in enumerate(left) if requests.fits(room)), None)
        if where is None:
            return None
        left[where] -= requests
        placed.append((where, requests))
    return placed
