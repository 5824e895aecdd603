"""The rows of jobs, epochs and money: the same names in every table, JSON and CSV. Imports nothing that computes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from typing import Any, TextIO

from coach.core.estimation.interval import Interval


@dataclass(frozen=True, slots=True)
class JobRow:
    """The state of a job. Seconds, currency units and ISO 8601 local times; None: unknown, or not applicable."""

    name: str
    state: str
    reason: str
    message: str
    epoch: int  #: whole epochs that counted
    framework: str  #: of its model; `any` of a program
    metric: str  #: what the target is about: loss, accuracy, or any other metric of a program
    value: float | None  #: of that metric, after the last epoch
    best: float | None
    loss: float | None  #: of the last epoch
    accuracy: float | None
    target: float | None  #: None where the job trains the best model within its bounds
    consecutive_hits: int  #: for how many full epochs in a row the target has held ...
    epochs_in_a_row: int  #: ... of how many
    best_loss: float | None
    best_accuracy: float | None
    workers: int | None  #: the allocation it holds; of a job that holds nothing, the last epoch's
    servers: int | None
    spent: float
    reserved: float
    budget: float | None
    account: str | None  #: the budget over jobs that pays
    currency: str
    eta: float | None  #: seconds until it is done
    eta_low: float | None
    eta_high: float | None
    seconds: float | None  #: for how long its functions were held, so far
    training_seconds: float  #: of these, training and evaluating in epochs that counted
    priority: int
    submitted_at: str | None
    started_at: str | None
    ended_at: str | None


@dataclass(frozen=True, slots=True)
class JobDetails(JobRow):
    """A job's row with what a page shows of it. Times are ISO 8601 with an offset, money is in currency units."""

    reason_text: str
    labels: dict[str, str]
    left: float | None  #: of the budget: neither spent nor reserved; None without a budget
    rate: float | None  #: an hour, for what it holds now; None where it holds nothing
    done_at: str | None  #: when it is expected to be done, with an 80 % interval
    done_at_low: str | None
    done_at_high: str | None
    progress: float | None  #: of the running epoch, 0 to 1; None where none runs
    starts_in: Interval | None  #: seconds; of one that waits for room, in a list of jobs; None where that is unknown
    history: list[float]  #: the metric of the last full epochs, at most 24
    seq: int  #: number of the last record that may have changed the row


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """An allocation that a decision considered. `pace`: its speed relative to the chosen one (0.1: 10 % faster)."""

    workers: int
    servers: int
    verdict: str
    reason: str
    pace: float
    cost: float  #: predicted currency units of an epoch
    seconds: float | None = None  #: predicted ones of an epoch, where they are asked for
    seconds_low: float | None = None
    seconds_high: float | None = None


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """An allocation, as measured and as predicted for the next whole epoch. None: not measured."""

    workers: int
    servers: int
    measured: float | None  #: median epochs/s of the job's own epochs and of earlier jobs
    epochs: int  #: own epochs it was measured in
    epochs_per_second: float
    epochs_per_second_low: float
    epochs_per_second_high: float
    seconds: float
    cost: float
    affordable: bool


