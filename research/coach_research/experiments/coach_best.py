"""Jobs without a target: Coach's model for the money against every static choice's, and what was foretold of it.

A case is a model of the speed table, a budget, and a learning curve drawn for that model and seed: where it levels
off, how fast it falls, by which law, and how much a measured loss fluctuates. All of a case train the same curve.
Judged is the curve's value at the epoch whose model is handed over, without the noise of its measurement: the lowest
measured loss of many epochs is a lucky one.

What `coach plan --budget` would say is computed from another run of the same job, with a part of the money and other
noise; judged is whether its interval has the loss that the last epoch then measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.cluster import Node, Resources
from coach.core.estimation.convergence import CurvePoint, fit_convergence
from coach.core.policies.coach import CoachPolicy
from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import FIRST_LOSS, assumed, job_file
from coach.simulation.outcome import Ended
from coach.simulation.reducer_simulation import Driver
from coach_research.workload import FloatArray

NODES = tuple(Node(f"node-{n}", Resources(32.0, 128.0)) for n in range(3))
#: As coach.report.budget_plan has it.
MIN_POINTS = 4
LAWS = ("exponential", "power", "hyperbola")


@dataclass(frozen=True, slots=True)
class Curve:
    """A loss that falls from that of guessing to `end`; after `half` epochs it is half-way."""

    law: str
    end: float
    half: float

    def __call__(self, x: float) -> float:
        """The loss after `x` epochs."""
        part = x / self.half
        left = {
            "exponential": 0.5**part,
            "power": (1.0 + 3.0 * part) ** -0.5,
            "hyperbola": 1.0 / (1.0 + part),
        }
        return float(self.end + (FIRST_LOSS - self.end) * left[self.law])


def drawn(dice: np.random.Generator) -> tuple[Curve, float]:
    """A curve, and the standard deviation of the logarithm of a measured loss."""
    law = LAWS[int(dice.integers(len(LAWS)))]
    curve = Curve(law, float(dice.uniform(0.05, 0.6)), float(np.exp(dice.uniform(0.0, np.log(8.0)))))
    return curve, float(np.exp(dice.uniform(np.log(0.005), np.log(0.05))))


def _file(most: int, **changes: Any) -> dict[str, Any]:
    """A job without a target, which goes on while it has money."""
    document = job_file("job", most, policy=changes.pop("policy", None))
    del document["spec"]["target"]
    document["spec"] |= {"objective": "best-loss", "stopEarly": False, **changes}
    return document


def run_job(document: dict[str, Any], dynamics: JobDynamics, seed: int) -> Ended:
    """One run of the job, from submission to end."""
    driver = Driver(NODES, CoachPolicy(), seed=seed)
    driver.submit_at(0.0, "job", document, dynamics)
    driver.run()
    return driver.ended["job"]


def reached(ended: Ended, curve: Callable[[float], float]) -> float:
    """The curve where the model is that is handed over; NaN without one."""
    best = ended.final.best
    return math.nan if best is None else curve(best.epochs_trained)


def foretold(probe: Ended, budget: float) -> tuple[float, float, float] | None:
    """The interval and the expected loss after all epochs that `budget` buys, from what another run measured."""
    points = [
        CurvePoint(epoch.epochs_trained, epoch.report.loss)
        for epoch in probe.final.evaluated_epochs
        if epoch.report.loss is not None
    ]
    if len(points) < MIN_POINTS:
        return None
    cheapest = min(epoch.cost / 1e9 for epoch in probe.final.full_epochs)
    epochs = math.floor(budget / cheapest)
    found = fit_convergence(tuple(points), "loss").interval(epochs)
    return found.low, found.expected, found.high


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """For each model and budget, the dynamic job compared with the static grid."""
    most, budgets = int(parameters["most"]), parameters["budgets"]
    measures: dict[str, float] = {}
    for number, model in enumerate(parameters.get("models") or shipped()):
        curve, noise = drawn(np.random.default_rng([seed, number]))
        plain = TrainingJob.from_json(_file(most, maxEpochs=3))
        dynamics = replace(
            assumed(plain, shipped()[model], parameters["epoch_seconds"], 1.0), loss=curve, loss_noise=noise
        )
        grid = [(workers, servers) for workers in range(1, most + 1) for servers in range(1, most + 1)]
        policies = {at: {"name": "static", "workers": at[0], "servers": at[1]} for at in grid}
        dear = {at: run_job(_file(most, maxEpochs=3, policy=each), dynamics, seed) for at, each in policies.items()}
        cheapest = min(ended.spent / ended.epochs for ended in dear.values())
        for factor in budgets:
            budget = factor * cheapest
            money = {"budget": {"amount": budget, "currency": "USD"}}
            static = sorted(reached(run_job(_file(most, policy=each, **money), dynamics, seed), curve)
                            for each in policies.values())  # fmt: skip
            dynamic = run_job(_file(most, **money), dynamics, seed)
            share = {"budget": {"amount": parameters["probe"] * budget, "currency": "USD"}}
            expected_loss = foretold(run_job(_file(most, **share), dynamics, seed + 1000), budget)
            loss = reached(dynamic, curve)
            measures |= {
                f"{model}, {factor}: against the median static choice, %": 100 * (loss / float(np.median(static)) - 1),
                f"{model}, {factor}: against the best static choice, %": 100 * (loss / static[0] - 1),
                f"{model}, {factor}: budget spent, %": 100 * dynamic.spent / budget,
                f"{model}, {factor}: overshoot, USD": dynamic.overshoot,
            }
            if expected_loss is not None:
                low, expected, high = expected_loss
                last = float(dynamic.final.full_epochs[-1].report.loss or math.nan)
                measures[f"{model}, {factor}: inside the interval"] = float(low <= last <= high)
                measures[f"{model}, {factor}: interval's width, % of the loss"] = 100 * (high - low) / last
                measures[f"{model}, {factor}: foretold against measured, %"] = 100 * (expected / last - 1)
    return measures


def _kind(results: Mapping[str, FloatArray], end: str, factor: float | None = None) -> FloatArray:
    """All values of one kind, of one budget or all."""
    found = [
        values
        for name, values in results.items()
        if name.endswith(end) and (factor is None or name.partition(":")[0].endswith(f", {factor}"))
    ]
    values = np.concatenate(found) if found else np.zeros(0)
    return values[~np.isnan(values)]


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """By budget, as Markdown."""
    lines = [
        "| budget, cheapest epochs | cases | loss against the median static choice: mean, %; not worse "
        "| against the best: mean, %; 95th percentile | budget spent, % | overshoots | foretold "
        "| inside the 80 % interval, % | its width, % of the loss, median |",
        f"| --- |{' ---: |' * 8}",
    ]
    for factor in (*parameters["budgets"], None):
        median = _kind(results, "against the median static choice, %", factor)
        best = _kind(results, "against the best static choice, %", factor)
        inside = _kind(results, "inside the interval", factor)
        if not len(median):
            continue
        width = _kind(results, "interval's width, % of the loss", factor)
        lines.append(
            f"| {'all' if factor is None else factor} | {len(median)} | {median.mean():+.1f}; "
            f"{100 * float((median <= 0.1).mean()):.0f} % of cases | {best.mean():+.1f}; "
            f"{float(np.quantile(best, 0.95)):+.1f} | {_kind(results, 'budget spent, %', factor).mean():.0f} | "
            f"{int((_kind(results, 'overshoot, USD', factor) > 0).sum())} | {len(inside)} | "
            f"{100 * float(inside.mean()):.0f} | {float(np.median(width)):.0f} |"
        )
    return "\n".join(lines)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """How much higher the loss is than that of the median and of the best static choice: all cases, by budget."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for ax, what in zip(figure.subplots(1, 2, sharey=True), ("median", "best"), strict=True):
        for factor, style in zip(parameters["budgets"], ("-", "--", ":"), strict=False):
            values = np.sort(_kind(results, f"against the {what} static choice, %", factor))
            ax.step(
                values,
                np.arange(1, len(values) + 1) / len(values),
                style,
                color="black",
                label=f"{factor} epochs",
            )
        ax.axvline(0.0, color="0.6", linewidth=0.8)
        ax.set_xlabel(f"loss above that of the {what} static choice, %")
        ax.set_xlim(-60, 60)
    figure.axes[0].set_ylabel("share of cases")
    figure.axes[0].legend(fontsize=8, title="budget")
    return {"losses": figure}
