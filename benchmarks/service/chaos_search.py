"""Kill the handler of a search at random instants, and check that nothing is lost.

    python -m benchmarks.service.chaos_search 100 1     # 100 runs of seed 1; those of before are not repeated
    make chaos SEARCH=1 N=100 SEED=1

A run is a search of four trials and two final seeds of a real program (`tests/chaos/search_runs.py`), and one SIGKILL:
in turn to `coach search`, which is then started again, and to `coach serve`, which has the search. The runs add up in
results/search.
"""

from __future__ import annotations

import csv
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.harness import RESULTS, verdict, write_csv, write_table
from tests.chaos.search_runs import draw, run_with

OUT = RESULTS / "search"
COMMAND = "make chaos SEARCH=1"
#: Runs at once: most of the time they wait.
AT_ONCE = 2


def main() -> None:
    """Do the runs, and write the table."""
    count, seed = int(sys.argv[1]), sys.argv[2]
    path = OUT / "chaos-runs.csv"
    rows = list(csv.DictReader(path.open(newline=""))) if path.exists() else []
    done = {(row["seed"], row["run"]) for row in rows}

    def one(number: int) -> None:
        fault, began = draw(int(seed), number), time.monotonic()
        try:
            lost, struck = run_with(fault)
        except Exception as error:
            lost, struck = [f"{type(error).__name__}: {error}"], True
        victim = "coach serve" if fault.service else "coach search"
        row = {
            "seed": seed,
            "run": str(number),
            "victim": victim,
            "lines": str(fault.lines),
            "struck": str(int(struck)),
        }
        rows.append({**row, "seconds": f"{time.monotonic() - began:.1f}", "lost": " | ".join(lost)})
        write_csv(path, rows)
        print(rows[-1], file=sys.stderr, flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, [number for number in range(count) if (seed, str(number)) not in done]))
    hit = [row for row in rows if row["struck"] == "1" or row["lost"]]
    table = []
    for victim in ("coach search", "coach serve", ""):
        of = [row for row in hit if row["victim"] == victim or not victim]
        seconds = sorted(float(row["seconds"]) for row in of)
        middle = seconds[len(of) // 2] if of else ""
        losses = sum(bool(row["lost"]) for row in of)
        table.append({"SIGKILL to": victim or "all", "runs": len(of), "median seconds": middle, "losses": losses})
    note = (
        f"{len(rows) - len(hit)} more runs, in which the search ended before the fault, are not counted. A loss is\n"
        "another best trial, parameters that changed, a final seed missing, an epoch trained twice, money that does\n"
        "not add up or exceeds the budget, or something held at the end."
    )
    write_table(OUT / "chaos.md", "Kill the handler of a search at any instant", COMMAND, table, note)
    raise SystemExit(verdict(rows, len(done)))


if __name__ == "__main__":
    main()
