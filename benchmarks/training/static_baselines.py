"""Completion time, probing included, of Coach against every static (workers, servers), on three jobs and two networks.

    python -m benchmarks.training.static_baselines [--repeats 3] [--jobs lenet mlp] [--networks loopback] [--next
    [RUNS]]

Each run is a row of results/static/runs.csv and is skipped when it is there. In each case (job, network) the static
choices come first, then Coach, then Coach with a budget of 1.2, and of 1.5, times what the cheapest static choice cost
so far.
Behind 1 Gbit/s there is only the perceptron: slow cores hardly wait for links of 2 Gbit/s, and three of its four
static choices take about as long as one another.

The last column of a row is how slow the machine was during it (`benchmarks.training.machine_speed`). Between the runs
of one choice it separates the machine's variations from ours; between choices it does not, since they load the machine
differently.

Four virtual nodes of one core share this machine's cores; no two pods that train fit on one node. The limited network
needs root.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.training import reservations, static_grid
from benchmarks.training.machine_speed import MachineSpeed
from coach.core.jobs.reasons import State
from coach.core.spec.job import TrainingJob
from coach.handler.state.codec import Record

COMMAND = "python -m benchmarks.training.static_baselines"
FOLDER = harness.RESULTS / "static"
NODES = "4x1"
JOBS = ("lenet", "mlp", "resnet18")
NETWORKS = ("loopback", "2gbit", "1gbit")
#: (network, job), in the order in which they are run.
CASES = (*itertools.product(("loopback", "2gbit"), JOBS), ("1gbit", "mlp"))
COACH, BUDGET = "coach", "coach, 1.2x cheapest"
BUDGETS = {BUDGET: 1.2, "coach, 1.5x cheapest": 1.5}
KEYS = ("job", "network", "policy", "repeat")
VALUES = ("epochs", "completion_seconds", "cost", "probing_share", "probing_and_starts_share")


def spec_of(job: str) -> TrainingJob:
    """The job of jobs/bench with that name."""
    (spec,) = harness.load(f"jobs/bench/{job}.yaml")
    return spec


def statics(spec: TrainingJob) -> dict[str, tuple[int, int]]:
    """Every static choice, by name."""
    return {f"static:{w}x{s}": (w, s) for w, s in static_grid.points(spec)}


def wanted(repeats: int, jobs: tuple[str, ...], networks: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """All runs, in their order: repeats interleaved, a case at a time."""
    for repeat in range(repeats):
        for network, job in CASES:
            if network in networks and job in jobs:
                for policy in (*statics(spec_of(job)), COACH, *BUDGETS):
                    yield job, network, policy, repeat


def run(rows: harness.Rows, job: str, network: str, policy: str, repeat: int) -> dict[str, Any]:
    """One run's row."""
    spec = spec_of(job)
    choices = statics(spec)
    budget = ""
    if policy in choices:
        spec = harness.static(spec, *choices[policy])
    elif policy in BUDGETS:
        cheapest = min(rows.median("cost", job=job, network=network, policy=choice) for choice in choices)
        amount = round(BUDGETS[policy] * cheapest, 6)
        spec = harness.changed(spec, budget={"amount": amount, "currency": "USD"})
        budget = str(amount)
    history: list[Record] = []
    with MachineSpeed() as machine:
        (finished,) = harness.run([spec], NODES, "" if network == "loopback" else network, history=history)
    reservations.keep(history, job=job, network=network, policy=policy, repeat=repeat)
    row = static_grid.row_of(policy, repeat, finished)
    return {
        "job": job,
        "network": network,
        **row,
        "budget": budget,
        "machine_seconds": f"{machine.seconds:.6f}",
    }


