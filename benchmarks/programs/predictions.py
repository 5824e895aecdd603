"""Time and money of whole jobs as they were predicted half-way, compared with what they took.

    python -m benchmarks.programs.predictions            # five programs, three seeds each: 10 minutes

A job's prediction half-way is the one that it made when the report came after which half of its seconds had passed:
bounds of 80 % and an expected value, of all its seconds and of all its money, as `coach show` has them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import replace
from typing import Any

from benchmarks.harness import RESULTS, write_csv, write_table
from benchmarks.programs.public import PROGRAMS, Program, trained
from coach.core.jobs.job import Job
from coach.core.money import to_amount
from coach.platforms.local import pytorch_runtime

RESULT = RESULTS / "programs"
COMMAND = "python -m benchmarks.programs.predictions"
#: Targets that take 20 to 40 s and 15 reports or more, by program.
TARGETS = {
    "mnist": ("loss=0.02", "--lr 0.05 --gamma 1.0 --epochs 100"),
    "word_language_model": ("valid_ppl<=6.1", "--lr 4.0"),
    "super_resolution": ("PSNR>=24", "--lr 0.0005 --nEpochs 200"),
    "ultralytics": ("map50>=0.97", ""),
    "mingpt_ddp": ("eval_loss=1.9", ""),
}


def main() -> None:
    """Run all, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    python = str(pytorch_runtime.torch().python)
    rows = []
    for name in options.programs:
        program = next(one for one in PROGRAMS if one.function == name)
        for seed in range(1, options.seeds + 1):
            rows.append({"program": program.name, "seed": seed, **half_way(measured(program, seed, python))})
            print(rows[-1], file=sys.stderr, flush=True)
            write_csv(RESULT / "predictions.csv", rows)
    write(rows)


def measured(program: Program, seed: int, python: str) -> Job:
    """A run of it, with one worker."""
    target, arguments = TARGETS[program.function]
    one = replace(
        program,
        target=target,
        arguments=f"{arguments} --seed {seed}",
        workers="1",
        resumes=False,
        budget="0.05USD",
    )
    job, _ = trained(one, python)
    return job


def half_way(job: Job) -> dict[str, Any]:
    """What was predicted half-way, and what came."""
    began, ended = job.epochs[0].started_at, job.epochs[-1].ended_at
    seconds, cost = job.run_seconds, to_amount(job.ledger.spent)
    half = [epoch for epoch in job.epochs if epoch.started_at >= (began + ended) / 2]
    forecast = half[0].job_forecast if half else None
    row: dict[str, Any] = {"came out": job.reason.value if job.reason else "", "reports": len(job.epochs)}
    for name, real in (("seconds", seconds), ("cost", cost)):
        low, expected, high = getattr(forecast, name) if forecast else (0.0, 0.0, 0.0)
        row |= {
            name: f"{real:.6g}",
            f"{name} predicted": f"{expected:.6g}",
            f"{name} low": f"{low:.6g}",
            f"{name} high": f"{high:.6g}",
        }
    return row


def write(rows: list[dict[str, Any]]) -> None:
    """The table."""
    table = []
    for name in dict.fromkeys(row["program"] for row in rows):
        of = [row for row in rows if row["program"] == name]
        line: dict[str, Any] = {
            "program": name,
            "runs": len(of),
            "reports": f"{statistics.median(row['reports'] for row in of):g}",
        }
        for key, unit in (("seconds", "s"), ("cost", "USD")):
            real = [float(row[key]) for row in of]
            errors = [float(row[f"{key} predicted"]) / value - 1 for row, value in zip(of, real, strict=True)]
            inside = sum(
                float(row[f"{key} low"]) <= value <= float(row[f"{key} high"])
                for row, value in zip(of, real, strict=True)
            )
            line |= {
                f"{key}, median {unit}": f"{statistics.median(real):.3g}",
                f"{key} predicted, error of each run": ", ".join(f"{error:+.0%}" for error in errors),
                f"{key} within its bounds": f"{inside} of {len(of)}",
            }
        table.append(line)
    note = (
        "Predictions half-way of the whole job, with bounds of 80 %. Error: predicted, compared with what it took.\n"
        f"Load average at the end: {os.getloadavg()[1]:.1f}."
    )
    write_table(RESULT / "predictions.md", "Predicted half-way, and real", COMMAND, table, note)


if __name__ == "__main__":
    main()
