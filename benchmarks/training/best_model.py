"""The best model for the money, live: what `coach plan --budget --probe` foretells, and what the jobs then reach.

    python -m benchmarks.training.best_model [--next [RUNS]]

The three jobs of `benchmarks.training.static_baselines` without their targets, each with three budgets. A probe for a
part of the smallest budget is all that is known before; it is another run of the same job, seed included, so the
curve that it measures is the one to come, and what the machine does is not. Each run is a row of
results/best-model/runs.csv and is skipped when it is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import harness
from benchmarks.training.static_baselines import NODES, spec_of

COMMAND = "python -m benchmarks.training.best_model"
FOLDER = harness.RESULTS / "best-model"
#: About 10, 20 and 40 epochs with the cheapest static choice, in USD.
BUDGETS = {
    "lenet": (0.0012, 0.0024, 0.0048),
    "mlp": (0.0006, 0.0012, 0.0024),
    "resnet18": (0.002, 0.004, 0.008),
}
PROBE = 0.6
KEYS = ("job", "budget")


def coach(home: Path, *words: str) -> Any:
    """What a command of Coach's prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "coach.cli.main", *words, "-o", "json"],
        env={**os.environ, "COACH_HOME": str(home)},
        cwd=harness.ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def run(job: str, budget: float) -> dict[str, Any]:
    """Probe, foretell and train, in a folder of its own."""
    document = spec_of(job).to_json()
    for name in ("target", "timeLimit", "maxEpochs"):
        document["spec"].pop(name)
    document["spec"] |= {"objective": "best-loss", "budget": {"amount": budget, "currency": "USD"}}
    with tempfile.TemporaryDirectory(prefix="coach-bench-") as folder:
        file, home = Path(folder) / f"{job}.yaml", Path(folder) / "home"
        file.write_text(yaml.safe_dump(document))
        amount = str(PROBE * min(BUDGETS[job]))
        [plan] = coach(home, "plan", str(file), "--nodes", NODES, "--budget", str(budget), "--probe", amount)
        coach(home, "run", str(file), "--nodes", NODES, "--no-live")
        shown = coach(home, "show", job)
    [told] = plan["rows"]
    last = [epoch for epoch in shown["epochs"] if epoch["loss"] is not None][-1]
    full = sum(epoch["kind"] == "full" for epoch in shown["epochs"])
    seconds = [epoch["seconds"] for epoch in shown["epochs"]]
    return {
        "job": job,
        "budget": budget,
        "points": plan["points"],
        "foretold_epochs": told["epochs"],
        "foretold_low": told["value_low"],
        "foretold_loss": told["value"],
        "foretold_high": told["value_high"],
        "foretold_seconds": told["seconds"],
        "epochs": full,
        "last_loss": last["loss"],
        "best_loss": shown["best_loss"],
        "seconds": sum(seconds),
        "spent": shown["spent"],
        "reason": shown["reason"],
    }


def write(rows: harness.Rows) -> None:
    """The table of what there is so far."""
    table = []
    for row in rows.rows:
        low, high, last = (float(row[name]) for name in ("foretold_low", "foretold_high", "last_loss"))
        table.append(
            {
                "job": row["job"],
                "budget, USD": row["budget"],
                "spent": f"{100 * float(row['spent']) / float(row['budget']):.0f}%",
                "epochs foretold": row["foretold_epochs"],
                "trained": row["epochs"],
                "seconds foretold": f"{float(row['foretold_seconds']):.0f}",
                "taken": f"{float(row['seconds']):.0f}",
                "loss foretold (80 %)": f"{float(row['foretold_loss']):.3f} ({low:.3f}-{high:.3f})",
                "last loss": f"{last:.3f}",
                "inside": "yes" if low <= last <= high else "no",
                "best loss": f"{float(row['best_loss']):.3f}",
                "ended": row["reason"],
            }
        )
    points = [int(row["points"]) for row in rows.rows]
    inside = sum(row["inside"] == "yes" for row in table)
    harness.write_table(
        FOLDER / "runs.md",
        "Jobs without a target: foretold from a probe, and reached",
        COMMAND,
        table,
        f"{inside} of {len(table)} last losses are inside the interval that was foretold. "
        f"A probe for {PROBE:.0%} of the smallest budget measured {min(points)} to {max(points)} points of the curve.",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is missing."""
    options = harness.piecewise(__doc__).parse_args(arguments)
    rows = harness.Rows(FOLDER / "runs.csv", KEYS)
    wanted = [(job, budget) for job, budgets in BUDGETS.items() for budget in budgets]
    harness.measure(rows, wanted, run, lambda: write(rows), options)


if __name__ == "__main__":
    main()
