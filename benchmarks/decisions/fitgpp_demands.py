"""What FitGpp's paper shows in a figure only, fitted on the rows that scenario fitgpp marks as calibrated.

    python -m benchmarks.decisions.fitgpp_demands

Three deviations (execution of both classes, grace period) and, for cores, GiB and GPUs of both classes, a mean and a
deviation each: 15 numbers. Random draws with 8,192 jobs: those whose three rows of slowdowns under FitGpp come near
get the two rows of preempted jobs too; the best of them are compared with more seeds and jobs. The error of a row is
its difference relative to its tolerance; the sum of squares is least. No other row is looked at, and the seeds are
not the scenario's. Prints the best draws as `parameters` of a scenario, and their rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coach_research.experiments.fitgpp import NODE, replicate
from coach_research.scenario import Scenario, load

DRAWS, KEPT, LAST = 500, 24, 5
ALONE = ("LRTP alone", "RAND alone")


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """Parameters: log-uniform means of demands, deviations as shares of the means."""

    def shares(low: float, high: float) -> list[float]:
        return [float(np.exp(rng.uniform(np.log(low), np.log(high)))) for _ in NODE]

    def demand() -> list[list[float]]:
        means = [node * share for node, share in zip(NODE, shares(0.05, 0.6), strict=True)]
        return [
            [float(f"{mean:.3g}"), float(f"{mean * share:.3g}")]
            for mean, share in zip(means, shares(0.2, 1.5), strict=True)
        ]

    te, be, grace = (float(f"{rng.uniform(*of):.2g}") for of in ((1, 8), (4, 20), (0.3, 2.5)))
    return {
        "te_execution": [5, te, 30],
        "be_execution": [30, be, 1440],
        "grace": [3, grace, 20],
        "te_demand": demand(),
        "be_demand": demand(),
    }


def error(scenario: Scenario, parameters: dict[str, Any], seeds: range) -> tuple[float, dict[str, float]]:
    """The sum of squares over the calibrated rows that `parameters` have policies for, and the rows."""
    runs = [replicate(parameters, seed) for seed in seeds]
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    fitted = [target for target in scenario.targets if target.calibrated and target.measure in means]
    total = sum(((means[one.measure] / one.paper - 1.0) / one.tolerance) ** 2 for one in fitted)
    return float(np.nan_to_num(total, nan=np.inf)), {one.measure: means[one.measure] for one in fitted}


def main() -> None:
    """Draw, keep the best, compare them again."""
    scenario = load("fitgpp")
    rng = np.random.default_rng(0)
    every = scenario.parameters["policies"]
    fitgpp = {"FitGpp": every["FitGpp"]}
    alone = fitgpp | {name: every[name] for name in ALONE}

    def best(some: list[dict[str, Any]], policies: dict[str, str], jobs: int, seeds: range, keep: int) -> list[Any]:
        common = {**scenario.parameters, "policies": policies, "jobs": jobs}
        found = [(*error(scenario, {**common, **one}, seeds), one) for one in some]
        return sorted(found, key=lambda result: result[0])[:keep]

    first = best([drawn(rng) for _ in range(DRAWS)], fitgpp, 8192, range(1001, 1002), KEPT)
    second = best([one for *_, one in first], alone, 16384, range(1002, 1004), LAST)
    for total, rows, one in best([one for *_, one in second], alone, 65536, range(1004, 1006), LAST):
        print(f"{total:.3g}", one, {name: round(value, 2) for name, value in rows.items()}, flush=True)


if __name__ == "__main__":
    main()
