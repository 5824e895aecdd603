"""Coach's own evaluation (thesis chapter 5; paper 001, tables 2 and 3), from the epochs that its static runs recorded.

The runs (`tests/data/thesis/runs`) show: every job, static ones too, first trained a whole epoch at each of (1,1),
(1,2), (2,1), (2,2). All jobs waited for one another there, then trained until the target had held. Between two epochs
the functions were started again. The number of epochs of a job depends on its workers (each trained its own share of
the data by itself), not on its servers. A dynamic job takes the allocation that was fastest in its four probes.

`data/thesis_recorded.yaml` has the means of the *static* runs, the numbers of epochs of each, and the spread between
runs. The static rows at 2x2 are therefore calibrated; the dynamic rows and all of table 3 are predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, cast

import numpy as np
import yaml
from matplotlib.figure import Figure

from coach.core.policies.api.scheduling import FloatArray

GRID = ((1, 1), (1, 2), (2, 1), (2, 2))
STATIC = (2, 2)
#: The paper's colours for its two schedulers.
COLOURS = ("#0072B2", "#E69F00")


@dataclass(frozen=True, slots=True)
class JobTimes:
    """A job's runtime, and the seconds of each of its epochs, the four probes first."""

    seconds: float
    epochs: tuple[float, ...]


@cache
def recorded() -> dict[str, Any]:
    """The records of the thesis's static runs, by model."""
    text = (resources.files("coach.simulation") / "data" / "thesis_recorded.yaml").read_text()
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Table 2 row by row, and table 3: each row is one run of one, two or three jobs at once, as in the paper."""
    measures: dict[str, float] = {}
    for number, (row, what) in enumerate(parameters.get("rows", {}).items()):
        for scheduler in parameters["schedulers"]:
            jobs = _row(parameters, number, what, scheduler, seed)
            measures[f"{row} {scheduler}: mean runtime, s"] = float(np.mean([job.seconds for job in jobs]))
    if "repeated" in parameters:
        measures |= _repeated(parameters["repeated"], parameters["schedulers"], parameters["spread"], seed)
    return measures


def _row(
    parameters: Mapping[str, Any], number: int, what: Mapping[str, Any], scheduler: str, seed: int
) -> list[JobTimes]:
    """The jobs of one row of table 2 under one scheduler."""
    dice = np.random.default_rng([seed, number, parameters["schedulers"].index(scheduler)])
    return jobs_at_once(what["model"], what["jobs"], what["dynamic"], parameters["spread"], dice)


def jobs_at_once(
    model: str, jobs: int, dynamic: bool, spread: float, dice: np.random.Generator
) -> list[JobTimes]:
    """`jobs` jobs that start together.

    `spread` is the standard deviation of the logarithm of an epoch's seconds from run to run: the machines were shared.
    """
    record = recorded()[model]
    between_epochs = float(record["seconds_between_epochs"][jobs])
    day = np.exp(spread * dice.standard_normal())
    seconds = {at: day * float(record["epoch_seconds"][f"{at[0]}x{at[1]}"]) for at in GRID}
    noise = float(record["epoch_noise"])
    probed = {
        at: seconds[at] * np.exp(noise * dice.standard_normal(jobs))
        + (float(record["first_epoch_more"]) if not n else 0.0)
        for n, at in enumerate(GRID)
    }
    # The barrier: no job goes on before all jobs have probed.
    probing = float(sum(probed.values()).max()) + len(GRID) * between_epochs
    times = []
    for job in range(jobs):
        measured = {at: probed[at][job] for at in GRID[1:]} | {
            GRID[0]: probed[GRID[0]][job] - record["first_epoch_more"]
        }
        at = min(measured, key=lambda at: measured[at]) if dynamic else STATIC
        epochs = int(dice.choice(record["epochs"][at[0]]))
        times.append(
            JobTimes(
                probing + epochs * (seconds[at] + between_epochs),
                (*(float(probed[point][job]) for point in GRID), *[float(seconds[at])] * epochs),
            )
        )
    return times


def _repeated(repeated: dict[str, Any], schedulers: list[str], spread: float, seed: int) -> dict[str, float]:
    """Table 3: the same three jobs, five times under each scheduler, and Welch's t test between them."""
    from scipy.stats import ttest_ind

    samples = _samples(repeated, schedulers, spread, seed)
    measures: dict[str, float] = {}
    for scheduler, times in samples.items():
        low, middle, high = np.quantile(times, [0.25, 0.5, 0.75]).tolist()
        values = {
            "mean": times.mean(), "standard deviation": times.std(ddof=1), "minimum": times.min(),
            "25 %": low, "50 %": middle, "75 %": high, "maximum": times.max(),
        }  # fmt: skip
        measures |= {f"Table 3 {scheduler}: {name}, s": float(value) for name, value in values.items()}
    first, second = (samples[scheduler] for scheduler in schedulers)
    measures["Table 3: p of the t test"] = float(ttest_ind(first, second, equal_var=False).pvalue)
    return measures


