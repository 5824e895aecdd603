"""Searches replayed on known curves: the regret by money of freeze-thaw, of Optuna's pruners, and of random search.

    python -m benchmarks.search [--seeds 30] [FOLDER]

Each task of TaskSet (Metz et al. 2020, as published in releaunifreiburg/DPL; FOLDER, by default
../shared/data/taskset) has 83 to 151 runs of 51 epochs with random parameters. A search takes them in a random order,
the same for all policies; an epoch costs 1. Freeze-thaw knows their parameters (learning rate, beta1, beta2, epsilon,
l1, l2, linear and exponential decay), which are of the same publication and no part of Coach: `git clone --depth 1
https://github.com/releaunifreiburg/DPL ~/.cache/coach/dpl`. It takes each new run among the next CANDIDATES of that
order; the others take the next one. A regret is what the best value seen lacks of the task's lowest, as a share of the
task's range. The constants of freeze-thaw were chosen on TUNED alone. Writes results/search.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

# Before NumPy is loaded: with matrices this small, threads of BLAS spin longer than they compute.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import optuna

from benchmarks.harness import RESULTS
from coach.core.search import freeze_thaw
from coach.core.search.freeze_thaw import FreezeThaw
from coach.core.search.trials import AllToTheEnd, End, Halving, Search, SearchPolicy, Trial
from coach.handler.search.samplers import CANDIDATES

TUNED = ("patch32-gru64-avg-bs128", "patch128-lstm128-avg-bs64", "patch32-irnn64-relu-last-bs128")
#: Money at which regrets are compared, in epochs; the last one is the whole budget.
BUDGETS = (64, 128, 256, 512)
EPOCHS = 51
#: The regret of each task is drawn by as many random orders.
SEEDS = 30
PUBLISHED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coach/dpl/data/taskset"

#: The same curves come again in other orders.
freeze_thaw._predicted = lru_cache(maxsize=None)(freeze_thaw._predicted)


class Run(NamedTuple):
    """A run of a task: its values, and its eight parameters, each from 0 to 1."""

    values: tuple[float, ...]
    at: tuple[float, ...]


def curves(folder: Path) -> dict[str, list[Run]]:
    """The curves of each task, by its name."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        rows = path.read_text(encoding="utf-8").splitlines()[1:]
        values = [tuple(map(float, row.split(",")[1].split(";"))) for row in rows]
        at = np.array(_parameters(path.stem, values))
        at[:, 1:3] = 1.0 - at[:, 1:3]  # beta1, beta2
        at = np.log(np.maximum(at, 1e-12))
        at = (at - at.min(axis=0)) / (at.max(axis=0) - at.min(axis=0))
        found[path.stem] = [Run(*one) for one in zip(values, map(tuple, at.tolist()), strict=True)]
    return found


def _parameters(task: str, values: Sequence[tuple[float, ...]]) -> list[list[float]]:
    """Those of each run of a task, which is known by its values. Raises KeyError where they are not there."""
    names = {path.stem.partition("imdb_")[2].replace("_", "-").lower(): path for path in PUBLISHED.glob("*.json")}
    runs = json.loads(names[task].read_text(encoding="utf-8"))
    known = {tuple(float(f"{x:.5g}") for x in run["valid"]["loss"][:EPOCHS]): list(run["hp"].values()) for run in runs}
    return [known[one] for one in values]


def replay(make: Callable[[], SearchPolicy], order: Sequence[Run], budget: int, seed: int) -> list[float]:
    """The best value after each epoch that one of our policies orders."""
    policy = make()
    trials: list[Trial] = []
    begun: list[Run] = []
    left = list(order)
    best: list[float] = []
    while len(best) < budget:
        candidates = tuple(run.at for run in left[:CANDIDATES])
        view = Search(trials, budget - len(best), len(left), 1.0, EPOCHS, candidates)
        choice = policy.next(view)
        if isinstance(choice, End):
            break
        number = choice.trial or len(trials) + 1
        if choice.trial is None:
            begun.append(left.pop(choice.candidate))
            trials.append(Trial(number, (), 1.0))
        run = begun[number - 1]
        seen = run.values[: len(trials[number - 1].values) + 1]
        trials[number - 1] = Trial(number, seen, 1.0, at=run.at)
        best.append(min(seen[-1], best[-1] if best else np.inf))
    return best


