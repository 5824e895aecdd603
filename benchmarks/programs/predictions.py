"""Time and money of whole jobs as they were predicted half-way, compared with what they took.

    python -m benchmarks.programs.predictions --again    # five programs, three seeds each: 15 minutes
    python -m benchmarks.programs.predictions            # goes on where it was stopped

A job's prediction half-way is the one that it made when the report came after which half of its seconds had passed:
bounds of 80 % and an expected value, of all its seconds and of all its money, as `coach show` has them.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import replace
from typing import Any

from benchmarks.harness import RESULTS, read_csv, write_csv, write_table
from benchmarks.programs.public import PROGRAMS, Program, trained
from coach.core.jobs.job import Job
from coach.core.money import to_amount
from coach.platforms.local import pytorch_runtime

RESULT = RESULTS / "programs"
COMMAND = "python -m benchmarks.programs.predictions"
#: Targets by program; those of the first two are what a plain run of seed 9 had after 38 and 10 epochs.
TARGETS = {
    "mnist": ("loss=0.12", "--lr 0.05 --gamma 1.0 --epochs 100"),
    "word_language_model": ("valid_ppl<=7.2", "--lr 4.0"),
    "super_resolution": ("PSNR>=24", "--lr 0.0005 --nEpochs 200"),
    "ultralytics": ("map50>=0.97", ""),
    "mingpt_ddp": ("eval_loss=2.7", "--batch_size 128"),
}


def main() -> None:
    """Run all, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--again", action="store_true", help="keep no row of an earlier run")
    options = parser.parse_args()
    python, out = str(pytorch_runtime.torch().python), RESULT / "predictions.csv"
    rows = [] if options.again else read_csv(out)
    there = {(row["program"], int(row["seed"])) for row in rows}
    for name in options.programs:
        program = next(one for one in PROGRAMS if one.function == name)
        for seed in range(1, options.seeds + 1):
            if (program.name, seed) in there:
                continue
            row = {"program": program.name, "seed": seed, **half_way(measured(program, seed, python))}
            rows.append(row)
            write_csv(out, rows)
            took = f"{float(row['seconds']):.0f} s, half-way {float(row['seconds predicted']):.0f} s"
            print(f"{program.name}, seed {seed}: {row['came out']}, {row['reports']} reports, {took}", flush=True)
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
    seconds, cost = job.progress.run_seconds, to_amount(job.money.ledger.spent)
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
    """The table, of the runs that reached their targets, and had a prediction half-way."""
    good = [row for row in rows if row["came out"] == "TargetReached" and float(row["seconds predicted"])]
    table, all_errors, all_inside = [], dict[str, list[float]](), dict[str, int]()
    for name in dict.fromkeys(row["program"] for row in rows):
        of = [row for row in good if row["program"] == name]
        line: dict[str, Any] = {
            "program": name,
            "reached its target": f"{len(of)} of {sum(row['program'] == name for row in rows)}",
            "reports": f"{statistics.median(int(row['reports']) for row in of):g}" if of else "",
        }
        for key, unit in (("seconds", "s"), ("cost", "USD")):
            real = [float(row[key]) for row in of]
            errors = [float(row[f"{key} predicted"]) / value - 1 for row, value in zip(of, real, strict=True)]
            inside = sum(
                float(row[f"{key} low"]) <= value <= float(row[f"{key} high"])
                for row, value in zip(of, real, strict=True)
            )
            all_errors.setdefault(key, []).extend(map(abs, errors))
            all_inside[key] = all_inside.get(key, 0) + inside
            line |= {
                f"{key}, median {unit}": f"{statistics.median(real):.3g}" if of else "",
                f"{key} predicted, error of each run": ", ".join(f"{error:+.0%}" for error in errors),
                f"{key} within its bounds": f"{inside} of {len(of)}",
            }
        table.append(line)
    words = [
        f"{key} off by {statistics.median(errors):.0%} in the median, in bounds {all_inside[key]} of {len(good)} times"
        for key, errors in all_errors.items()
        if errors
    ]
    note = (
        f"{len(good)} of {len(rows)} runs reached their targets. Predicted half-way: {'; '.join(words)}.\n"
        "Predictions of the whole job, with bounds of 80 %. Error: predicted, compared with what it took.\n"
        f"Load average at the end: {os.getloadavg()[1]:.1f}."
    )
    print(note)
    write_table(RESULT / "predictions.md", "Predicted half-way, and real", COMMAND, table, note)


if __name__ == "__main__":
    main()
