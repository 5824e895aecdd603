"""What calibrated remaining epochs do for a job's money: `coach experiment coach-budget`, with them and without.

    python -m benchmarks.decisions.money_rule [SEED ...]    # results/estimators/money-rule.md

*Now*: the plan of a job's money reads what its curve predicts. *Calibrated*: each remaining number of epochs is
multiplied by the factors that are shown (`coach.core.estimation.calibration`), at its place in the distribution, before
the plan, probing and the policy read it. Cases and budgets are those of the experiment, 105 a seed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import RESULTS
from coach.core.estimation import calibration
from coach.core.estimation.convergence import TAIL
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval
from coach.core.jobs.epoch import CURVE_EPOCHS
from coach.core.jobs.fitted_models import FittedCurve
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.lifecycle import forecast, spending
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.outcome import Ended
from coach_research.experiments import coach_budget
from coach_research.scenario import load

RESULT = RESULTS / "estimators/money-rule.md"
OWN = forecast._predicted_last_epoch, forecast.chances_to_remain


class Row(NamedTuple):
    """A case with a budget: how much later than the best static choice (NaN: missed), and the part spent, in %."""

    case: str
    budget: float
    later: tuple[float, float]
    spent: tuple[float, float]


def last(job: Job) -> Interval | None:
    """The last epoch, calibrated."""
    found = OWN[0](job)
    if found is None:
        return None
    left = found + -job.epochs_trained
    return calibration.calibrated(left, job.full_epoch_count, len(job.known_curves)) + job.epochs_trained


def chances(job: Job, curve: FittedCurve | None) -> FloatArray:
    """As `forecast.chances_to_remain`, calibrated."""
    endings = None
    if curve is not None and job.spec.target is not None and job.full_epoch_count >= CURVE_EPOCHS:
        endings = curve.endings(job.spec.target)
    if endings is None:
        return OWN[1](job, curve)
    times, chance = endings
    now, at = job.epochs_trained, np.log(list(calibration.FACTORS))
    trust = calibration.RUNS_DOUBTED / (calibration.RUNS_DOUBTED + len(job.known_curves))
    columns = np.log(list(calibration.FACTORS.values())).T
    factors = [trust * float(np.interp(math.log(job.full_epoch_count), at, one)) for one in columns]
    place = np.cumsum(chance) - 0.5 * chance
    times = now + (times - now) * np.exp(np.interp(place, (TAIL, 0.5, 1.0 - TAIL), factors))
    if job.known_epochs is not None:
        chance = spending.as_before(times, chance, job.known_epochs, forecast.KNOWN_SPREAD)
    remain = spending.at_least_of(times, chance, now)
    if job.spec.max_epochs is not None:
        remain[max(1, job.spec.max_epochs - job.full_epoch_count) :] = 0.0
    return remain


def compared(parameters: dict[str, Any], seed: int) -> Iterator[Row]:
    """All cases of a seed that a static choice reaches."""
    most = int(parameters["most"])
    grid = [{"name": "static", "workers": w, "servers": s} for w in range(1, most + 1) for s in range(1, most + 1)]
    for number, model in enumerate(shipped()):
        static: list[Ended] = []
        for kind, case in coach_budget.cases(parameters, number, model, seed).items():
            if not case.known:
                static = [case.run(most, seed, policy=policy) for policy in grid]
            within = [one for one in static if one.state is State.SUCCEEDED]
            for factor in parameters["budgets"] if within else ():
                found = []
                for use in (OWN, (last, chances)):
                    forecast._predicted_last_epoch, forecast.chances_to_remain = use
                    found.append(coach_budget._compared(case, most, seed, within, factor))
                    forecast._predicted_last_epoch, forecast.chances_to_remain = OWN
                later, spent = ((found[0][name], found[1][name]) for name in (coach_budget.LATER, coach_budget.SPENT))
                yield Row(f"{model}, {kind}", factor, later, spent)


def page(rows: Sequence[Row], seeds: Sequence[int], date: str) -> str:
    """The table, by budget."""
    lines = [
        "# A job's money, planned by calibrated remaining epochs",
        "",
        f"Written by `python -m benchmarks.decisions.money_rule {' '.join(map(str, seeds))}` on {date}; "
        "its text says what is compared. *Later*: than the best static choice, and *spent*, of the cases that both "
        "reach.",
        "",
        "| budget | cases | reached, now | reached, calibrated | later, now | calibrated | spent, now | calibrated |",
        "| ---: |" + " ---: |" * 7,
    ]
    budgets = sorted({row.budget for row in rows})
    for name, of in [*((f"{one:g}", [row for row in rows if row.budget == one]) for one in budgets), ("all", rows)]:
        reached = [sum(not math.isnan(row.later[at]) for row in of) for at in (0, 1)]
        both = [row for row in of if not any(map(math.isnan, row.later))]
        later = [statistics.fmean(row.later[at] for row in both) for at in (0, 1)]
        spent = [statistics.fmean(row.spent[at] for row in both) for at in (0, 1)]
        lines.append(
            f"| {name} | {len(of)} | {reached[0]} | {reached[1]} | {later[0]:+.1f} % | {later[1]:+.1f} % | "
            f"{spent[0]:.1f} % | {spent[1]:.1f} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the seeds, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("seeds", nargs="*", type=int, default=[1, 2])
    seeds = parser.parse_args().seeds
    parameters, _ = load("coach-budget").settings(quick=False)
    rows = [row for seed in seeds for row in compared(parameters, seed)]
    text = page(rows, seeds, time.strftime("%Y-%m-%d"))
    RESULT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
