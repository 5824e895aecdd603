"""The figures of docs/advanced/estimation.md: `python -m benchmarks.estimation.estimators --figures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from coach.core.estimation.convergence import CurvePoint, fit_convergence
from coach.core.estimation.curve_families import SHAPES
from coach.core.estimation.mixture import fit_mixture
from coach.core.estimation.speed import SpeedPoint, fit_speed
from coach_research.estimators import evaluation as estimator_evaluation
from coach_research.estimators.evaluation import CurveTask, Speeds
from coach_research.estimators.published import fit_optimus_speed, fit_thesis_quadratic

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FAMILIES = {
    "hyperbola (p = 1)": SHAPES.power == 1.0,
    "power law (p = 2)": SHAPES.power == 2.0,
    "exponential": (SHAPES.power == 0) & np.isnan(SHAPES.midpoint),
    "logistic": ~np.isnan(SHAPES.midpoint),
}


def draw(folder: Path, speeds: dict[str, Speeds], tasks: dict[str, list[CurveTask]]) -> None:
    """Write all figures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _speed_forms(folder / "speed-forms.png", {m: speeds[m] for m in ("wlm", "seq2seq", "dssm")})
    rule = {name: of for name, of in tasks.items() if "by the rule" in name}
    longest = {name: max(of, key=lambda task: len(task.values)) for name, of in rule.items()}
    _curve_families(folder / "curve-families.png", longest)
    probed = {name: of for name, of in tasks.items() if "with probes" in name or "crossing" in name}
    last_epoch(folder / "last-epoch.png", {**rule, **probed})


def _speed_forms(file: Path, models: dict[str, Speeds]) -> None:
    figure, axes = plt.subplots(2, len(models), figsize=(4.2 * len(models), 6.4), layout="constrained")
    for column, (name, speeds) in enumerate(models.items()):
        measured = estimator_evaluation.chosen_points(speeds, speeds.__getitem__)
        points = [SpeedPoint(*at, v) for at, v in measured.items()]
        model = fit_speed(points)
        lines = {
            "Coach": (model.predict, "C0", "-"),
            "its form alone": (model.parametric, "C0", ":"),
            "Optimus": (fit_optimus_speed(points).predict, "C2", "-"),
            "thesis": (fit_thesis_quadratic(points).predict, "C3", "-"),
        }
        most = 11
        for row, places in enumerate(([(w, 3) for w in range(1, 12)], [(3, s) for s in range(1, 22)])):
            ax: Axes = axes[row, column]
            x = [at[row] for at in places]
            for label, (predict, color, style) in lines.items():
                ax.plot(x, [predict(*at) for at in places], color=color, linestyle=style, label=label)
            known = [at for at in places if at in speeds]
            ax.plot([at[row] for at in known], [speeds[at] for at in known], "k.", label="measured")
            chosen = [at for at in known if at in measured]
            ax.plot(
                [at[row] for at in chosen],
                [speeds[at] for at in chosen],
                "ko",
                fillstyle="none",
                label="probed",
            )
            intervals = model.intervals(places)
            ax.fill_between(x, [i.low for i in intervals], [i.high for i in intervals], color="C0", alpha=0.15)
            ax.set_xlabel("workers (3 servers)" if row == 0 else "servers (3 workers)")
            ax.set_ylim(0, 1.6 * max(speeds[at] for at in known))
            ax.set_xlim(1, most if row == 0 else 21)
        axes[0, column].set_title(name)
    axes[0, 0].set_ylabel("speed, recorded unit")
    axes[1, 0].set_ylabel("speed, recorded unit")
    axes[0, 0].legend(fontsize=7)
    figure.savefig(file, dpi=90)
    plt.close(figure)


def _curve_families(file: Path, tasks: dict[str, CurveTask]) -> None:
    figure, axes = plt.subplots(1, len(tasks), figsize=(5.6 * len(tasks), 4.2), layout="constrained")
    for ax, (name, task) in zip(axes, tasks.items(), strict=True):
        half = len(task.x) // 2
        x, y = np.array(task.x), np.array(task.values)
        ahead = np.linspace(1, len(x) * 1.3, 120)
        for label, of in FAMILIES.items():
            curves = fit_mixture(x[:half], y[:half], SHAPES.take(np.flatnonzero(of)))
            ax.plot(ahead, curves.weight @ curves.values(ahead), linestyle="--", label=label)
        model = fit_convergence(_points(task, half), "loss")
        intervals = [model.interval(float(at)) for at in ahead]
        ax.plot(ahead, [model.predict(float(at)) for at in ahead], "k-", label="mixture, with 80 % interval")
        ax.fill_between(ahead, [i.low for i in intervals], [i.high for i in intervals], color="k", alpha=0.12)
        ax.plot(x[:half], y[:half], "ko", markersize=3, label="seen")
        ax.plot(x[half:], y[half:], "o", color="0.5", markersize=3, label="not seen")
        ax.axhline(task.target, color="C3", linewidth=0.8)
        ax.set(title=name, xlabel="epoch", ylabel="loss")
        ax.legend(fontsize=7)
    figure.savefig(file, dpi=90)
    plt.close(figure)


def last_epoch(file: Path, families: dict[str, list[CurveTask]]) -> None:
    """How the predicted last epoch changes as a run goes on: of each family, the run of the median error half-way."""
    tasks = {name: _median_miss(of) for name, of in families.items()}
    rows = math.ceil(len(tasks) / 3)
    figure, axes = plt.subplots(rows, 3, figsize=(12, 3.2 * rows), layout="constrained", squeeze=False)
    for ax, (name, task) in zip(axes.T.flat, sorted(tasks.items(), key=lambda item: item[0][::-1]), strict=True):
        seen, low, expected, high = [], [], [], []
        for count in range(1, len(task.x)):
            answer = fit_convergence(_points(task, count), "loss").epochs_to(
                task.target, task.consecutive_hits, task.x[count - 1]
            )
            if answer is not None:
                seen.append(count / len(task.x))
                low.append(answer.low)
                expected.append(answer.expected)
                high.append(answer.high)
        ax.fill_between(seen, low, high, alpha=0.2)
        ax.plot(seen, expected, "-", label="predicted, with 80 % interval")
        ax.axhline(task.last, color="k", label="last epoch")
        ax.set(title=f"{name}: the run of median error", xlabel="share of the run seen", xlim=(0, 1))
        ax.set_ylim(0, 3 * task.last)
        ax.legend(fontsize=7)
    figure.savefig(file, dpi=90)
    plt.close(figure)


def _median_miss(tasks: Sequence[CurveTask]) -> CurveTask:
    """The run whose error half-way is the median one."""
    ordered = sorted(tasks, key=lambda task: estimator_evaluation.judge_curve(task, 0.5, "coach").error)
    return ordered[len(ordered) // 2]


def _points(task: CurveTask, count: int) -> list[CurvePoint]:
    return [CurvePoint(x, v) for x, v in zip(task.x[:count], task.values[:count], strict=True)]
