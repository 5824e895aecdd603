"""Run random histories of gangs on the scheduler's pure packages, and add them up by seed.

    python -m benchmarks.decisions.scheduler_histories            # continues results/scheduler/histories.csv
    python -m benchmarks.decisions.scheduler_histories --until 100000 --part 5000

Each history (`scheduler-plugins/pkg/backfill/history_test.go`) is drawn from its seed: gangs arrive, start, grow
and end on a small cluster under a random backfill policy. After every round the test checks for partial gangs and
over-commitment, and the bounds of bypassing. A brute-force oracle, which tries every node for every member, checks each
verdict that is small enough. At the end every gang that fits the empty cluster must have run. A violation ends the run
with its seed, and no row is written. Columns are counts over the seeds `first` to `end` (excluded).
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "results" / "scheduler" / "histories.csv"
COLUMNS = ("first", "end", "gangs", "started", "waited", "passed", "verdicts", "broken")
SUMMARY = re.compile(
    r"histories (\d+)-(\d+): gangs (\d+), started (\d+), waited (\d+), passed (\d+), verdicts checked (\d+)"
)


def rows() -> list[dict[str, int]]:
    """The parts that were run so far, in the order of their seeds."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]


def play(program: Path, first: int, end: int) -> dict[str, int]:
    """Run one part; raises CalledProcessError, after printing the test's output, on a violation."""
    done = subprocess.run(
        [str(program), "-test.run", "^TestHistories$", "-test.v", "-test.timeout", "1h"],
        env={**os.environ, "COACH_HISTORIES": f"{first}-{end}"},
        capture_output=True,
        text=True,
        check=False,
        cwd=program.parent,
    )
    counts = SUMMARY.search(done.stdout)
    if done.returncode or counts is None:
        sys.stderr.write(done.stdout + done.stderr)
        raise subprocess.CalledProcessError(done.returncode, "TestHistories")
    return dict(zip(COLUMNS, [*map(int, counts.groups()), 0], strict=True))


def main() -> None:
    """Go on after the last seed, part by part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--until", type=int, default=100_000, help="the seed to stop before")
    parser.add_argument("--part", type=int, default=5_000, help="seeds a row")
    arguments = parser.parse_args()
    played = rows()
    next_seed = max((row["end"] for row in played), default=0)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coach-histories-") as folder:
        program = Path(folder) / "histories"
        go = ["go", "test", "-c", "-o", str(program), "./pkg/backfill"]
        subprocess.run(go, cwd=ROOT / "scheduler-plugins", check=True)
        while next_seed < arguments.until:
            end = min(next_seed + arguments.part, arguments.until)
            played.append(play(program, next_seed, end))
            next_seed = end
            with TABLE.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(played)
            print(f"{next_seed} of {arguments.until} histories, no violation", flush=True)


if __name__ == "__main__":
    main()
