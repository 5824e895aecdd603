"""Coach's own evaluation (thesis chapter 5; paper 001, tables 2 and 3), from the epochs that its static runs recorded.

What the runs show (`tests/data/thesis/runs`): every job, static ones too, first trained a whole epoch at each of (1,1),
(1,2), (2,1), (2,2), all jobs waited for one another there, then trained until the target had held; between two epochs
the functions were started anew. How many epochs a job needs depends on its workers (each trained its own share of the
data for itself), not on its servers. A dynamic job takes the allocation that its four probes found fastest.

`data/thesis_recorded.yaml` has the means of the *static* runs, the numbers of epochs of each, and the spread
between runs. So the static rows at 2x2 are calibrated, and the dynamic rows and all of table 3 are predicted.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import yaml

from coach.core.policies.react import FloatArray

GRID = ((1, 1), (1, 2), (2, 1), (2, 2))
STATIC = (2, 2)


@cache
def recorded() -> dict[str, Any]:
    """What the thesis's static runs recorded, by model."""
    text = (resources.files("coach.simulation") / "data" / "thesis_recorded.yaml").read_text()
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Table 2 row by row, and table 3: each row is one run of one, two or three jobs at once, as in the paper."""
    measures: dict[str, float] = {}
    for number, (row, what) in enumerate(parameters.get("rows", {}).items()):
        for scheduler in parameters["schedulers"]:
            dice = np.random.default_rng([seed, number, parameters["schedulers"].index(scheduler)])
            times = jobs_at_once(what["model"], what["jobs"], what["dynamic"], parameters["spread"], dice)
            measures[f"{row} {scheduler}: mean runtime, s"] = float(times.mean())
    if "repeated" in parameters:
        measures |= _repeated(parameters["repeated"], parameters["schedulers"], parameters["spread"], seed)
    return measures


def jobs_at_once(
    model: str, jobs: int, dynamic: bool, spread: float, dice: np.random.Generator
) -> FloatArray:
    """Runtimes of `jobs` jobs that start together, seconds.

    `spread` is the standard deviation of the logarithm of an epoch's seconds from run to run: the machines were shared.
    """
    of = recorded()[model]
    beside = float(of["seconds_between_epochs"][jobs])
    day = np.exp(spread * dice.standard_normal())
    seconds = {at: day * float(of["epoch_seconds"][f"{at[0]}x{at[1]}"]) for at in GRID}
    noise = float(of["epoch_noise"])
    probed = {
        at: seconds[at] * np.exp(noise * dice.standard_normal(jobs))
        + (float(of["first_epoch_more"]) if not n else 0.0)
        for n, at in enumerate(GRID)
    }
    # The barrier: nobody goes on before all have probed.
    probing = float(sum(probed.values()).max()) + len(GRID) * beside
    times = np.empty(jobs)
    for job in range(jobs):
        measured = {at: probed[at][job] for at in GRID[1:]} | {
            GRID[0]: probed[GRID[0]][job] - of["first_epoch_more"]
        }
        at = min(measured, key=lambda at: measured[at]) if dynamic else STATIC
        epochs = int(dice.choice(of["epochs"][at[0]]))
        times[job] = probing + epochs * (seconds[at] + beside)
    return times


def _repeated(repeated: dict[str, Any], schedulers: list[str], spread: float, seed: int) -> dict[str, float]:
    """Table 3: the same three jobs, five times under each scheduler, and Welch's t test between them."""
    from scipy.stats import ttest_ind

    samples: dict[str, FloatArray] = {}
    for number, scheduler in enumerate(schedulers):
        dice = np.random.default_rng([seed, 1000, number])
        runs = [
            jobs_at_once(repeated["model"], repeated["jobs"], True, spread, dice)
            for _ in range(repeated["runs"])
        ]
        samples[scheduler] = np.concatenate(runs)
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
