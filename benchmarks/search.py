"""Searches replayed on known curves: the regret by money of freeze-thaw, of Optuna's pruners, and of random search.

    python -m benchmarks.search [--seeds 30] [FOLDER]

Each task of TaskSet (Metz et al. 2020, as published in releaunifreiburg/DPL; FOLDER, by default
../shared/data/taskset) has 83 to 151 runs of 51 epochs with random parameters. A search takes them in a random order,
the same for all policies; an epoch costs 1. Its regret is what the best value seen lacks of the task's lowest, as a
share of the task's range. The constants of freeze-thaw were chosen on TUNED alone. Writes results/search.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import optuna

from benchmarks.harness import RESULTS
from coach.core.search import freeze_thaw
from coach.core.search.freeze_thaw import FreezeThaw
from coach.core.search.trials import AllToTheEnd, End, Halving, Search, SearchPolicy, Trial

TUNED = ("patch32-gru64-avg-bs128", "patch128-lstm128-avg-bs64", "patch32-irnn64-relu-last-bs128")
#: Money at which regrets are compared, in epochs; the last one is the whole budget.
BUDGETS = (64, 128, 256, 512)
EPOCHS = 51
#: The regret of each task is drawn by as many random orders.
SEEDS = 30

#: The same curves come again in other orders.
freeze_thaw._predicted = lru_cache(maxsize=None)(freeze_thaw._predicted)


def curves(folder: Path) -> dict[str, list[tuple[float, ...]]]:
    """The curves of each task, by its name."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        rows = path.read_text(encoding="utf-8").splitlines()[1:]
        found[path.stem] = [tuple(map(float, row.split(",")[1].split(";"))) for row in rows]
    return found


def replay(make: Callable[[], SearchPolicy], order: Sequence[tuple[float, ...]], budget: int, seed: int) -> list[float]:
    """The best value after each epoch that one of our policies orders."""
    policy = make()
    trials: list[Trial] = []
    best: list[float] = []
    while len(best) < budget:
        view = Search(trials, budget - len(best), len(order) - len(trials), 1.0, EPOCHS)
        choice = policy.next(view)
        if isinstance(choice, End):
            break
        number = choice.trial or len(trials) + 1
        if choice.trial is None:
            trials.append(Trial(number, (), 1.0))
        seen = order[number - 1][: len(trials[number - 1].values) + 1]
        trials[number - 1] = Trial(number, seen, 1.0)
        best.append(min(seen[-1], best[-1] if best else np.inf))
    return best


def with_optuna(
    make: Callable[[], optuna.pruners.BasePruner], order: Sequence[tuple[float, ...]], budget: int, seed: int
) -> list[float]:
    """The same of a pruner of Optuna: trials one after the other, each until it is pruned."""
    study = optuna.create_study(pruner=make(), study_name=f"search-{seed}")
    best: list[float] = []
    for values in order:
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


POLICIES: dict[str, Callable[[Sequence[tuple[float, ...]], int, int], list[float]]] = {
    "freeze-thaw": partial(replay, FreezeThaw),
    "Optuna's Hyperband": partial(
        with_optuna, lambda: optuna.pruners.HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3)
    ),
    "Optuna's median": partial(with_optuna, optuna.pruners.MedianPruner),
    "random search": partial(replay, AllToTheEnd),
    "halving (ours)": partial(replay, Halving),
}


def regrets(
    run: Callable[[Sequence[tuple[float, ...]], int, int], list[float]], task: Sequence[tuple[float, ...]], seeds: int
) -> np.ndarray:
    """[seeds, BUDGETS]"""
    lowest = min(map(min, task))
    span = statistics.median(one[0] for one in task) - lowest
    found = []
    for seed in range(seeds):
        order = [task[at] for at in np.random.default_rng(seed).permutation(len(task))]
        best = run(order, BUDGETS[-1], seed)
        found.append([(best[min(at, len(best)) - 1] - lowest) / span for at in BUDGETS])
    return np.array(found)


def decision_seconds(task: Sequence[tuple[float, ...]], count: int = 1000, decisions: int = 50) -> list[float]:
    """Seconds of a core of each decision among `count` trials, after an epoch of one of them."""
    policy = FreezeThaw()
    rng = np.random.default_rng(1)
    trials = [
        Trial(one, task[one % len(task)][: int(rng.integers(2, EPOCHS))], 1.0) for one in range(1, count + 1)
    ]  # fmt: skip
    policy.next(Search(trials, 1e6, count, 1.0, EPOCHS))
    found = []
    for at in range(decisions):
        trials[at] = Trial(at + 1, tuple(v + 1e-6 * at for v in task[at % len(task)][:20]), 1.0)
        policy._curves.pop(at + 1, None)
        began = time.process_time()
        policy.next(Search(trials, 1e6, count, 1.0, EPOCHS))
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
    each = sorted(decision_seconds(tasks[TUNED[0]]))
    spread = f"median {1e3 * statistics.median(each):.0f} ms, largest {1e3 * each[-1]:.0f} ms"
    text.append(f"A decision among 1,000 trials, the fit of the last curve included, takes of a core: {spread}.")
    sys.stdout.write(text[-1] + "\n")
    (RESULTS / "search").mkdir(parents=True, exist_ok=True)
    (RESULTS / "search" / "search.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
