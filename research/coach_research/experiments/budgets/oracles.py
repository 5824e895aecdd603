"""What knowing is worth: Coach with a budget, and Coach that is given the number of epochs, the speeds, or both.

The cases are the measured curves of `coach_budget`, each compared with the best static choice within the same money.
The number of epochs is that of the cheapest static choice, within EXACT times as many; speeds are the true ones of all
allocations, so nothing is probed. What is missing with both is the price of the rule itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.figure import Figure

from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs.reasons import State
from coach.core.lifecycle import forecast
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.outcome import Ended
from coach_research.experiments.coach_budget import Case, cases
from coach_research.workload import FloatArray

#: Whether the number of epochs, and whether the speeds are known.
ORACLES = {
    "nothing known": (False, False),
    "curve known": (True, False),
    "speeds known": (False, True),
    "both known": (True, True),
}
#: A known curve's number of epochs is exceeded by no more than this factor, instead of `forecast.KNOWN_SPREAD`.
EXACT = 1.05


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """How much later than the best static choice each case ends, %, by budget and oracle; NaN: it misses its target."""
    most = int(parameters["most"])
    counts = range(1, most + 1)
    grid = [{"name": "static", "workers": w, "servers": s} for w in counts for s in counts]
    found: dict[str, float] = {}
    for number, model in enumerate(parameters.get("models") or shipped()):
        for kind, case in cases(parameters, number, model, seed).items():
            if not kind.startswith("measured"):
                continue
            static = [case.run(most, seed, policy=policy) for policy in grid]
            within = [one for one in static if one.state is State.SUCCEEDED]
            for factor in parameters["budgets"] if within else ():
                cheapest = min(within, key=lambda one: one.spent)
                budget = factor * cheapest.spent
                best = min(one.ended for one in within if one.spent <= budget)
                for name, knows in ORACLES.items():
                    ended = _run(case, most, seed, budget, cheapest, knows)
                    later = 100 * (ended.ended / best - 1) if ended.state is State.SUCCEEDED else math.nan
                    found[f"{model}, {kind}, {factor}, {name}"] = later
    return found


def _run(  # noqa: PLR0917
    case: Case, most: int, seed: int, budget: float, cheapest: Ended, knows: tuple[bool, bool]
) -> Ended:
    curve, speeds = knows
    counts = range(1, most + 1)
    points = tuple(KnownSpeed(w, s, case.dynamics.speed(w, s)) for w in counts for s in counts)
    with patch.object(forecast, "KNOWN_SPREAD", EXACT):
        return case.run(
            most,
            seed,
            float(cheapest.epochs) if curve else None,
            known_points=points if speeds else (),
            budget=budget,
        )


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """By budget and oracle: misses, then how much later the others end. A case that never ends is none."""
    lines = [
        "| budget | known | cases | missed | later, mean | 95th percentile |",
        "| --- | --- |" + " ---: |" * 4,
    ]
    for factor in parameters["budgets"]:
        for name in ORACLES:
            later = _later(results, factor, name)
            reached = later[~np.isnan(later)]
            missed = len(later) - len(reached)
            lines.append(
                f"| {factor:g} | {name} | {len(later)} | {missed} ({100 * missed / max(1, len(later)):.0f} %) | "
                f"{reached.mean():+.1f} % | {np.quantile(reached, 0.95):+.1f} % |"
            )
    return "\n".join(lines)


def _later(results: Mapping[str, FloatArray], factor: float, name: str) -> FloatArray:
    """Of all cases with a budget; without those that nothing ends, whatever is known and paid."""
    suffix = f", {factor}, {name}"
    every = [key.removesuffix(suffix) for key in results if key.endswith(suffix)]
    ended = [
        ~np.all([np.isnan(results[f"{key}, {each}, {one}"]) for each, one in _columns(results, key)], axis=0)
        for key in every
    ]
    return np.concatenate([results[key + suffix][there] for key, there in zip(every, ended, strict=True)])


def _columns(results: Mapping[str, FloatArray], case: str) -> list[tuple[str, str]]:
    found = [key[len(case) + 2 :].split(", ") for key in results if key.startswith(f"{case}, ")]
    return [(factor, name) for factor, name in found]


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """The share of cases that end no later than so much, by budget."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for place, factor in enumerate(parameters["budgets"], start=1):
        axes = figure.add_subplot(1, len(parameters["budgets"]), place)
        for name in ORACLES:
            later = np.sort(_later(results, factor, name))  # those that missed are last
            axes.step(later, np.arange(1, len(later) + 1) / len(later), label=name)
        axes.set(title=f"{factor:g} times the money", xlabel="later than the best static choice, %", xlim=(-25, 75))
    axes.legend(fontsize=8)
    return {"budget-oracles": figure}
