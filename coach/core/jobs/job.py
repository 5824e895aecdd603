"""A job's state: the fold of its records (events and actions).

`coach.core.jobs.fold` changes a `Job` by one record; `coach.core.lifecycle.reducer` decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from coach.core.cluster import NOTHING, Allocation, CapacityType, Instance, Node, PodId, by_node
from coach.core.estimation.convergence import CurvePoint
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedModel, SpeedPoint
from coach.core.jobs import actions as act
from coach.core.jobs.epoch import Epoch, EpochKind, measuring
from coach.core.jobs.overheads import PRIOR_RESTART_SECONDS, Times
from coach.core.jobs.parts import JobAttempts, JobDecision, JobGang, JobModels, JobMoney, JobProgress, JobStop
from coach.core.jobs.reasons import Reason, State
from coach.core.money import BY_NODE, Money, PriceBook, of_nodes
from coach.core.spec.job import JobSpec, TrainingJob
from coach.core.spec.program import Goal
from coach.core.spec.training import Mode

#: Seconds that a gang is paid for after its epoch's deadline, in which it is stopped, settled and released.
LEASE_SECONDS = 0.5

#: Seconds for which a program does not try again a number of workers that found no room; twice as long each time.
NO_ROOM_SECONDS = 600.0

#: Number of curves, each fitted after a full epoch, that must agree that a target is unreachable.
KEPT_CURVES = 3
#: A fit that gives a target less than this probability gives it no chance.
NO_CHANCE = 0.02


#: A speed measured for this many seconds has half the weight of one measured for very long. A longer measurement
#: averages out the noise of single steps, but not changes of the machine's speed over hours.
HALF_WEIGHT_SECONDS = 2.0


def weight_of(seconds: float) -> float:
    """Weight of a speed that was measured for `seconds`, from 0 to 1 (`SpeedPoint.weight`)."""
    return max(seconds, 1e-3) / (max(seconds, 1e-3) + HALF_WEIGHT_SECONDS)


class Phase(StrEnum):
    """Current activity of a job that has not ended."""

    IDLE = "idle"  #: nothing is under way; its next step can be decided
    DEPLOYING = "deploying"  #: pods are starting, or excess pods are ending, before an epoch
    RUNNING = "running"  #: an epoch runs
    FITTING = "fitting"  #: the models are being fitted to the last epoch
    PAUSED = "paused"  #: backing off until a timer, or stopped by the user
    ENDING = "ending"  #: the end is decided, its pods are being released
    ENDED = "ended"


@dataclass(slots=True)
class _OfEpochs:
    """Values computed from a job's epochs on first use, and kept until they change."""

    times: Times | None = None
    full_epoch_count: int | None = None


