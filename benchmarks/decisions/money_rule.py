"""What calibrated remaining epochs do for a job's money: `coach experiment coach-budget` and `rival-budgets`.

    python -m benchmarks.decisions.money_rule [SEED ...]    # 5 minutes a seed; results/estimators/money-rule.md
    python -m benchmarks.decisions.money_rule --rival [SEED ...]

*Calibrated* is the product: each number of epochs that may remain is multiplied by a factor
(`coach.core.estimation.calibration`) before the plan of a job's money, probing and the policy read it. *Uncalibrated*:
they read what the curve predicts. Cases and budgets are those of the experiments, 105 and 100 a seed; both run on the
same. Rows that are in money-rule.csv are not run again.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import numpy as np

from benchmarks.harness import RESULTS
from coach.core.estimation import calibration
from coach.core.jobs.reasons import State
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.outcome import Ended
from coach_research.budgets import oracle
from coach_research.experiments import coach_budget, rival_budgets
from coach_research.scenario import load

RESULT = RESULTS / "estimators/money-rule.md"
TABLE = RESULT.with_suffix(".csv")
COACH, RIVALS = "coach-budget", "rival-budgets"
Found = TypeVar("Found")


class Row(NamedTuple):
    """A case with a budget, uncalibrated and calibrated: whether it reached its target, how much later, what it spent.

    *Later* than the best static choice within the money, in %; NaN where either misses. Spent is in % of the budget.
    """

    experiment: str
    seed: int
    case: str
    budget: float
    reached: tuple[bool, bool]
    later: tuple[float, float]
    spent: tuple[float, float]

    @property
    def key(self) -> tuple[str, int, str, float]:
        """What a case with a budget is found by."""
        return self[:4]


Keys = set[tuple[str, int, str, float]]


def both(run: Callable[[], Found]) -> tuple[Found, Found]:
    """A run without calibration, and with it."""
    with mock.patch.object(calibration, "_factors", lambda *_: (0.0, 0.0, 0.0)):
        without = run()
    return without, run()


def static_grid(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Every static choice's policy."""
    counts = range(1, int(parameters["most"]) + 1)
    return [{"name": "static", "workers": w, "servers": s} for w in counts for s in counts]


def against_static(parameters: dict[str, Any], seed: int, done: Keys) -> Iterator[Row]:
    """All cases of a seed of `coach-budget` that a static choice reaches."""
    most = int(parameters["most"])
    for number, model in enumerate(shipped()):
        for kind, case in coach_budget.cases(parameters, number, model, seed).items():
            name = f"{model}, {kind}"
            wanted = [float(one) for one in parameters["budgets"] if (COACH, seed, name, float(one)) not in done]
            static: list[Ended] = [case.run(most, seed, policy=one) for one in static_grid(parameters) if wanted]
            within = [one for one in static if one.state is State.SUCCEEDED]
            for budget in wanted if within else ():
                found = both(lambda: coach_budget._compared(case, most, seed, within, budget))  # noqa: B023
                later, spent = ((found[0][of], found[1][of]) for of in (coach_budget.LATER, coach_budget.SPENT))
                reached = not math.isnan(later[0]), not math.isnan(later[1])
                yield Row(COACH, seed, name, budget, reached, later, spent)


def against_rivals(parameters: dict[str, Any], seed: int, done: Keys) -> Iterator[Row]:
    """Coach's jobs of a seed of `rival-budgets`, beside the oracle's."""
    most, jobs = int(parameters["most"]), int(parameters["jobs"])
    for number in range(jobs):
        draw = np.random.default_rng([seed, number])
        model = list(shipped())[(seed + number) % len(shipped())]
        options = coach_budget.cases(parameters, number, model, seed * jobs + number)
        kind, case = list(options.items())[int(draw.integers(len(options)))]
        factor = float(np.exp(draw.uniform(math.log(rival_budgets.LOW), math.log(rival_budgets.HIGH))))
        name = f"{number}: {model}, {kind}"
        if (RIVALS, seed, name, round(factor, 6)) in done:
            continue
        fixed = [
            rival_budgets._fixed(case.run(most, seed, policy=one, driver=rival_budgets.WithoutFits))
            for one in static_grid(parameters)
        ]
        budget = factor * min(float(run.costs[-1]) for run in fixed)
        best = oracle(fixed, budget)
        ended = both(lambda: case.run(most, seed, budget=budget))  # noqa: B023
        reached = ended[0].state is State.SUCCEEDED, ended[1].state is State.SUCCEEDED
        later = [
            100 * (one.ended / best.seconds - 1) if best.reached and held else math.nan
            for one, held in zip(ended, reached, strict=True)
        ]
        spent = 100 * ended[0].spent / budget, 100 * ended[1].spent / budget
        yield Row(RIVALS, seed, name, round(factor, 6), reached, (later[0], later[1]), spent)


