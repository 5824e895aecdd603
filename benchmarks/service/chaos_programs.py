"""Kill ranks, supervisors and the handler of a program at random instants, and check that nothing is lost.

    python -m benchmarks.service.chaos_programs 20 1     # 20 runs of seed 1; those of before are not repeated
    make chaos PROGRAM=1 N=20 SEED=1
    make chaos SLURM=1 N=20 SEED=1     # on a real Slurm with three nodes, whose daemons and nodes are killed, too

A run is a job of 14 epochs of a program whose workers change from one to two (`tests/chaos/program.py`), and one
SIGKILL. `tests.chaos.program_runs.losses` says what must hold afterwards. The runs add up in results/programs and
results/slurm.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, verdict, write_csv, write_table
from tests.chaos import program_runs, slurm_runs
from tests.chaos.program_runs import Fault
from tests.chaos.stage import Outcome
from tests.slurm.cluster import SlurmCluster

COMMANDS = {"programs": "make chaos PROGRAM=1", "slurm": "make chaos SLURM=1"}
VICTIMS: dict[str, type[StrEnum]] = {"programs": program_runs.Victim, "slurm": slurm_runs.Victim}
LEFT = {"programs": "a process", "slurm": "a process or Slurm job"}
SLURM_NOTE = """
Daemons and nodes are there again after 0 to 20 s, the controller after 0 to 5 s. What a program's own children leave
when the worker above them is killed is not counted: this cluster has `proctrack/linuxproc`, sites have cgroups.
[What was found](rounds.md), and mended."""
#: Runs at once: most of the time they wait. What is killed of Slurm is killed for all.
AT_ONCE = 2


def main() -> None:
    """Do the runs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--slurm", action="store_true")
    options = parser.parse_args()
    where = "slurm" if options.slurm else "programs"
    out = RESULTS / where / "chaos-runs.csv"
    out.parent.mkdir(exist_ok=True)
    rows = _read(out)
    done = {(row["seed"], row["run"]) for row in rows}
    todo = [number for number in range(options.runs) if (str(options.seed), str(number)) not in done]
    with ExitStack() as stack:
        if options.slurm:
            options.at_once = 1
            run = partial(slurm_runs.run_with, cluster=stack.enter_context(SlurmCluster()))
            asyncio.run(_run(options, [(one, slurm_runs.draw(options.seed, one)) for one in todo], run, rows, where))
        else:
            drawn = [(one, program_runs.draw(options.seed, one)) for one in todo]
            asyncio.run(_run(options, drawn, program_runs.run_with, rows, where))
    write(rows, where)
    raise SystemExit(verdict(rows, len(done)))


async def _run(
    options: argparse.Namespace,
    todo: Sequence[tuple[int, Fault]],
    run_with: Callable[[Fault], Awaitable[Outcome]],
    rows: list[dict[str, Any]],
    where: str,
) -> None:
    free = asyncio.Semaphore(options.at_once)
    head = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()

    async def one(number: int, fault: Fault) -> None:
        async with free:
            try:
                outcome = await run_with(fault)
            except AssertionError as error:
                outcome = Outcome("", [str(error)])
            rows.append(_row(options.seed, number, fault, outcome) | {"commit": commit})
            write_csv(RESULTS / where / "chaos-runs.csv", rows)
            write(rows, where)
            print(rows[-1], file=sys.stderr, flush=True)

    await asyncio.gather(*(one(*each) for each in todo))


def _row(seed: int, number: int, fault: Fault, outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": str(seed),
        "run": str(number),
        "victim": fault.victim.value,
        "regroups": str(int(fault.regroups)),
        "ahead": str(int(fault.ahead)),
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
        old = {"regroups": "0", "ahead": "0", "commit": ""}
        return [row | {name: row.get(name, none) for name, none in old.items()} for row in csv.DictReader(file)]


def write(rows: Sequence[dict[str, Any]], where: str) -> None:
    """The table by victim; runs in which the job ended before the fault are not counted."""
    hit = [row for row in rows if int(row["struck"]) or row["lost"]]
    if not hit:
        return
    table = []
    groups: dict[str, list[dict[str, Any]]] = {
        victim.value: [row for row in hit if row["victim"] == victim.value] for victim in VICTIMS[where]
    }
    groups["any, of jobs that queue the larger one ahead"] = [row for row in hit if row["ahead"] == "1"]
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
        "another end, an epoch missing, more than one trained twice, money that does not add up, or\n"
        f"{LEFT[where]} left.\n"
        "The line that a rank prints as its node dies, or what it runs under, may be lost; its checkpoint is not.\n"
        "The program trains 14 epochs of 1.6 s with one worker; Coach changes to two on the way."
    )
    if where == "slurm":
        commits = Counter(row["commit"] for row in rows)
        note += SLURM_NOTE + "\nRuns by commit: " + ", ".join(f"{count} at {of}" for of, count in commits.items()) + "."
    title = "Kill any part of a program at any instant" + (", or of Slurm" if where == "slurm" else "")
    write_table(RESULTS / where / "chaos.md", title, COMMANDS[where], table, note)


if __name__ == "__main__":
    main()