def write(rows: harness.Rows) -> None:
    """Write the tables of what there is so far."""
    table, summary = [], []
    for job in JOBS:
        for network in NETWORKS:
            case = rows.of(job=job, network=network)
            if not case:
                continue
            medians = {row["policy"]: row for row in harness.medians(case, "policy", VALUES)}
            fixed = _fixed(medians, case)
            best = min((row["completion_seconds"] for row in fixed.values()), default=math.nan)
            for name, row in medians.items():
                ended = {r["state"] for r in case if r["policy"] == name}
                table.append(
                    {"job": job, "network": network, **row}
                    | {
                        "ended": "/".join(sorted(ended)),
                        "against best": f"{row['completion_seconds'] / best:.2f}x",
                    }
                )
            if COACH in medians and fixed:
                summary.append(_summary(job, network, medians, case))
    harness.write_table(
        FOLDER / "runs.md",
        "Coach and every static (workers, servers): completion time, probing included (medians)",
        COMMAND,
        table,
        f"`runs` is how many repeats a median is of. Virtual nodes: {NODES}. Cost in USD.",
    )
    if summary:
        harness.write_table(
            FOLDER / "summary.md",
            "Coach against the best, the median and the cheapest static choice",
            COMMAND,
            summary,
            "Goals: at most 1.10x the best static choice; less than the median one; at most 10 % probing; with a "
            "budget of 1.2x the cheapest static choice's cost: the target reached, nothing overspent.",
        )


def _fixed(medians: dict[str, Any], case: list[dict[str, Any]]) -> dict[str, Any]:
    """The static choices, all of whose runs reached the target."""
    failed = {row["policy"] for row in case if row["state"] != State.SUCCEEDED.value}
    return {name: row for name, row in medians.items() if name.startswith("static") and name not in failed}


def _summary(job: str, network: str, medians: dict[str, Any], case: list[dict[str, Any]]) -> dict[str, Any]:
    fixed = _fixed(medians, case)
    seconds = [row["completion_seconds"] for row in fixed.values()]
    coach = medians[COACH]
    best = min(fixed, key=lambda name: fixed[name]["completion_seconds"])
    tight = [row for row in case if row["policy"] == BUDGET]
    return {
        "job": job,
        "network": network,
        "runs": coach["runs"],
        "best static": best.removeprefix("static:"),
        "seconds": min(seconds),
        "its epochs": fixed[best]["epochs"],
        "Coach": coach["completion_seconds"],
        "Coach's epochs": coach["epochs"],
        "against best": f"{coach['completion_seconds'] / min(seconds):.2f}x",
        "against median": f"{coach['completion_seconds'] / statistics.median(seconds):.2f}x",
        "probing": f"{coach['probing_share']:.1%}",
        "with its starts": f"{coach['probing_and_starts_share']:.1%}",
        "with budget": "/".join(sorted({row["state"] for row in tight})) or "-",
        "against best within it": _within(tight, fixed) if tight else "-",
        "spent of it": " ".join(map(_spent, tight)) or "-",
    }


def _within(tight: Sequence[dict[str, Any]], fixed: dict[str, dict[str, Any]]) -> str:
    """The runs with a budget against the best static choice that costs no more than it."""
    budget = statistics.median(float(row["budget"]) for row in tight)
    within = (row["completion_seconds"] for row in fixed.values() if row["cost"] <= budget)
    best = min(within, default=math.nan)
    return f"{statistics.median(float(row['completion_seconds']) for row in tight) / best:.2f}x"


def _spent(row: dict[str, Any]) -> str:
    cost, budget = float(row["cost"]), float(row["budget"])
    return f"{cost / budget:.0%}" + (" OVERSPENT" if cost > budget else "")


def main() -> None:
    """Run what is missing."""
    parser = harness.piecewise(__doc__)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS, metavar="JOB", help="only these")
    words = "only these"
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="RATE", help=words)
    options = parser.parse_args()
    rows = harness.Rows(FOLDER / "runs.csv", KEYS)
    runs = wanted(options.repeats, tuple(options.jobs), tuple(options.networks))
    harness.measure(rows, runs, partial(run, rows), partial(write, rows), options)


if __name__ == "__main__":
    main()