@dataclass(frozen=True, slots=True)
class EpochRow:
    """An epoch that counted; the thesis's columns come first.

    `outside_seconds` is all time since the previous epoch that was not training or evaluation.
    """

    job: str
    epoch: int  #: its number among those of its kind
    kind: str  #: probe (a mini-epoch) or full
    loss: float | None  #: of mini-epochs only the first is evaluated
    accuracy: float | None
    servers: int
    workers: int
    cost: float
    seconds: float  #: from the order to the answer
    train_seconds: float
    evaluate_seconds: float
    outside_seconds: float
    predicted_seconds: float | None
    predicted_seconds_low: float | None
    predicted_seconds_high: float | None
    samples: int | None  #: None: of a program, which says none
    epochs_trained: float  #: samples seen so far, over the size of the data set
    epochs_per_second: float
    new_group: bool  #: whether a new group was formed for it
    attempt: int
    started_at: str | None
    ended_at: str | None
    value: float | None  #: of the job's metric
    gpu_busy: float | None  #: mean part of the time in which its GPUs computed, 0 to 1; None: not looked at
    gpu_idle: float | None  #: part of the looks at which one of them did nothing
    gpu_memory: float | None  #: GiB, the most that one of them held
    gpu_watts: float | None  #: the mean of one of them


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """What was predicted of a whole job after a share of the time of its epochs, and what it took.

    Seconds with functions held, and currency units. None: nothing was predicted then, or that it does not reach its
    target.
    """

    job: str
    share: float
    epoch: int  #: that ran then, mini-epochs counted
    seconds: float | None
    seconds_low: float | None
    seconds_high: float | None
    cost: float | None
    cost_low: float | None
    cost_high: float | None
    actual_seconds: float
    actual_cost: float


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The cost of one attempt of an epoch, in currency units.

    `held` pays for functions kept after it, `grace` for the time that its program took to end after SIGTERM.
    """

    job: str
    epoch: int
    attempt: int
    kind: str
    workers: int
    servers: int
    outcome: str  #: counted, running, or the reason why it does not count
    reserved: float
    cost: float  #: the attempt itself
    held: float
    grace: float
    spent: float  #: of the job, after it
    started_at: str | None
    ended_at: str | None  #: None: it still runs


@dataclass(frozen=True, slots=True)
class PlanRow:
    """An allocation. Seconds and currency units; None: not known before the job has measured its speed."""

    workers: int
    servers: int
    measured: bool
    fits: bool  #: whether it fits on the empty cluster
    cost_per_hour: float
    hours_within_budget: float | None  #: how long the whole budget lasts with it; None without a budget
    seconds: float | None  #: of an epoch
    seconds_low: float | None
    seconds_high: float | None
    cost: float | None  #: of an epoch
    job_seconds: float | None  #: of all epochs, with this allocation throughout
    job_seconds_low: float | None
    job_seconds_high: float | None
    job_cost: float | None
    job_cost_low: float | None
    job_cost_high: float | None
    within_budget: bool | None  #: whether the budget covers the expected cost


@dataclass(frozen=True, slots=True)
class Plan:
    """The predictions for a job. `unknown`: sentences about what is unknown."""

    name: str
    currency: str
    prices: str
    budget: float | None
    chance_of_running_out: float | None  #: that the job accepts; None without a budget or a target
    epochs_provided_for: int | None  #: that money is kept for at first; None where that is unknown
    enough: str  #: whether the budget reaches the target, with the numbers; "" where no earlier run shows it
    epochs_low: float
    epochs: float
    epochs_high: float
    epochs_known: bool  #: from earlier jobs; else the prior of every job
    probes: tuple[str, ...]  #: allocations that would be measured first
    known: tuple[str, ...]
    unknown: tuple[str, ...]
    refusal: str  #: why it would end at once; "" if it would not
    rows: tuple[PlanRow, ...]


@dataclass(frozen=True, slots=True)
class AccountRow:
    """A budget over jobs in its present period, in `currency`; what is in the accounts in it counts too."""

    name: str
    parent: str
    labels: str  #: of the jobs that it pays without being named, such as `team=vision`; "" for none
    amount: float
    currency: str
    period: str
    timezone: str
    spent: float
    reserved: float
    left: float  #: negative where the amount was set lower than what was spent and reserved
    since: str | None  #: the period's first instant; None for ever
    until: str | None  #: when the next period begins; None for ever and in a rolling window
    noticed: int  #: the highest of 50, 80 and 100 percent that was noticed in this period; 0 for none
    forecast_low: float | None  #: what will be spent at the period's end: the bounds of an 80 % interval,
    forecast: float | None  #: and the expected value, as if the amount did not end it; None where nothing is known
    forecast_high: float | None
    runs_out: str | None  #: when the amount is expected to be spent; None if not in this period
    jobs: int  #: jobs that have not ended
    waiting: int  #: of these, how many wait for its money, or for that of an account that it is in


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """What a job paid out of an account in one of its periods, which begins at `since`."""

    account: str
    since: str | None
    job: str
    spent: float
    currency: str
    state: str


def _html(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for a notebook."""
    cells = ["".join(f"<th>{escape(one)}</th>" for one in head)]
    cells += ["".join(f"<td>{escape('-' if one is None else str(one))}</td>" for one in row) for row in rows]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the last decision. `before`, `after`: allocations such as `2x1`. `text`: the step as a line."""

    kind: str
    before: str | None
    after: str | None
    reason: str
    gain: float | None
    unit: str
    cost: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """What can be done with a job now. `command`: the same in a terminal."""

    action: str
    text: str
    command: str


@dataclass(frozen=True, slots=True)
class Why:
    """The reasons for a job's state and allocation: line by line, and as data.

    `summary`: one sentence. `queue`: its place among the jobs that wait, from 1, with the names of the first 20
    of those before it. `starts_in`: seconds until it is expected to start; null where nothing predicts it.
    `blockers`: what its smallest gang requests, and what each node has. `alternatives`: the chosen allocation first.
    """

    lines: list[str]
    state: str
    reason: str
    summary: str
    steps: list[Step]
    alternatives: list[ChoiceRow]
    queue: int | None
    before: list[str]
    starts_in: Interval | None
    blockers: list[str]
    actions: list[Action]


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs. `seq` is the number of the last record of any job.

    `total`: how many match. `next`: the `cursor` of the next page, where `limit` left some out. `stream`: the id from
    which `/stream` goes on after this answer.
    """

    seq: int
    stream: str
    total: int
    next: str | None
    jobs: list[JobDetails]

    def _repr_html_(self) -> str:
        fields = ("name", "state", "epoch", "metric", "value", "target", "spent", "budget", "currency")
        return _html(fields, ([getattr(row, name) for name in fields] for row in self.jobs))


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job with its epochs, its ledger, the steps that led to its allocation, its fitted models, and its file.

    `devices`: which GPUs its workers have, and `device_use`: what these do, in words; empty where unknown.
    `considered`: the allocations of the last decision on a whole epoch, the chosen one first, `refused` in words.
    `convergence`: the fitted learning curve's parameters. `limits`: of its workers, and of its servers if it
    `has_servers`. `logs`: the folder of its functions' logs.
    `remaining`: epochs that it is expected to train still; None for one that has ended. `forecasts`: of one that has
    ended, what was predicted of it as a whole. `text`: its file in YAML, to be edited and submitted as another job.
    """

    seq: int
    job: JobDetails
    remaining: Interval | None
    why: list[str]
    considered: list[ChoiceRow]
    refused: list[str]
    epochs: list[EpochRow]
    forecasts: list[ForecastRow]
    ledger: list[LedgerRow]
    speed: list[SpeedRow]
    convergence: dict[str, Any] | None
    curve_words: str
    speed_words: str
    limits: str
    has_servers: bool
    devices: list[str]
    device_use: str
    prices: str
    epoch_samples: int | None
    checkpoint: str | None
    logs: str
    spec: dict[str, Any]
    text: str
    note: str

    def _repr_html_(self) -> str:
        row = self.job
        fields = ("epoch", "kind", "workers", "servers", "loss", "accuracy", "seconds", "cost")
        said = escape(f"{row.name}: {row.state}, {row.message or row.reason_text}; {row.spent:g} {row.currency} spent")
        return f"<p>{said}</p>{_html(fields, ([getattr(one, name) for name in fields] for one in self.epochs))}"


def bounds(name: str, values: Interval | tuple[float, float, float] | None) -> dict[str, Any]:
    """An interval (its low end, expected value, high end) as the three columns of `name`; None: not known."""
    if isinstance(values, Interval):
        values = values.low, values.expected, values.high
    low, expected, high = values or (None, None, None)
    return {f"{name}_low": low, name: expected, f"{name}_high": high}


def columns(kind: type[Any]) -> tuple[str, ...]:
    """The names of a row's columns."""
    return tuple(field.name for field in fields(kind))


def write_csv(file: TextIO, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """CSV with a header; other fields of the rows are left out, what is not known is empty."""
    writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def as_csv(kind: type[Any], rows: Iterable[Any]) -> str:
    """Rows of this type as CSV."""
    text = io.StringIO()
    write_csv(text, columns(kind), map(asdict, rows))
    return text.getvalue()
