"""An epoch: its kind, what the functions report of it, and what a job keeps of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from coach.core.cluster import Allocation
from coach.core.money import Money


class EpochKind(StrEnum):
    """A mini-epoch measures speed on a part of the data; only full epochs count for the stop rule."""

    PROBE = "probe"
    FULL = "full"

    @property
    def words(self) -> str:
        """What users read."""
        return "mini-epoch" if self is EpochKind.PROBE else "epoch"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a job's GPUs did, in `samples` looks at one of them each, as their driver says it. None: it does not say.

    `busy`: the mean part of the time in which they computed, 0 to 1. `idle`: the part of the looks at which one did
    nothing at all. `memory`: GiB, the most that one of them held. `watts`: the mean of one of them.
    """

    samples: int
    busy: float | None = None
    idle: float | None = None
    memory: float | None = None
    watts: float | None = None

    @classmethod
    def of(cls, uses: Iterable[DeviceUse]) -> DeviceUse | None:
        """All of them together, each counted by its looks; None of none."""
        uses = list(uses)
        if not uses:
            return None

        def mean(name: str) -> float | None:
            known = [(use.samples, value) for use in uses if (value := getattr(use, name)) is not None]
            return sum(n * value for n, value in known) / sum(n for n, _ in known) if known else None

        most = max((use.memory for use in uses if use.memory is not None), default=None)
        return cls(sum(use.samples for use in uses), mean("busy"), mean("idle"), most, mean("watts"))


@dataclass(frozen=True, slots=True)
class EpochReport:
    """Report of the functions on an epoch that succeeded. Seconds are wall seconds.

    `samples` were trained, of a data set of `data_size`: in a job's `epochs`, of what its spec calls an epoch. `loss`
    and `accuracy` are means over the test split at the checkpoint `weights`: an epoch that was not evaluated has
    neither, a model that does not classify has no accuracy. Training is from the first forward pass to the last update.
    """

    samples: int
    data_size: int
    loss: float | None
    accuracy: float | None
    weights: str
    train_seconds: float
    evaluate_seconds: float
    form_seconds: float = 0.0
    load_seconds: float = 0.0
    #: Of a program's first interval: from SIGTERM to the end of the processes that it had with other workers.
    stop_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    train_started_at: float = 0.0
    train_ended_at: float = 0.0
    cpu_seconds: float = 0.0
    memory_gib: float = 0.0
    #: The part of `samples` and of `train_seconds` in the first step of a new group. They do not measure speed. Of a
    #: program's first interval, which has its start in it, that is all.
    warm_up_samples: int = 0
    warm_up_seconds: float = 0.0
    #: CPU seconds of the first worker's busiest thread while training, without the warm-up.
    thread_seconds: float = 0.0
    #: Workers of an elastic group that were lost on the way or came too late, or of a program that had yet to come
    #: or to leave: the speed is not that of the allocation.
    workers_lost: int = 0
    #: Framework and Python with their versions, and the hash of the data set's files: of a process's first epoch alone.
    software: str = ""
    data_sha256: str = ""
    #: Names of the processes that the job's code had started and that ran still. They end with the workers.
    processes: tuple[str, ...] = ()
    #: Metrics other than loss and accuracy by name, of a program or of a model file.
    metrics: dict[str, float] = field(default_factory=dict)
    #: After how many epochs a program reported, as it counts them; None where it does not say it.
    at_epoch: float | None = None
    #: Whether a program forms its group anew in the same process: it asks whether that has changed.
    regroups: bool = False
    #: Where in its log a program's report is, as its platform counts: a handler that takes it over reads on from there.
    mark: int = 0
    #: Whether it is not said where a program's metric is, and it was not seen in two epochs yet: that ends no job.
    guessed: bool = False
    #: ... and then the line in which it was found.
    line: str = ""

    #: Of the whole data set, where an epoch is a part of it.
    pass_samples: int | None = None
    #: Of its GPUs since the report before it, where the platform has looked at them.
    device_use: DeviceUse | None = None

    @property
    def measured(self) -> tuple[int, float]:
        """Samples and seconds that measure the speed: without the warm-up, unless that is all there is."""
        samples, seconds = self.samples, self.train_seconds
        if samples > self.warm_up_samples and seconds > self.warm_up_seconds:
            samples -= self.warm_up_samples
            seconds -= self.warm_up_seconds
        return samples, seconds

    def value(self, metric: str) -> float | None:
        """The value of a metric; None where it was not measured."""
        if metric == "loss":
            return self.loss
        return self.accuracy if metric == "accuracy" else self.metrics.get(metric)


