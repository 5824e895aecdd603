"""Kill ranks, supervisors and the handler of a program at random instants, and check that nothing is lost.

    python -m benchmarks.service.chaos_programs 20 1     # 20 runs of seed 1; those of before are not repeated
    make chaos PROGRAM=1 N=20 SEED=1

A run is a job of 14 epochs of a program whose workers change from one to two (`tests/chaos/program.py`), and one
SIGKILL. `tests.chaos.program_runs.losses` says what must hold afterwards. The runs add up in results/programs.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, verdict, write_csv, write_table
from tests.chaos.program_runs import Fault, Victim, draw, run_with
from tests.chaos.stage import Outcome

RESULT = RESULTS / "programs"
COMMAND = "make chaos PROGRAM=1"
#: Runs at once: most of the time they wait.
AT_ONCE = 2


def main() -> None:
    """Do the runs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    options = parser.parse_args()
    out = RESULT / "chaos-runs.csv"
    rows = _read(out)
    done = {(row["seed"], row["run"]) for row in rows}
    todo = [number for number in range(options.runs) if (str(options.seed), str(number)) not in done]
    asyncio.run(_run(options, todo, rows, out))
    write(rows, RESULT / "chaos.md")
    raise SystemExit(verdict(rows, len(done)))


async def _run(options: argparse.Namespace, todo: Sequence[int], rows: list[dict[str, Any]], out: Path) -> None:
    free = asyncio.Semaphore(options.at_once)

    async def one(number: int) -> None:
        async with free:
            fault = draw(options.seed, number)
            try:
                outcome = await run_with(fault)
            except AssertionError as error:
                outcome = Outcome("", [str(error)])
            rows.append(_row(options.seed, number, fault, outcome))
            write_csv(out, rows)
            print(rows[-1], file=sys.stderr, flush=True)

    await asyncio.gather(*map(one, todo))


def _row(seed: int, number: int, fault: Fault, outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": str(seed),
        "run": str(number),
        "victim": fault.victim.value,
        "regroups": str(int(fault.regroups)),
        "reports": fault.reports,
        "struck": int(bool(outcome.struck)),
        "attempts": outcome.attempts,
        "epochs": outcome.epochs,
        "seconds": f"{outcome.seconds:.1f}",
        "lost": " | ".join(outcome.lost),
    }


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{**row, "regroups": row.get("regroups", "0")} for row in csv.DictReader(file)]


def write(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """The table by victim; runs in which the job ended before the fault are not counted."""
    hit = [row for row in rows if int(row["struck"]) or row["lost"]]
    table = []
    groups: dict[str, list[dict[str, Any]]] = {
        victim.value: [row for row in hit if row["victim"] == victim.value] for victim in Victim
    }
    groups["any, of programs that change workers in the same process"] = [r for r in hit if r["regroups"] == "1"]
    for name, of in {**groups, "all": hit}.items():
        if of:
            repeated = sum(int(row["attempts"]) - int(row["epochs"]) for row in of)
            seconds = sorted(float(row["seconds"]) for row in of)[len(of) // 2]
            losses = sum(bool(row["lost"]) for row in of)
            line = {"SIGKILL to": name, "runs": len(of), "intervals begun again": repeated}
            table.append({**line, "median seconds": seconds, "losses": losses})
    note = (
        f"{len(rows) - len(hit)} more runs, in which the job ended before the fault, are not counted. A loss is\n"
        "another end, an epoch missing, more than one trained twice, money that does not add up, or a process left.\n"
        "The program trains 14 epochs of 1.6 s with one worker; Coach changes to two on the way."
    )
    write_table(out, "Kill any part of a program at any instant", COMMAND, table, note)


if __name__ == "__main__":
    main()
