"""With the budget on: Coach's dynamic allocation against every static grid point, on measured speeds.

A case is a model of the speed table, a learning curve and a seed. Its budget is a factor times the cost of the cheapest
static allocation. Both run in the reducer; the dynamic job has to find a good allocation by probing, and does not know
how many epochs it needs. It is compared with the best static choice within the same money, which is known only after
all of them were run. Curves are

* *hyperbola*: one law, to its target in one of several numbers of epochs, by the seed;
* *known*: the same, and earlier jobs took as many epochs as the static choices do;
* *measured*: cut from curves of real trainings at a target that held for three epochs. Targets that no static job
  reaches, because a curve that rests looks hopeless to it, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.cluster import Node, Resources
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs.reasons import State
from coach.core.policies.coach import CoachPolicy
from coach.core.spec.job import TrainingJob
from coach.core.spec.resources import CHANCE_OF_RUNNING_OUT
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import assumed, job_file
from coach.simulation.outcome import Ended
from coach.simulation.reducer_simulation import Driver
from coach_research.estimators.evaluation import tasks_within
from coach_research.measured_curves import MeasuredCurve, shipped_curves
from coach_research.workload import FloatArray

NODES = tuple(Node(f"node-{n}", Resources(32.0, 128.0)) for n in range(3))
MEASURES = LATER, SPENT, OVERSHOOT, EPOCHS = (
    "later than the best static choice, %",
    "budget spent, %",
    "overshoot, USD",
    "epochs of the cheapest static choice",
)
#: Kinds of curves, and how much later than the best static choice jobs may end with 1.5 or more times the money: in the
#: mean, and 95 % of them.
KINDS = {"hyperbola": (8.0, 35.0), "known": (8.0, 35.0), "measured": (20.0, 35.0)}
#: Where the figure by epochs has the cases that missed their target.
MISSED_AT = 100.0
#: Of so much money on these goals hold; with less, the share that misses its target is what counts.
AMPLE = 1.5


@dataclass(frozen=True, slots=True)
class Case:
    """One learning curve of one model: the job file's target, and what is simulated."""

    target: dict[str, float]
    dynamics: JobDynamics
    known: bool = False

    def run(
        self,
        most: int,
        seed: int,
        known_epochs: float | None = None,
        driver: type[Driver] = Driver,
        known_points: tuple[KnownSpeed, ...] = (),
        **changes: Any,
    ) -> Ended:
        """One run of the job, from submission to end."""
        document = job_file("job", most, **changes)
        document["spec"]["target"] = self.target
        run = driver(NODES, CoachPolicy(), seed=seed)
        known = {"known_epochs": known_epochs, "known_points": known_points}
        run.submit_at(0.0, "job", document, self.dynamics, **known)
        run.run()
        return run.ended["job"]


@cache
def _measured() -> tuple[tuple[MeasuredCurve, float], ...]:
    """Curves with their targets, in an order drawn once."""
    found = [(curve, task.target) for curve in shipped_curves() for task in tasks_within(curve.values, curve.metric)]
    return tuple(found[place] for place in np.random.default_rng(34).permutation(len(found)))


def cases(parameters: Mapping[str, Any], number: int, model: str, seed: int) -> dict[str, Case]:
    """The cases of one model and seed."""
    target = {"loss": 0.3}
    job = TrainingJob.from_json(job_file("job", 1))
    epochs = parameters["epochs"][(seed + number) % len(parameters["epochs"])]
    dynamics = assumed(job, shipped()[model], parameters["epoch_seconds"], epochs)
    found = {"hyperbola": Case(target, dynamics), "known": Case(target, dynamics, known=True)}
    each, curves = parameters["measured"], _measured()
    for place in range(each):
        curve, value = curves[((seed * len(shipped()) + number) * each + place) % len(curves)]
        metric = {"loss": dynamics.loss, "accuracy": None, curve.metric: curve}
        found[f"measured {place + 1}"] = Case({curve.metric: value}, replace(dynamics, **metric))
    return found


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """For each model, curve and budget, the dynamic job compared with the static grid."""
    most = int(parameters["most"])
    counts = range(1, most + 1)
    grid = [{"name": "static", "workers": w, "servers": s} for w in counts for s in counts]
    measures: dict[str, float] = {}
    for number, model in enumerate(parameters.get("models") or shipped()):
        static: list[Ended] = []
        for kind, case in cases(parameters, number, model, seed).items():
            if not case.known:  # else as without
                static = [case.run(most, seed, policy=policy) for policy in grid]
            within = [one for one in static if one.state is State.SUCCEEDED]
            for factor in parameters["budgets"]:
                name = f"{model}, {kind}, {factor}: "
                found = _compared(case, most, seed, within, factor) if within else dict.fromkeys(MEASURES, math.nan)
                measures |= {name + measure: value for measure, value in found.items()}
    return measures


