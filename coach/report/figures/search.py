"""The figures of a search: all curves, and of Optuna the parameters that were tried and how much each matters."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure

from coach.core.errors import UserError
from coach.handler.search import samplers
from coach.handler.search.standing import Standing
from coach.jobfiles.search_space import written
from coach.report.figures.style import look, save


def plot(standing: Standing, folder: Path) -> list[Path]:
    """Write the figures; those of Optuna where it is installed and they can be drawn. Raises UserError."""
    if standing.best is None:
        raise UserError(f"{standing.definition.name}: no epoch has ended, there is nothing to draw")
    paths = [save(folder / "curves.png", lambda: curves(standing))]
    if not samplers.installed():
        return paths
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.visualization import matplotlib as drawn

    definition = standing.definition
    # Optuna draws trials that are complete: all count as such here, by the best value that they had.
    tried = [replace(one, state="COMPLETE") for one in standing.tried(falling=False) if one.values]
    study = samplers.study(definition.name, definition.space, tried, maximize=standing.sign < 0)
    if len({str(one.parameters) for one in tried}) > 1:
        axes = {"parameters": lambda: drawn.plot_parallel_coordinate(study)}
        # Those with a condition are not in all trials, and have no importance.
        if len(definition.space.parameters.keys() - definition.space.conditions.keys()) > 1:
            evaluator = PedAnovaImportanceEvaluator()
            axes["importance"] = lambda: drawn.plot_param_importances(study, evaluator=evaluator)
        for name, draw in axes.items():
            with warnings.catch_warnings(action="ignore"):  # Optuna calls all of these experimental
                paths.append(save(folder / f"{name}.png", lambda draw=draw: draw().figure))  # type: ignore[misc]
        pyplot.close("all")
    return paths


def curves(standing: Standing) -> Figure:
    """Each trial's metric by its epochs; the best one in front."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for number, job in standing.jobs.items():
        if values := list(map(job.value, job.full_epochs)):
            best = number == standing.best
            label = f"{number}: {written(standing.definition.parameters[number - 1])}"
            width = {"linewidth": 2.5 if best else 1.0, "markersize": 3, "zorder": 3 if best else 2}
            axes.plot(range(1, len(values) + 1), values, label=label, **{**look(number - 1), **width})
    axes.set_xlabel("epochs")
    axes.set_ylabel(standing.spec.spec.metric)
    axes.set_title(f"{standing.definition.name}: best is trial {standing.best}")
    if len(standing.jobs) <= 16:
        axes.legend(fontsize=8)
    return figure
