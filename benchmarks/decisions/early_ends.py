"""How often a job is ended that would reach its target, and how soon one that never does.

    python -m benchmarks.decisions.early_ends       # ten minutes; results/early-ends/early-ends.md

*TaskSet* (six tasks of ../shared/data/taskset, 51 epochs): a curve's target is the level that it first holds three
epochs in a row at epoch 38, 39 or 40; a curve *levels off* that betters its mean of three by less than a hundredth of
its task's range after epoch 28, and its target then lies a twentieth of that range below its lowest value. The
constants of `coach.core.lifecycle.stopping_rules` were chosen on the three tasks FITTED, the other three check them.

*Plateaus* (`benchmarks.training.plateau_curves`, none of it fitted on): the target of a parity is an accuracy of 0.95
twice in a row; the others' is nine tenths of the way from the first value to the best, three epochs in a row.

Each curve is one job: an epoch costs the same, and its budget is for so many epochs. *Before* is the rule until
November 2026, which asked nothing of money.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coach.core.cluster import Allocation
from coach.core.estimation.convergence import CurvePoint, fit_convergence
from coach.core.estimation.speed import SpeedPoint, fit_speed
from coach.core.jobs.epoch import Epoch, EpochKind, EpochReport
from coach.core.jobs.events import JobSubmitted
from coach.core.jobs.fitted_models import FittedCurve, FittedSpeed
from coach.core.jobs.fold import submitted
from coach.core.jobs.job import KEPT_CURVES, Job
from coach.core.lifecycle import forecast
from coach.core.lifecycle.stopping_rules import stop_decision
from coach.core.money import Ledger, to_money
from coach.core.spec.job import API_VERSION
from coach.core.spec.program import Goal

TASKSET = Path("../shared/data/taskset")
#: What plateau_curves recorded.
PLATEAUS = Path("results/early-ends/plateaus.csv")
RESULT = Path("results/early-ends/early-ends.md")
#: Median first loss less the lowest loss of each task, as its README has them.
RANGES = {
    "patch32-gru64-avg-bs128": 0.2784,
    "patch128-lstm128-avg-bs64": 0.5703,
    "patch32-irnn64-relu-last-bs128": 1.9317,
    "patch128-lstm128-embed128-bs64": 0.3234,
    "patch32-lstm128-bs128": 0.1759,
    "patch32-vrnn64-relu-avg-bs128": 0.2696,
}
FITTED = tuple(RANGES)[:3]
#: Epochs that a budget is for; None: unlimited.
BUDGETS = (100, 200, 500, None)


@dataclass(frozen=True, slots=True)
class Case:
    """A curve as a job: after `reached` epochs it has its target; None: it never does."""

    family: str
    values: tuple[float, ...]
    metric: str
    target: float
    consecutive_hits: int
    reached: int | None


@dataclass(frozen=True, slots=True)
class Ends:
    """The epoch at which each rule ends a job, None where it goes on to its target or its last epoch."""

    case: Case
    before: int | None
    now: Mapping[int | None, int | None]


def held(values: Sequence[float], target: float, consecutive_hits: int, sign: float = 1.0) -> int | None:
    """The epoch at which `target` has first held so often in a row."""
    streak = 0
    for number, value in enumerate(values, 1):
        streak = streak + 1 if sign * value <= sign * target else 0
        if streak == consecutive_hits:
            return number
    return None


def of_taskset() -> Iterator[Case]:
    """Curves that reach their target, and those that level off."""
    for task, width in RANGES.items():
        with (TASKSET / f"{task}.csv").open(encoding="utf-8") as file:
            curves = [tuple(map(float, row["values"].split(";"))) for row in csv.DictReader(file)]
        for values in curves:
            for epoch in (39, 38, 40):
                target = max(values[epoch - 3 : epoch])
                if held(values, target, 3) == epoch:
                    yield Case(task, values, "loss", target, 3, epoch)
                    break
            means = np.convolve(values, np.ones(3) / 3, "valid")
            if means[:28].min() - means[28:].min() < 0.01 * width:
                yield Case(task, values, "loss", min(values) - 0.05 * width, 3, None)


def of_plateaus() -> Iterator[Case]:
    """Curves that rest first."""
    with PLATEAUS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values = tuple(map(float, row["values"].split(";")))
            target, times = 0.95, 2
            if row["metric"] == "loss":
                target, times = values[0] - 0.9 * (values[0] - min(values)), 3
            reached = held(values, target, times, 1.0 if row["metric"] == "loss" else -1.0)
            if reached is not None:
                yield Case(row["family"], values, row["metric"], target, times, reached)


def job_of(case: Case) -> Job:
    """A job without epochs."""
    spec = {
        "model": {"file": "file:///m.py"},
        "data": {"format": "custom"},
        "target": {case.metric: case.target, "epochsInARow": case.consecutive_hits},
        "budget": {"unlimited": True},
    }
    document = {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": {"name": "x"}, "spec": spec}
    return submitted(JobSubmitted(0.0, "x", document, "file:///c"))


def trained(job: Job, number: int, value: float) -> None:
    """Give the job its epoch `number`, and the curve through all of them."""
    accuracy = value if job.metric == "accuracy" else None
    report = EpochReport(100, 100, value, accuracy, "", 1.0, 0.0)
    job.models.surface = job.models.surface or FittedSpeed(fit_speed([SpeedPoint(1, 1, 1.0)]).to_dict())
    at = Allocation(1, 1)
    job.epochs_changed()
    job.epochs.append(Epoch(number, EpochKind.FULL, at, 1, f"x.{number}", number, number + 1, number, "g", report))
    points = [CurvePoint(epoch.epochs_trained, job.value(epoch)) for epoch in job.epochs]
    job.models.curve = FittedCurve(fit_convergence(points, job.spec.curve).to_dict(), job.epochs_trained)
    job.models.full_epoch_curves = (*job.models.full_epoch_curves, job.models.curve)[-KEPT_CURVES:]


def rule_before(job: Job) -> bool:
    """The rule until November 2026: three fits in a row never reach the target, nor does the recent trend."""
    target = job.spec.target
    assert target is not None
    sign = 1.0 if job.spec.goal is Goal.MINIMIZE else -1.0
    values = [sign * job.value(epoch) for epoch in job.epochs]
    count = len(values)
    if count < 8 or any(one.last_x(target, one.epochs_trained) for one in job.models.full_epoch_curves):
        return False
    recent = values[-max(4, count // 3) :]
    slope = statistics.linear_regression(range(len(recent)), recent).slope
    on_its_way = statistics.fmean(recent) + slope * (count + len(recent) / 2) <= sign * target.number
    worse = statistics.fmean(values[-3:]) - values[0] > 0.02 * abs(values[0])
    return not on_its_way and (count >= 16 or not worse)


def ends(case: Case) -> Ends:
    """Both rules on one curve."""
    job, before, now = job_of(case), None, dict[int | None, int | None]()
    last = len(case.values) if case.reached is None else case.reached - 1
    for number, value in enumerate(case.values[:last], 1):
        trained(job, number, value)
        cost = to_money(forecast.cheapest_epoch(job))
        if before is None and rule_before(job):
            before = number
        for budget in BUDGETS:
            money = None if budget is None else budget * cost
            job.money.ledger = Ledger(money, min(number * cost, money or number * cost))
            if budget not in now and stop_decision(job) is not None:
                now[budget] = number
    return Ends(case, before, {budget: now.get(budget) for budget in BUDGETS})


def _wrong(found: Sequence[Ends], rule: int | str | None) -> str:
    """`3 of 120 (2.5 %)`."""
    reach = [one for one in found if one.case.reached is not None]
    ended = sum((one.before if rule == "before" else one.now[rule]) is not None for one in reach)  # type: ignore[index]
    return f"{ended} of {len(reach)} ({100 * ended / len(reach):.1f} %)" if reach else "-"


def _flat(found: Sequence[Ends], rule: int | str | None) -> str:
    """`83 of 151, epoch 27`: how many that level off are ended, and the median epoch of all."""
    never = [one for one in found if one.case.reached is None]
    if not never:
        return "-"
    at = [one.before if rule == "before" else one.now[rule] for one in never]  # type: ignore[index]
    median = statistics.median(99 if epoch is None else epoch for epoch in at)
    when = f"epoch {median:.0f}" if median < 99 else "not half of them"
    return f"{sum(epoch is not None for epoch in at)} of {len(at)}, {when}"


def page(found: Sequence[Ends]) -> str:
    """The tables."""
    rules: list[int | str | None] = ["before", *BUDGETS]
    names = ["before", *("unlimited" if budget is None else f"for {budget} epochs" for budget in BUDGETS)]
    groups = {
        f"TaskSet, fitted on ({', '.join(FITTED)})": [one for one in found if one.case.family in FITTED],
        "TaskSet, not fitted on": [one for one in found if one.case.family in RANGES and one.case.family not in FITTED],
        **{f"{task}": [one for one in found if one.case.family == task] for task in RANGES},
    }
    groups |= {
        f"plateau: {family}": [one for one in found if one.case.family == family]
        for family in dict.fromkeys(one.case.family for one in found if one.case.family not in RANGES)
    }
    lines = [
        "# Jobs that are ended early",
        "",
        "Written by `python -m benchmarks.decisions.early_ends`; its docstring says what the curves and targets are.",
        "",
        "## Ended, though they would reach their target",
        "",
        f"| curves | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
        *(f"| {name} | {' | '.join(_wrong(of, rule) for rule in rules)} |" for name, of in groups.items()),
        "",
        "## Ended, of those that level off, and the median epoch of all of them",
        "",
        f"| curves | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
        *(
            f"| {name} | {' | '.join(_flat(of, rule) for rule in rules)} |"
            for name, of in groups.items()
            if not name.startswith("plateau")
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Judge all curves and write the page."""
    cases = [*of_taskset(), *of_plateaus()]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(ends, cases, chunksize=8))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(page(found), encoding="utf-8")
    print(page(found))


if __name__ == "__main__":
    main()