@dataclass(slots=True)
class Job:
    """State of a job. Only `fold.apply` changes it."""

    name: str
    job_file: TrainingJob
    money: JobMoney
    progress: JobProgress
    state: State = State.QUEUED
    reason: Reason = Reason.SUBMITTED
    message: str = ""
    phase: Phase = Phase.IDLE
    epochs: MutableSequence[Epoch] = field(default_factory=list)
    models: JobModels = field(default_factory=JobModels)
    decision: JobDecision = field(default_factory=JobDecision)
    gang: JobGang = field(default_factory=JobGang)
    attempts: JobAttempts = field(default_factory=JobAttempts)
    stop: JobStop = field(default_factory=JobStop)
    _of_epochs: _OfEpochs = field(default_factory=_OfEpochs, init=False, repr=False, compare=False)

    def goes_on_in(self, programs: Mapping[PodId, str]) -> bool:
        """Whether its program runs in pods that an earlier handler left, by their identities."""
        return (
            self.spec.program is not None
            and not (self.ended or self.decision.ending or self.stop.cancel or self.stop.by_user)
            and self.gang.group != ""
            and self.gang.pods.keys() == set(self.gang.members)
            and all(
                held.ready and not held.releasing and programs.get(pod) == held.address
                for pod, held in self.gang.pods.items()
            )
        )

    # -- derived values -------------------------------------------------------------------------------

    @property
    def spec(self) -> JobSpec:
        """The job's description in its file."""
        return self.job_file.spec

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self.state.ended

    @property
    def minimum(self) -> Allocation:
        """Smallest allocation the job file allows."""
        return self.spec.limits.smallest

    @property
    def maximum(self) -> Allocation:
        """Largest allocation the job file allows; of a program, less than what found no room, for a while after that.

        To try it again ends the program for nothing, so each time the while is twice as long.
        """
        most = self.spec.limits.largest
        if self.spec.program is None or not self.decision.missed or not self.epochs:
            return most
        again = self.decision.missed_at + NO_ROOM_SECONDS * 2.0 ** min(len(self.decision.missed) - 1, 10)
        if self.epochs[-1].ended_at >= again:
            return most
        return Allocation(max(self.minimum.workers, self.decision.missed[-1].workers - 1), most.servers)

    @property
    def price_book(self) -> PriceBook:
        """The prices of its next reservation."""
        if self.spec.prices in BY_NODE:
            return self.money.node_prices or self.money.billed_book or self.spec.price_book
        return self.spec.price_book

    def see_nodes(self, nodes: Sequence[Node]) -> bool:
        """Take the prices and kinds of the nodes as they are now; whether they matter to it."""
        if self.spec.speed_by_kind:
            self.gang.node_kinds = {node.name: node.kind for node in nodes}
        prices = self.spec.prices
        if not isinstance(prices, str) or prices not in BY_NODE:
            return bool(self.spec.speed_by_kind)
        if self.decision.on in (CapacityType.SPOT, CapacityType.ON_DEMAND):
            self.gang.barred = frozenset(
                node.name for node in nodes if node.spot is not (self.decision.on is CapacityType.SPOT)
            )
        mine = [node for node in nodes if node.name not in self.gang.barred] or nodes
        worker = self.spec.resources.worker.resources
        planned = replace(of_nodes(mine, worker, prices), nodes=of_nodes(nodes, worker, prices).nodes)
        self.money.node_prices = self.spec.billed_by(planned)
        return True

    @property
    def pace(self) -> float:
        """How fast the slowest of its nodes is, by their kinds; before it has any, the slowest of all."""
        kinds, factors = self.gang.node_kinds, self.spec.speed_by_kind
        if not kinds or not factors:
            return self.gang.last_pace
        nodes = {held.pod.node for held in self.gang.pods.values() if held.pod.node in kinds} or kinds
        return min(factors.get(kinds[node], 1.0) for node in nodes)

    def book_on(self, nodes: tuple[tuple[str, Instance], ...]) -> PriceBook:
        """The same on these nodes, where they are what it is billed by."""
        if not nodes:
            return self.spec.price_book
        dearest = max((one for _, one in nodes), key=lambda one: one.hour)
        currency = self.spec.price_book.currency
        return PriceBook("nodes", currency, 0.0, 0.0, 0.0, instance=dearest, nodes=nodes)

    @property
    def billed_rate(self) -> float:
        """Currency units a second of what it holds, at the prices that it pays."""
        book = self.money.billed_book or self.price_book
        return book.rate(self.money.billed_resources, by_node(self.money.billed_pods))

    def cost_until(self, until: float) -> Money:
        """What it has to pay of what it held since `billed_until`, and its calls."""
        return (self.money.billed_book or self.price_book).cost(
            self.money.billed_resources,
            until - self.money.billed_until,
            self.money.unbilled_invocations,
            placed=by_node(self.money.billed_pods),
            since=self.money.billed_until,
            paid=self.money.machines_paid,
        )

    def running_cost(self, now: float) -> Money:
        """What a program has cost since it was last paid for; of what is reserved."""
        if self.spec.program is None or self.money.billed_resources == NOTHING:
            return 0
        until = max(self.money.billed_until, min(now, self.money.lease_until))
        return min(self.cost_until(until), self.money.reserved)

    @property
    def metric(self) -> str:
        """The target's measure, or that of the best model."""
        return self.spec.metric

    @property
    def target(self) -> float | None:
        """See JobSpec.target_value."""
        return self.spec.target_value

    @property
    def best(self) -> Epoch | None:
        """The full epoch with the best model so far, the first of equal ones."""
        return self.best_of(self.epochs)

    def best_of(self, epochs: Sequence[Epoch]) -> Epoch | None:
        """The same of these epochs alone."""
        metric, sign = self.metric, 1.0 if self.spec.goal is Goal.MINIMIZE else -1.0
        known = [e for e in epochs if e.kind is EpochKind.FULL and e.report.value(metric) is not None]
        return min(known, key=lambda e: sign * (e.report.value(metric) or 0.0), default=None)

    @property
    def epochs_trained(self) -> float:
        """Number of samples seen divided by the size of the data set."""
        return self.epochs[-1].epochs_trained if self.epochs else 0.0

    @property
    def epoch_samples(self) -> int | None:
        """How many samples an epoch is, where it is not the whole data, and as far as that is known."""
        if self.spec.epoch is None:
            return None
        return self.epochs[-1].report.data_size if self.epochs else self.spec.epoch.samples

    @property
    def full_epochs(self) -> list[Epoch]:
        """The epochs that count for the stop rule."""
        return [epoch for epoch in self.epochs if epoch.kind is EpochKind.FULL]

    @property
    def full_epoch_count(self) -> int:
        """How many epochs count for the stop rule."""
        if self._of_epochs.full_epoch_count is None:
            self._of_epochs.full_epoch_count = len(self.full_epochs)
        return self._of_epochs.full_epoch_count

    def ordinal(self, number: int, kind: EpochKind) -> int:
        """What an epoch of this number is called: it counts the epochs of its kind."""
        if number == len(self.epochs) + 1:
            whole = self.full_epoch_count
            return 1 + (whole if kind is EpochKind.FULL else len(self.epochs) - whole)
        return 1 + sum(epoch.kind is kind for epoch in self.epochs[: number - 1])

    def name_of(self, order: act.RunEpoch) -> str:
        """`epoch 3`, or `mini-epoch 1`."""
        return f"{order.kind.words} {self.ordinal(order.number, order.kind)}"

    @property
    def evaluated_epochs(self) -> list[Epoch]:
        """The epochs with a loss: of the mini-epochs, only the first is evaluated."""
        return [epoch for epoch in self.epochs if self._evaluated(epoch)]

    @property
    def last_evaluated(self) -> Epoch | None:
        """The last epoch that was evaluated."""
        return next(filter(self._evaluated, reversed(self.epochs)), None)

    def value(self, epoch: Epoch) -> float:
        """The job's metric in an epoch that was evaluated."""
        found = epoch.report.value(self.metric)
        assert found is not None, f"{epoch.token} has no {self.metric}"
        return found

    def _evaluated(self, epoch: Epoch) -> bool:
        """Whether it has a loss, or, of a program, the job's metric."""
        return epoch.report.loss is not None or epoch.report.value(self.metric) is not None

    @property
    def times(self) -> Times:
        """Times of its epochs outside training."""
        if self._of_epochs.times is None:
            if self.spec.program is None:
                self._of_epochs.times = Times.of(self.epochs, shared=self.spec.mode is not Mode.ASYNC)
            else:
                self._of_epochs.times = Times.of_program(self.epochs)
        return self._of_epochs.times

    @property
    def change_seconds(self) -> float:
        """What a change of its workers takes: as measured, or a start after the wait that the queue expects."""
        fresh = self.times.fresh
        start = fresh.expected if fresh else PRIOR_RESTART_SECONDS
        return max(self.times.restart, self.gang.queue_wait + start) if self.gang.queue_wait else self.times.restart

    def epochs_changed(self) -> None:
        """Drop the cached values that were computed from the epochs."""
        self._of_epochs = _OfEpochs()

    @property
    def begins_anew(self) -> bool:
        """Whether it is a program that trains from its beginning whenever it is started."""
        return self.spec.program is not None and not self.spec.program.resumes

    @property
    def elastic(self) -> bool:
        """Whether its group goes on with other members: a program's where it forms it anew in the same process."""
        last = self.epochs[-1] if self.epochs else None
        return self.spec.elastic or (last is not None and last.report.regroups and last.group == self.gang.group)

    @property
    def stays(self) -> bool:
        """Whether its program goes on with the workers that it has, because to start it again has a price.

        One that cannot resume would begin from nothing. Any other reports twice with new workers before they change
        again: its first interval has their start in it, so the second is the first that measures their speed.
        """
        program = self.spec.program
        if program is None or not self.gang.group or any(held.releasing for held in self.gang.pods.values()):
            return False
        last = self.epochs[-1] if self.epochs else None
        if not program.resumes or last is None or last.group != self.gang.group:
            return True
        return last.starts or last.report.workers_lost > 0

    @property
    def consecutive_hits(self) -> int:
        """Number of latest full epochs in a row that reached the target (thesis section 4.1)."""
        streak, target = 0, self.spec.target
        if target is None or (self.epochs and self.epochs[-1].report.guessed):
            return 0
        for epoch in reversed(self.epochs):
            if epoch.kind is not EpochKind.FULL:
                continue
            if not target.reached(epoch.report.value(target.name)):
                break
            streak += 1
        return streak

    def speed_points(self) -> list[SpeedPoint]:
        """Measured speeds in order, on nodes of pace 1: those of earlier jobs like this one, then its own."""
        known = [
            SpeedPoint(p.workers, p.servers, p.epochs_per_second, computing_part=p.computing_part)
            for p in self.models.known_points
        ]
        own = [
            SpeedPoint(
                *e.allocation,
                e.epochs_per_second / e.pace,
                weight_of(e.report.measured[1]),
                e.computing_part,
                mini=e.kind is EpochKind.PROBE,
            )
            for e in measuring(self.epochs)
        ]
        return known + own

    def curve_points(self) -> list[CurvePoint]:
        """The learning curve in the target's metric."""
        return [
            CurvePoint(e.epochs_trained, value)
            for e in self.evaluated_epochs
            if (value := e.report.value(self.metric)) is not None
        ]

    @property
    def speed(self) -> SpeedModel | None:
        """The speed as last fitted, on its nodes."""
        return None if self.models.surface is None else self.models.surface.at(self.pace)

    def last_x(self) -> Interval | None:
        """Epochs trained when the target will have held long enough; None if the fitted curve never reaches it."""
        if self.models.curve is None or self.spec.target is None:
            return None
        return self.models.curve.last_x(self.spec.target, self.epochs_trained)

    @property
    def hopeless(self) -> int:
        """Number of latest fits after full epochs in a row, at most KEPT_CURVES, that give the target no chance."""
        target = self.spec.target
        if target is None:
            return 0
        fits = reversed(self.models.full_epoch_curves)
        return sum(1 for _ in itertools.takewhile(lambda curve: curve.chance(target) < NO_CHANCE, fits))