def with_optuna(
    make: Callable[[], optuna.pruners.BasePruner], order: Sequence[Run], budget: int, seed: int
) -> list[float]:
    """The same of a pruner of Optuna: trials one after the other, each until it is pruned."""
    study = optuna.create_study(pruner=make(), study_name=f"search-{seed}")
    best: list[float] = []
    for values in (run.values for run in order):
        trial = study.ask()
        state = optuna.trial.TrialState.COMPLETE
        for step, value in enumerate(values, start=1):
            best.append(min(value, best[-1] if best else np.inf))
            if len(best) == budget:
                return best
            trial.report(value, step)
            if step < len(values) and trial.should_prune():
                state = optuna.trial.TrialState.PRUNED
                break
        study.tell(trial, value if state is optuna.trial.TrialState.COMPLETE else None, state=state)
    return best


POLICIES: dict[str, Callable[[Sequence[Run], int, int], list[float]]] = {
    "freeze-thaw": partial(replay, FreezeThaw),
    "Optuna's Hyperband": partial(
        with_optuna, lambda: optuna.pruners.HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3)
    ),
    "Optuna's median": partial(with_optuna, optuna.pruners.MedianPruner),
    "random search": partial(replay, AllToTheEnd),
    "halving (ours)": partial(replay, Halving),
}


def regrets(run: Callable[[Sequence[Run], int, int], list[float]], task: Sequence[Run], seeds: int) -> np.ndarray:
    """[seeds, BUDGETS]"""
    lowest = min(min(run.values) for run in task)
    span = statistics.median(run.values[0] for run in task) - lowest
    found = []
    for seed in range(seeds):
        order = [task[at] for at in np.random.default_rng(seed).permutation(len(task))]
        best = run(order, BUDGETS[-1], seed)
        found.append([(best[min(at, len(best)) - 1] - lowest) / span for at in BUDGETS])
    return np.array(found)


def decision_seconds(task: Sequence[Run], count: int = 1000, decisions: int = 50) -> list[float]:
    """Seconds of a core of each decision among `count` trials, after an epoch of one of them."""
    policy = FreezeThaw()
    rng = np.random.default_rng(1)
    trials = [
        Trial(one, task[one % len(task)].values[: int(rng.integers(2, EPOCHS))], 1.0, at=task[one % len(task)].at)
        for one in range(1, count + 1)
    ]
    candidates = tuple(run.at for run in task[:CANDIDATES])
    policy.next(Search(trials, 1e6, count, 1.0, EPOCHS, candidates))
    found = []
    for at in range(decisions):
        run = task[at % len(task)]
        trials[at] = Trial(at + 1, tuple(v + 1e-6 * at for v in run.values[:20]), 1.0, at=run.at)
        policy._curves.pop(at + 1, None)
        began = time.process_time()
        policy.next(Search(trials, 1e6, count, 1.0, EPOCHS, candidates))
        found.append(time.process_time() - began)
    return found


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("../shared/data/taskset"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tasks = curves(given.folder)
    text = [
        f"Written by `python -m benchmarks.search`: {given.seeds} random orders a task. Regret, % of a task's range;"
    ]
    text += ["mean over tasks and orders, with the 95 % interval of the mean over orders. An epoch costs 1.", ""]
    for part, names in (("judged", [one for one in tasks if one not in TUNED]), ("tuned", TUNED)):
        words = (
            "constants were not chosen on them" if part == "judged" else "constants of freeze-thaw were chosen on them"
        )
        text += [f"Tasks {', '.join(names)} ({words}):", ""]
        text += [
            "| policy | " + " | ".join(f"{one} epochs" for one in BUDGETS) + " |",
            "| --- |" + " --- |" * len(BUDGETS),
        ]
        for name, run in POLICIES.items():
            each = np.array([regrets(run, tasks[task], given.seeds) for task in names])
            doubt = 1.96 * each.mean(axis=0).std(axis=0, ddof=1) / np.sqrt(given.seeds)
            cells = [f"{100 * m:.1f} ± {100 * d:.1f}" for m, d in zip(each.mean(axis=(0, 1)), doubt, strict=True)]
            text.append(f"| {name} | {' | '.join(cells)} |")
            sys.stdout.write(f"{part} {text[-1]}\n")
            sys.stdout.flush()
        text.append("")
    taken = sorted(decision_seconds(tasks[TUNED[0]]))
    spread = f"median {1e3 * statistics.median(taken):.0f} ms, largest {1e3 * taken[-1]:.0f} ms"
    text.append(
        f"A decision among 1,000 trials, the last fit included, takes of a core, BLAS with one thread: {spread}."
    )
    sys.stdout.write(text[-1] + "\n")
    (RESULTS / "search").mkdir(parents=True, exist_ok=True)
    (RESULTS / "search" / "search.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