@dataclass(frozen=True, slots=True)
class JobForecast:
    """What the whole job was predicted to take when an epoch started: lower bound, expected value, upper bound (80 %).

    `seconds` with functions held and `cost` in currency units, from its first epoch to its end. They are finite.
    """

    seconds: tuple[float, float, float]
    cost: tuple[float, float, float]


@dataclass(slots=True)
class Epoch:
    """An epoch that counted. Seconds are wall seconds; `epochs_trained` is the curve's x: samples seen / data.

    `number` counts whole epochs and mini-epochs, `ordinal` those of its kind: users see this one.
    """

    number: int
    kind: EpochKind
    allocation: Allocation
    attempt: int
    token: str
    started_at: float
    ended_at: float
    epochs_trained: float
    group: str
    report: EpochReport
    predicted_seconds: tuple[float, float, float] | None = None
    #: How fast its nodes were, as the job's file says of their kinds.
    pace: float = 1.0
    job_forecast: JobForecast | None = None
    cost: Money = 0
    ordinal: int = 0

    @property
    def name(self) -> str:
        """`epoch 3`, or `mini-epoch 1`."""
        return f"{self.kind.words} {self.ordinal}"

    @property
    def seconds(self) -> float:
        """From RunEpoch to EpochFinished."""
        return self.ended_at - self.started_at

    def continues(self, before: Epoch) -> bool:
        """Whether it began with the same members, still connected: an elastic group changes and keeps its name."""
        return (self.group, self.allocation) == (before.group, before.allocation)

    @property
    def fraction(self) -> float:
        """Fraction of the data set that was trained."""
        return self.report.samples / self.report.data_size

    @property
    def starts(self) -> bool:
        """Whether it is a program's first interval, so that its start is in its training time."""
        return self.report.warm_up_samples >= self.report.samples

    def regrouped_after(self, before: Epoch | None) -> bool:
        """Whether it is a program's first interval in a group that was formed anew in the same process."""
        return self.starts and before is not None and before.group == self.group

    @property
    def epochs_per_second(self) -> float:
        """Speed while training, in data sets a second (thesis section 4.2: epochs/s), without the warm-up."""
        samples, seconds = self.report.measured
        if self.starts and self.number == 1:
            # Its user may have begun from an older checkpoint: only the last epoch is surely its own.
            samples = min(samples, self.report.data_size)
        return samples / self.report.data_size / max(seconds, 1e-6)

    @property
    def computing_seconds(self) -> float:
        """Seconds that the first worker's busiest thread computes for a whole data set; 0 if not known."""
        report = self.report
        samples = report.samples - report.warm_up_samples
        return report.thread_seconds * report.data_size / samples if samples > 0 else 0.0

    @property
    def computing_part(self) -> float:
        """Fraction of the training time in which that thread computed; 0 if not known."""
        return min(1.0, self.computing_seconds * self.epochs_per_second)

    @property
    def other_seconds(self) -> float:
        """Seconds outside training at that speed: start, warm-up, evaluation, checkpoint."""
        return max(0.0, self.seconds - self.fraction / self.epochs_per_second)


def measuring(epochs: Iterable[Epoch]) -> list[Epoch]:
    """The epochs that measure speed: a first interval, with a program's start in it, only where there is no other."""
    epochs = [epoch for epoch in epochs if not epoch.report.workers_lost]
    measured = {epoch.allocation for epoch in epochs if not epoch.starts}
    return [epoch for epoch in epochs if not epoch.starts or epoch.allocation not in measured]