def _samples(
    repeated: Mapping[str, Any], schedulers: list[str], spread: float, seed: int
) -> dict[str, FloatArray]:
    """Runtimes of all jobs of the repeated runs, by scheduler, seconds."""
    samples = {}
    for number, scheduler in enumerate(schedulers):
        dice = np.random.default_rng([seed, 1000, number])
        runs = [
            jobs_at_once(repeated["model"], repeated["jobs"], True, spread, dice)
            for _ in range(repeated["runs"])
        ]
        samples[scheduler] = np.array([job.seconds for run in runs for job in run])
    return samples


def figures(_results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """The paper's figures 3 and 4 (of a scenario with rows) and 5 (with repeated runs), of seed 1."""
    drawn = {}
    if rows := parameters.get("rows"):
        drawn["figure-3"] = _panels(parameters, rows, _bars, "job", "runtime, s")
        drawn["figure-4"] = _panels(parameters, rows, _scatter, "epoch", "an epoch, s")
    if repeated := parameters.get("repeated"):
        samples = _samples(repeated, parameters["schedulers"], parameters["spread"], 1)
        figure = Figure(figsize=(5, 4), layout="constrained")
        axes = figure.subplots()
        axes.boxplot(list(samples.values()), tick_labels=list(samples), showmeans=True)
        axes.set_ylabel("job completion time, s")
        drawn["figure-5"] = figure
    return drawn


def _panels(parameters: Mapping[str, Any], rows: Mapping[str, Any], draw: Any, x: str, y: str) -> Figure:
    """A panel for each row with both schedulers, as in the paper."""
    figure = Figure(figsize=(10, 2.1 * -(-len(rows) // 3)), layout="constrained")
    panels = cast(Any, figure.subplots(-(-len(rows) // 3), 3, squeeze=False))
    for number, ((row, what), axes) in enumerate(zip(rows.items(), panels.flat, strict=False)):
        for place, scheduler in enumerate(parameters["schedulers"]):
            draw(axes, place, _row(parameters, number, what, scheduler, 1), scheduler)
        axes.set_title(row, fontsize=8)
        axes.tick_params(labelsize=7)
    panels.flat[0].legend(fontsize=7)
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    return figure


def _bars(axes: Any, place: int, jobs: list[JobTimes], scheduler: str) -> None:
    at = np.arange(1, len(jobs) + 1) + 0.4 * place - 0.2
    axes.bar(at, [job.seconds for job in jobs], 0.38, color=COLOURS[place % 2], label=scheduler)
    axes.set_xticks(range(1, len(jobs) + 1))


def _scatter(axes: Any, place: int, jobs: list[JobTimes], scheduler: str) -> None:
    for number, job in enumerate(jobs):
        axes.plot(
            range(1, len(job.epochs) + 1),
            job.epochs,
            ".",
            color=COLOURS[place % 2],
            markersize=4,
            label="_" if number else scheduler,
        )
