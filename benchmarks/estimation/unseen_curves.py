"""How well the last epoch is predicted on learning curves that the estimator was not made for.

    python -m benchmarks.estimation.unseen_curves    # two minutes; results/estimators/unseen-curves.md and .png

Families: the thesis's runs and the small models' curves, as `coach estimators` has them, and curves drawn here, a dozen
a kind, with noise of 0.5 to 5 %:

- *steps*: the learning rate drops once or twice, and the loss falls to a lower level within a few epochs;
- *late drop*: the loss rests, then falls as a sigmoid;
- *oscillation*: a hyperbola or an exponential times 1 + a sin(x / period), a of 3 to 15 %.

The figure has the predicted last epoch of one run a drawn kind, as the run goes on. The variants differ in the
constants below. *Leaving one family out*: for each family the variant that has the least mean error half-way on the
others, judged on that family.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.estimation.estimator_figures import last_epoch
from benchmarks.estimation.estimators import CURVES, RESULTS, RUNS
from coach.core.estimation import convergence, mixture
from coach_research.estimators.evaluation import MOMENTS, CurveTask, judge_curve, tasks_within
from coach_research.estimators.measurements import read_measurements

SEED, CURVES_EACH, EPOCHS = 34, 12, 80
#: Memories, and the probability outside of the interval on either side.
VARIANTS = {
    "one memory": (((2.0, 1.0),), 0.12),
    "one, late": (((4.0, 1.0),), 0.12),
    "all and half": (((2.0, 1.0), (2.0, 0.5)), 0.12),
    "all and late": (((2.0, 1.0), (8.0, 1.0)), 0.12),
    "pool": (mixture.MEMORIES, 0.12),
    "pool, narrow": (mixture.MEMORIES, 0.15),
    "thesis": None,
    "optimus": None,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One family by one variant at each of MOMENTS: median error, as a share and in epochs, and intervals that hold."""

    error: tuple[float, ...]
    epochs: tuple[float, ...]
    inside: tuple[float, ...]
    count: int


def drawn() -> dict[str, list[list[float]]]:
    """Losses of EPOCHS epochs, CURVES_EACH a kind."""
    dice, x = np.random.default_rng(SEED), np.arange(1.0, EPOCHS + 1.0)

    def falling() -> np.ndarray:
        rate, end = math.exp(dice.uniform(math.log(0.03), math.log(0.5))), dice.uniform(0.05, 0.6)
        part = 1.0 / (1.0 + rate * x) if dice.random() < 0.5 else np.exp(-rate * x)
        return np.asarray(end + (2.3 - end) * part)

    def steps() -> np.ndarray:
        values = falling()
        for at in sorted(dice.uniform(8, 50, size=dice.integers(1, 3))):
            level, pace = dice.uniform(0.4, 0.8), dice.uniform(0.5, 4.0)
            values = values * np.where(x < at, 1.0, level + (1.0 - level) * np.exp(-(x - at) / pace))
        return values

    def late_drop() -> np.ndarray:
        rest, end, at, pace = (
            dice.uniform(1.2, 2.2),
            dice.uniform(0.1, 0.8),
            dice.uniform(10, 40),
            dice.uniform(1, 6),
        )
        return np.asarray(end + (rest - end) / (1.0 + np.exp((x - at) / pace)) + 0.3 * falling())

    def oscillation() -> np.ndarray:
        return np.asarray(falling() * (1.0 + dice.uniform(0.03, 0.15) * np.sin(x / dice.uniform(0.6, 4.0))))

    kinds = {"steps": steps, "late drop": late_drop, "oscillation": oscillation}
    return {
        kind: [
            (
                make() * np.exp(math.exp(dice.uniform(math.log(0.005), math.log(0.05))) * dice.standard_normal(EPOCHS))
            ).tolist()
            for _ in range(CURVES_EACH)
        ]
        for kind, make in kinds.items()
    }


def families() -> dict[str, list[CurveTask]]:
    """Runs whose last epoch is predicted, by family."""
    found = dict(read_measurements(RUNS).tasks) | read_measurements(CURVES).curves
    return found | {
        kind: [task for of in curves for task in tasks_within(of, "loss")] for kind, curves in drawn().items()
    }


def judged(tasks: list[CurveTask], variant: str) -> Judged:
    """One variant on one family."""
    method, constants = (variant, None) if VARIANTS[variant] is None else ("coach", VARIANTS[variant])
    if constants is not None:
        mixture.MEMORIES, convergence.TAIL = constants
        convergence.fitted.cache_clear()
    by_moment = [[judge_curve(task, share, method) for task in tasks] for share in MOMENTS]
    last = np.array([task.last for task in tasks])
    errors = [np.array([one.error for one in of]) for of in by_moment]
    return Judged(
        tuple(float(np.median(of)) for of in errors),
        tuple(float(np.median(of * last)) for of in errors),
        tuple(float(np.mean([bool(one.inside) for one in of])) for of in by_moment),
        len(tasks),
    )


def tables(found: dict[str, dict[str, Judged]]) -> Iterator[str]:
    """Markdown, from the judged by variant and family."""
    moments = " / ".join(f"{share:.0%}" for share in MOMENTS)
    yield f"| variant | error at {moments}, mean of the families | inside, all runs | inside, worst family |"
    yield "|-|-|-|-|"
    ours = [name for name, constants in VARIANTS.items() if constants is not None]
    for name, of in found.items():
        error = np.mean([one.error for one in of.values()], axis=0)
        inside = np.mean([one.inside for one in of.values()], axis=1)
        total = np.average(inside, weights=[one.count for one in of.values()])
        held = f"{total:.0%} | {inside.min():.0%}" if name in ours else "- | -"
        yield f"| {name} | {' / '.join(f'{value:.1%}' for value in error)} | {held} |"
    yield ""
    half = MOMENTS.index(0.5)
    names = list(next(iter(found.values())))
    yield "Half-way: median error, and in epochs; intervals that hold at all moments."
    yield ""
    yield f"| family | runs | {' | '.join(found)} | leaving it out |"
    yield "|-|-|" + "-|" * (len(found) + 1)
    left_out = []
    for family in names:
        cells = []
        for name, of in found.items():
            one = of[family]
            inside_cell = f", {np.mean(one.inside):.0%} in" if name in ours else ""
            cells.append(f"{one.error[half]:.1%} ({one.epochs[half]:.1f}){inside_cell}")
        chosen = min(ours, key=lambda name: sum(of.error[half] for other, of in found[name].items() if other != family))
        left_out.append(found[chosen][family].error[half])
        count = next(iter(found.values()))[family].count
        yield f"| {family} | {count} | {' | '.join(cells)} | {chosen}: {left_out[-1]:.1%} |"
    means = [np.mean([one.error[half] for one in of.values()]) for of in found.values()]
    yield f"| mean | | {' | '.join(f'{value:.1%}' for value in means)} | {np.mean(left_out):.1%} |"


def main() -> None:
    """Judge, print and write."""
    tasks = families()
    found = {name: {family: judged(of, name) for family, of in tasks.items()} for name in VARIANTS}
    head = "# Last epochs of curves not seen before"
    by = "Written by `python -m benchmarks.estimation.unseen_curves`, whose text says what is measured."
    text = "\n".join([head, "", by, "", *tables(found)]) + "\n"
    (RESULTS / "unseen-curves.md").write_text(text)
    print(text)
    constants = VARIANTS["pool"]
    assert constants is not None
    mixture.MEMORIES, convergence.TAIL = constants
    last_epoch(RESULTS / "unseen-curves.png", {kind: tasks[kind] for kind in drawn()})


if __name__ == "__main__":
    main()