def _compared(case: Case, most: int, seed: int, static: Sequence[Ended], factor: float) -> dict[str, float]:
    """The dynamic job with a budget, compared with those static ones that reached the target; NaN: it did not."""
    cheapest = min(static, key=lambda one: one.spent)
    budget = factor * cheapest.spent
    dynamic = case.run(most, seed, float(cheapest.epochs) if case.known else None, budget=budget)
    best = min(one.ended for one in static if one.spent <= budget)
    later = 100 * (dynamic.ended / best - 1) if dynamic.state is State.SUCCEEDED else math.nan
    return dict(zip(MEASURES, (later, 100 * dynamic.spent / budget, dynamic.overshoot, cheapest.epochs), strict=True))


def _values(results: Mapping[str, FloatArray], kind: str, factor: float) -> list[FloatArray]:
    """Each of MEASURES of all cases of a kind with a budget, without those that no static choice ends."""
    found = [
        np.concatenate(
            [
                values
                for name, values in results.items()
                if name.endswith(f", {factor}: {measure}") and name.split(", ")[1].startswith(kind)
            ]
        )
        for measure in MEASURES
    ]
    judged = ~np.isnan(found[1])
    return [values[judged] for values in found]


def _share(count: int, cases: int) -> tuple[float, float]:
    """The 95 % interval of a share of which `count` of `cases` were seen (Wilson 1927), in per cent."""
    z = 1.96
    middle, width = count + z * z / 2, z * math.sqrt(count * (cases - count) / cases + z * z / 4)
    return 100 * (middle - width) / (cases + z * z), 100 * (middle + width) / (cases + z * z)


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """By kind of curve and budget, as Markdown: misses first, then the others' times with the goals."""
    chance = 100 * CHANCE_OF_RUNNING_OUT
    lines = [
        "| curve | budget | cases | missed | share (95 %) | later, mean | 95th percentile | money spent | overshoots "
        "| goals | met |",
        f"| --- |{' ---: |' * 8} --- | --- |",
    ]
    for kind, (mean, tail) in KINDS.items():
        for factor in parameters["budgets"]:
            later, spent, overshoot, _ = _values(results, kind, factor)
            reached = later[~np.isnan(later)]
            missed = len(later) - len(reached)
            low, high = _share(missed, len(later))
            if factor >= AMPLE:
                goals = f"mean {mean:g} %, 95th {tail:g} %"
                met = reached.mean() <= mean and np.quantile(reached, 0.95) <= tail
            else:
                goals, met = f"missed {chance:g} %, or within the interval", low <= chance
            lines.append(
                f"| {kind} | {factor:g} | {len(later)} | {missed} | {100 * missed / len(later):.1f} % "
                f"({max(low, 0.0):.1f}-{high:.1f}) | {reached.mean():+.1f} % | {np.quantile(reached, 0.95):+.1f} % | "
                f"{spent.mean():.0f} % | {int((overshoot > 0).sum())} | {goals} | {'yes' if met else 'no'} |"
            )
    return "\n".join(lines)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """How much later the dynamic jobs end than the best static choice, by kind and budget: all cases, and by epochs."""
    shares, places = (Figure(figsize=(9, 3.4), layout="constrained") for _ in range(2))
    for number, kind in enumerate(KINDS, start=1):
        left, right = (figure.add_subplot(1, len(KINDS), number) for figure in (shares, places))
        for factor, style, marker in zip(parameters["budgets"], ("-", "--", ":"), "ox+", strict=False):
            later, _, _, epochs = _values(results, kind, factor)
            label, missed = f"{factor:g} times", np.isnan(later)
            ordered = np.sort(later)  # those that missed are last
            left.step(ordered, np.arange(1, len(later) + 1) / len(later), style, color="black", label=label)
            drawn = right.plot(epochs[~missed], later[~missed], marker, markersize=3, label=label)
            right.plot(epochs[missed], np.full(missed.sum(), MISSED_AT), marker, color=drawn[0].get_color())
        left.axvline(0.0, color="0.6", linewidth=0.8)
        left.set(title=kind, xlabel="later than the best static choice, %", xlim=(-25, 75), ylim=(0, 1))
        right.axhline(0.0, color="0.6", linewidth=0.8)
        right.set(title=f"{kind}; missed at the top", xlabel="epochs of the static choices", ylim=(-30, 110))
        right.set_xscale("log")
    shares.axes[0].set_ylabel("share of all cases")
    places.axes[0].set_ylabel("later than the best static choice, %")
    for figure in (shares, places):
        figure.axes[-1].legend(fontsize=8, title="money", loc="center right")
    return {"budget": shares, "budget-by-epochs": places}
