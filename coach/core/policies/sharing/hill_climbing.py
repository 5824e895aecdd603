"""The first of the two steps: the best allocation of one job as if it were alone.

Thesis section 4.2 with its sign corrected: the gain of a worker is f(w+1, s) - f(w, s), that of a server
f(w, s+1) - f(w, s), with f the predicted speed in epochs/s (the thesis prints f(w, s) - f(w+1, s)). The climb
starts at the job's minimum and takes the larger gain, step by step, within the epoch budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from coach.core.cluster import Allocation
from coach.core.estimation.interval import conservative_value
from coach.core.estimation.speed import MIN_EFFICIENCY
from coach.core.policies.api.allocation import JobView, Objective, Reason, Step, kept

CHEAPEST = Objective.CHEAPEST

#: (workers, servers) added by one step: a worker or a server; where neither helps, both; where that does not help
#: either (a plateau or ripple in the prediction), two of them, or a step back.
RINGS = (
    ((1, 0), (0, 1)),
    ((1, 1),),
    ((2, 0), (0, 2), (2, 1), (1, 2), (2, 2), (1, -1), (-1, 1), (-1, 0), (0, -1)),
)

#: Differences in cost below this part of it are rounding.
ROUNDING = 1e-9

#: (tier, value) of an allocation for a job; larger is better.
Level = tuple[int, float]


@dataclass(frozen=True, slots=True, eq=False)
class Climb:
    """The climb of one job, with the parameters that all jobs share; `climber` caches one of each."""

    objective: Objective = Objective.SOONEST
    #: The minimum gain of a pod, as a part of the average contribution of the job's pods: it bounds the waste, and
    #: keeps the climb from following noise.
    least_efficiency: float = MIN_EFFICIENCY

    def cheapest(self, job: JobView) -> bool:
        """Whether the objective of `job`, or of the policy, is the lowest cost."""
        return self.objective is CHEAPEST or job.objective is CHEAPEST

    def level(self, job: JobView, allocation: Allocation) -> Level:
        """How good `allocation` is for `job` alone.

        Tier 1 keeps the limit - the epoch budget, or for the cheapest the deadline. Its value is the speed, or for the
        cheapest the negated cost. Tier 0 breaks the limit. Its value leads back to the limit: the negated cost, or for
        the cheapest the speed. Tier -1 is not affordable.
        """
        if not job.affordable(allocation):
            return -1, -job.epoch_cost(allocation)
        speed = job.speed(allocation)
        if self.cheapest(job):
            return (0, speed) if late(job, speed) else (1, -job.epoch_cost(allocation))
        return (1, speed) if within_epoch_budget(job, allocation) else (0, -job.epoch_cost(allocation))

    def __call__(self, job: JobView) -> tuple[Allocation | None, list[Step]]:
        """The best allocation of `job` alone (None where it can afford none), and the steps to it."""
        return kept(job, self, lambda: self._climb(job))

    def tier(self, job: JobView, allocation: Allocation) -> int:
        """The tier of `allocation`, see `level`."""
        tiers: dict[Allocation, int] = kept(job, (Climb.level, self), dict)
        if allocation not in tiers:
            tiers[allocation] = self.level(job, allocation)[0]
        return tiers[allocation]

    def _climb(self, job: JobView) -> tuple[Allocation | None, list[Step]]:
        here, at, steps = self._climbed(job, job.minimum, [])
        if job.minimum.servers == 0 < job.maximum.servers:
            # From all-reduce the first server may lead through a valley to something better.
            start = Allocation(job.minimum.workers, 1)
            ends = self.level(job, job.minimum), self.level(job, start)
            there, to, way = self._climbed(job, start, [self._step(job, (job.minimum, ends[0]), (start, ends[1]))])
            more = 0 if self.cheapest(job) else max(0, sum(to) - sum(at))
            if there > (here[0], here[1] * (1.0 + self.least_efficiency * more / sum(at))):
                here, at, steps = there, to, way
        if here[0] == 1:
            steps += self._pruned(job, at, here[1])
        return (None if here[0] < 0 else at), steps

    def _climbed(self, job: JobView, at: Allocation, steps: list[Step]) -> tuple[Level, Allocation, list[Step]]:
        """The top that a climb from `at` comes to, after `steps`."""
        here = self.level(job, at)
        while found := self._best(job, at, here):
            there, to = found
            steps.append(self._step(job, (at, here), (to, there)))
            at, here = to, there
        return here, at, steps

    def _pruned(self, job: JobView, at: Allocation, value: float) -> Iterator[Step]:
        """The better neighbours that were not taken, and why: `value` is that of `at`, in tier 1."""
        cheapest = self.cheapest(job)
        for workers, servers in ((1, 0), (0, 1), (-1, 0), (0, -1)) if cheapest else RINGS[0]:
            to = Allocation(at.workers + workers, at.servers + servers)
            if not to.within(job.minimum, job.maximum):
                continue
            gain = (-job.epoch_cost(to) if cheapest else job.speed(to)) - value
            if gain > abs(value) * ROUNDING:
                unit = "an epoch" if cheapest else "epochs/s"
                reason = Reason.TOO_LITTLE
                if self.level(job, to)[0] < 1:
                    reason = Reason.LATE if cheapest and job.affordable(to) else Reason.OVER_BUDGET
                yield Step(job.id, at, to, reason, gain, unit, job.epoch_cost(to))

    def _best(self, job: JobView, at: Allocation, here: Level) -> tuple[Level, Allocation] | None:
        """The move that gains most for each pod it moves, in the nearest ring with one that gains enough."""
        tier, value = here
        cheapest = self.cheapest(job)
        by_speed = tier == 1 and not cheapest
        hurrying = tier == 0 and cheapest
        least = value / sum(at) * self.least_efficiency if by_speed or hurrying else abs(value) * ROUNDING
        (least_workers, least_servers), (most_workers, most_servers) = job.minimum, job.maximum
        for ring in _around(at):
            best: tuple[Level, Level, Allocation] | None = None
            for to, added, moved in ring:
                if not least_workers <= to[0] <= most_workers or not least_servers <= to[1] <= most_servers:
                    continue
                enough = value + least * added
                if by_speed:
                    # `level`, with the checks first that reject most steps of a long climb.
                    there = 1, job.speed(to)
                    if there[1] <= enough:
                        continue
                    merit = 1, (there[1] - value) / moved
                    if best is not None and merit <= best[0]:
                        continue
                    if not (job.affordable(to) and within_epoch_budget(job, to)):
                        continue
                else:
                    there = self.level(job, to)
                    if there[0] > tier:
                        merit = there
                    elif there[0] == tier and there[1] > enough:
                        merit = tier, (there[1] - value) / moved
                    else:
                        continue
                if best is None or merit > best[0]:
                    best = merit, there, to
            if best is not None:
                return best[1:]
        return None

    def _step(self, job: JobView, before: tuple[Allocation, Level], after: tuple[Allocation, Level]) -> Step:
        (at, here), (to, there) = before, after
        cost = job.epoch_cost(to)
        inside = here[0] == there[0] == 1
        cheapest = self.cheapest(job)
        if cheapest and inside:
            return Step(job.id, at, to, Reason.COST, there[1] - here[1], "an epoch", cost)
        if inside:
            return Step(job.id, at, to, Reason.SPEED, there[1] - here[1], "epochs/s", cost)
        if cheapest:
            return Step(job.id, at, to, Reason.DEADLINE, job.speed(to) - job.speed(at), "epochs/s", cost)
        return Step(job.id, at, to, Reason.EPOCH_BUDGET, job.epoch_cost(at) - cost, "an epoch", cost)


#: The same climb for the same arguments: it is the key of its cached results (`kept`).
climber = lru_cache(Climb)


def within_epoch_budget(job: JobView, allocation: Allocation) -> bool:
    """Whether an epoch with `allocation` is within the job's epoch budget, if it has one."""
    budget = job.epoch_budget(allocation)
    return budget is None or job.epoch_cost(allocation) <= budget * (1 + ROUNDING)


def late(job: JobView, speed: float) -> bool:
    """Whether the job would end after its deadline at `speed` epochs/s, by `conservative_value` of its epochs."""
    left = job.remaining_epochs
    if job.deadline is None or left is None:
        return False
    return conservative_value(left.expected, left.high) > job.deadline * speed


@lru_cache(maxsize=1 << 16)
def _around(at: Allocation) -> tuple[tuple[tuple[Allocation, int, int], ...], ...]:
    """The rings around an allocation: (new allocation, pods it adds or 0, pods it moves)."""
    return tuple(
        tuple(
            (
                Allocation(at.workers + workers, at.servers + servers),
                max(workers + servers, 0),
                abs(workers) + abs(servers),
            )
            for workers, servers in ring
        )
        for ring in RINGS
    )
