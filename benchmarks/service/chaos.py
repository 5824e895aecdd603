"""Kill and stop every part of Coach at random instants, and check that nothing is lost.

    python -m benchmarks.service.chaos 100 1         # 100 runs of seed 1; those of before are not repeated
    make chaos N=100 SEED=1
    make chaos N=100 SEED=1 FRAMEWORK=pytorch        # results/chaos/pytorch.md; its workers survive each other

A run is a job of six epochs on real functions (`tests/chaos`) and one SIGKILL or SIGSTOP to one process. Afterwards
the job must have ended as if nothing had happened; `tests.chaos.stage.losses` says what that means. The runs add up
in results/chaos: a row for each, and a table by victim and signal.
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
from coach.core.spec.training import Framework, ParameterServer
from tests.chaos import runs
from tests.chaos.draw import SIGNALS, Fault, Victim, draw
from tests.chaos.stage import Outcome, Stage

RESULT = RESULTS / "chaos"
TABLES, TABLES_PYTORCH = ("runs.csv", "chaos.md"), ("runs-pytorch.csv", "pytorch.md")
TABLES_ELASTIC = ("runs-elastic.csv", "elastic.md")
COMMAND = "python -m benchmarks.service.chaos"
#: Runs at once: most of the time they wait for something to be noticed.
AT_ONCE = 4


def main() -> None:
    """Do the runs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--victims", nargs="*", default=[victim.value for victim in Victim])
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--framework", type=Framework, default=Framework.MXNET)
    parser.add_argument("--servers", type=ParameterServer, default=ParameterServer.PS_LITE)
    options = parser.parse_args()
    has_servers = options.framework is Framework.MXNET
    elastic = options.servers is ParameterServer.ELASTIC
    tables = TABLES_ELASTIC if elastic else TABLES if has_servers else TABLES_PYTORCH
    out, table = (RESULT / name for name in tables)
    rows = _read(out)
    done = {(row["seed"], row["run"]) for row in rows}
    wanted = {Victim(name) for name in options.victims}
    todo = [
        (number, fault)
        for number in range(options.runs)
        if (str(options.seed), str(number)) not in done
        and (fault := draw(options.seed, number, servers=has_servers)).victim in wanted
    ]
    if todo:
        asyncio.run(_run(options, todo, rows, out, table))
    if rows:
        write(rows, table)
    raise SystemExit(verdict(rows, len(done)))


async def _run(
    options: argparse.Namespace, todo: list[tuple[int, Fault]], rows: list[dict[str, Any]], out: Path, table: Path
) -> None:
    seed = options.seed
    async with Stage.open(options.framework, options.servers) as stage:
        free = asyncio.Semaphore(options.at_once)

        async def one(number: int, fault: Fault) -> None:
            async with free:
                try:
                    if fault.victim is Victim.HANDLER:
                        outcome = await runs.run_with(fault, stage)
                    else:
                        outcome = await stage.run_with(f"run-{seed}-{number}", fault)
                except AssertionError as error:
                    outcome = Outcome("", [str(error)])
                rows.append(_row(seed, number, fault, outcome))
                write_csv(out, rows)
                write(rows, table)
                print(_words(rows[-1]), file=sys.stderr, flush=True)

        await asyncio.gather(*(one(number, fault) for number, fault in todo))


def _row(seed: int, number: int, fault: Fault, outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": str(seed),
        "run": str(number),
        "victim": fault.victim.value,
        "signal": fault.signal,
        "instant": fault.instant.value,
        "role": fault.role,
        "struck": outcome.struck.partition(" ")[0],
        "attempts": outcome.attempts,
        "epochs": outcome.epochs,
        "seconds": f"{outcome.seconds:.1f}",
        "noticed": " | ".join(outcome.failures),
        "lost": " | ".join(outcome.lost),
    }


def _words(row: dict[str, Any]) -> str:
    what = f"{row['signal']} {row['victim']} ({row['role']}) {row['instant']}"
    how = f"LOST {row['lost']}" if row["lost"] else ("ok" if row["struck"] else "ended before")
    return f"{row['seed']}/{row['run']} {what}: {how}, {row['seconds']} s; {row['noticed']}"


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """The table by victim and signal; runs in which the job ended before the fault are not counted."""
    hit = [row for row in rows if row["struck"] or row["lost"]]
    table = []
    for victim in dict.fromkeys([*map(str, Victim), *(row["victim"] for row in hit)]):  # also those there were
        of = [row for row in hit if row["victim"] == victim]
        if of:
            line: dict[str, Any] = {"victim": victim}
            for name in SIGNALS:
                line[name] = sum(row["signal"] == name for row in of)
            line["epochs repeated"] = sum(int(row["attempts"]) - int(row["epochs"]) for row in of)
            line["median seconds"] = sorted(float(row["seconds"]) for row in of)[len(of) // 2]
            line["losses"] = sum(bool(row["lost"]) for row in of)
            table.append(line)
    total: dict[str, Any] = {"victim": "all"}
    for name in SIGNALS:
        total[name] = sum(line[name] for line in table)
    total["epochs repeated"] = sum(line["epochs repeated"] for line in table)
    total["median seconds"] = sorted(float(row["seconds"]) for row in hit)[len(hit) // 2] if hit else 0.0
    total["losses"] = sum(line["losses"] for line in table)
    named = ", ".join(map(str, sorted({int(row["seed"]) for row in rows})))
    note = (
        f"Runs by victim and signal, of the seeds {named}; {len(rows) - len(hit)} more, in which the job ended\n"
        "before the fault, are not counted. A loss is anything that is not as if nothing had happened: another end,\n"
        "two epochs repeated, another loss curve, money that does not add up, a process, socket or file left.\n"
        "[What was found](rounds.md), and mended."
    )
    write_table(out, "Kill any part at any instant", COMMAND, [*table, total], note)


if __name__ == "__main__":
    main()
