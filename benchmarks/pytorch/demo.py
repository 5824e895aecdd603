"""The demo's job in PyTorch beside the same in MXNet: completion, cost, and what probing takes of the time.

    python -m benchmarks.pytorch.demo [--repeats 5] [--next [RUNS]]

Runs by turns, on this machine as it is; rows in results/pytorch/demo.csv, which are not run again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.training import static_grid

COMMAND = "python -m benchmarks.pytorch.demo"
FOLDER = harness.RESULTS / "pytorch"
JOBS = {"PyTorch": "jobs/lenet-digits-pytorch.yaml", "MXNet": "jobs/lenet-digits.yaml"}
KEYS = ("framework", "repeat")
VALUES = ("epochs", "completion_seconds", "cost", "probing_share", "probing_and_starts_share")


def run(framework: str, repeat: int) -> dict[str, Any]:
    """One run's row."""
    (spec,) = harness.load(JOBS[framework])
    (job,) = harness.run([spec])
    return {"framework": framework, **static_grid.row_of("coach", repeat, job)}


def write(rows: harness.Rows) -> None:
    """The table of what there is so far."""
    table = harness.medians(rows.rows, "framework", VALUES)
    harness.write_table(
        FOLDER / "demo.md",
        "The demo in PyTorch beside MXNet (medians)",
        COMMAND,
        table,
        "Cost in USD, of different gangs: MXNet's have parameter servers. Goal for PyTorch's probing: below 3 % of the "
        "time.",
    )


def main() -> None:
    """Run what is missing."""
    options = harness.piecewise(__doc__, repeats=5).parse_args()
    rows = harness.Rows(FOLDER / "demo.csv", KEYS)
    wanted = [(framework, repeat) for repeat in range(options.repeats) for framework in JOBS]
    harness.measure(rows, wanted, run, partial(write, rows), options)


if __name__ == "__main__":
    main()