def known(path: Path) -> list[Row]:
    """The rows that are there."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        found = []
        for name, seed, case, budget, *cells in list(csv.reader(lines))[1:]:
            a, b, c, d, e, f = map(float, cells)
            found.append(Row(name, int(seed), case, float(budget), (a == 1, b == 1), (c, d), (e, f)))
        return found


def append(path: Path, row: Row) -> None:
    """Write one more row."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        if new:
            names = [f"{of} {how}" for of in ("reached", "later", "spent") for how in ("uncalibrated", "calibrated")]
            lines.writerow(["experiment", "seed", "case", "budget", *names])
        cells = [*map(int, row.reached), *(f"{one:.3f}" for one in (*row.later, *row.spent))]
        lines.writerow([*row.key, *cells])


def parts(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Of one experiment: by kind of curve and budget, or by bands of budgets; then all."""
    if rows[0].experiment == COACH:
        for kind in coach_budget.KINDS:
            for budget in sorted({row.budget for row in rows}):
                of = [row for row in rows if row.budget == budget and row.case.split(", ")[1].startswith(kind)]
                yield f"{kind}, {budget:g}", of
    else:
        for low, high in rival_budgets.BANDS:
            yield f"{low:g} to {high:g}", [row for row in rows if low <= row.budget < high]
    yield "all", list(rows)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Of one experiment."""
    names = ["", "jobs", "reached, uncalibrated", "calibrated", "only uncalibrated", "only calibrated"]
    names += [f"{of}, {how}" for of in ("later", "95 %", "spent") for how in ("uncalibrated", "calibrated")]
    yield f"| {' | '.join(names)} |"
    yield f"| --- |{' ---: |' * (len(names) - 1)}"
    for name, of in parts(rows):
        reached = [sum(row.reached[at] for row in of) for at in (0, 1)]
        only = [sum(row.reached[at] and not row.reached[1 - at] for row in of) for at in (0, 1)]
        later = np.array([row.later for row in of if not any(map(math.isnan, row.later))])
        spent = np.array([row.spent for row in of if all(row.reached)])
        cells = [str(len(of)), *map(str, reached + only)]
        cells += (
            [f"{one:+.1f} %" for one in (*later.mean(axis=0), *np.quantile(later, 0.95, axis=0))]
            if len(later)
            else [""] * 4
        )
        cells += [f"{one:.1f} %" for one in spent.mean(axis=0)] if len(spent) else [""] * 2
        yield f"| {name} | {' | '.join(cells)} |"


def page(rows: Sequence[Row], date: str) -> str:
    """Both experiments' tables."""
    lines = [
        "# A job's money, planned by calibrated remaining epochs",
        "",
        f"Written by `python -m benchmarks.decisions.money_rule`, the last time on {date}; its text says what is "
        "compared. *Later* and *spent*: of jobs that reach their targets both ways.",
    ]
    for name in (COACH, RIVALS):
        if of := [row for row in rows if row.experiment == name]:
            seeds = ", ".join(map(str, sorted({row.seed for row in of})))
            lines += ["", f"## {name}, seeds {seeds}", "", *table(of)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the seeds, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--rival", action="store_true", help=f"{RIVALS} instead of {COACH}")
    asked = parser.parse_args()
    name, of = (RIVALS, against_rivals) if asked.rival else (COACH, against_static)
    parameters, runs = load(name).settings(quick=False)
    for seed in asked.seeds or runs:
        for row in of(parameters, seed, {row.key for row in known(TABLE)}):
            append(TABLE, row)
    text = page(known(TABLE), time.strftime("%Y-%m-%d"))
    RESULT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
