"""Simulated histories with random clusters, prices, speeds, curves and faults, checked after every event.

    python -m benchmarks.decisions.fault_runs 10000         # pieces of 500 histories, each from a seed of its own
    python -m benchmarks.decisions.fault_runs 10000 --anew  # without the pieces of earlier runs

`tests/core/lifecycle/random_histories.py` draws the histories, `tests/core/lifecycle/faulty_cluster.py` has the rules:
never overspent, no partial gang, no node over-committed, nothing twice, nothing lost, every job ends. Pieces add up in
results/fault-runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys

from benchmarks.harness import RESULTS, ROOT, write_csv, write_table

ROWS = RESULTS / "fault-runs" / "pieces.csv"
COMMAND = "python -m benchmarks.decisions.fault_runs 10000"
PIECE = 500


def main() -> None:
    """Run piece after piece, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("histories", type=int, nargs="?", default=10_000)
    parser.add_argument("--anew", action="store_true")
    options = parser.parse_args()
    pieces: list[dict[str, str]] = []
    if ROWS.exists() and not options.anew:
        with ROWS.open(newline="") as file:
            pieces = list(csv.DictReader(file))
    for seed in range(len(pieces) + 1, options.histories // PIECE + 1):
        # A process a piece: its memory is freed, and others can use the machine between two.
        done = subprocess.run(
            [sys.executable, "-m", "tests.core.lifecycle.random_histories", str(PIECE), str(seed)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        counts = dict(
            (cell.strip() for cell in line.strip("| ").split("|"))
            for line in done.stdout.splitlines()
            if line.startswith("| ") and "---" not in line and "| count |" not in line
        )
        broken = [line for line in done.stdout.splitlines() if line.startswith("history ")]
        if not counts:
            raise SystemExit(f"piece {seed} did not end: {done.stderr[-2000:]}")
        pieces.append(
            {
                "seed": str(seed),
                "histories": str(PIECE),
                "counts": json.dumps(counts),
                "broken": " | ".join(broken),
            }
        )
        write_csv(ROWS, pieces)
        write(pieces)
        print(f"piece {seed}: {counts.get('overshoots')} overshoots, {len(broken)} broken", file=sys.stderr)


def write(pieces: list[dict[str, str]]) -> None:
    """The table of all pieces together."""
    total: dict[str, int] = {"histories": sum(int(piece["histories"]) for piece in pieces)}
    for piece in pieces:
        for what, count in json.loads(piece["counts"]).items():
            total[what] = total.get(what, 0) + int(count)
    rows = [{"what": what, "count": count} for what, count in total.items()]
    note = "\n".join(piece["broken"] for piece in pieces if piece["broken"])
    write_table(
        RESULTS / "fault-runs" / "fault-runs.md",
        "Simulated histories with faults of every kind",
        COMMAND,
        rows,
        note,
    )


if __name__ == "__main__":
    main()
