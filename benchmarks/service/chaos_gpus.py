"""Kill programs, data loaders, supervisors and handlers of three people who share a machine's GPUs; count the losses.

    python -m benchmarks.service.chaos_gpus 200 1 --gpus 4     # 200 kills of seed 1
    make chaos GPUS=4 N=200 SEED=1

The GPUs are those of a stand-in for NVIDIA's library (`tests/gpus`), programs and Coach are real. What a loss is says
`tests.chaos.gpus.box`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, write_csv, write_table
from tests.chaos.gpus.box import Box, Victim

AT_END = "the end"


def main() -> None:
    """Do the kills, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--gpus", type=int, default=4)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def note(victim: str, lost: list[str]) -> None:
        rows.append({"seed": options.seed, "victim": victim, "lost": " | ".join(lost)})
        print(rows[-1], file=sys.stderr, flush=True)
        _write(rows, options.gpus, options.seed, box.ended)

    with tempfile.TemporaryDirectory(prefix="coach-gpus-") as folder:
        box = Box(Path(folder), options.gpus, options.seed)
        try:
            for _ in range(options.kills):
                kill = box.kill()
                note(kill.victim.value, kill.lost)
            note(AT_END, box.end())
        finally:
            box.close()
    raise SystemExit(any(row["lost"] for row in rows))


def _write(rows: list[dict[str, Any]], gpus: int, seed: int, ended: int) -> None:
    out = RESULTS / "gpus"
    out.mkdir(exist_ok=True)
    write_csv(out / "chaos-kills.csv", rows)
    kills, losses = (Counter(row["victim"] for row in some) for some in (rows, [row for row in rows if row["lost"]]))
    names = [*(victim.value for victim in Victim), *([AT_END] if kills[AT_END] else [])]
    table = [{"SIGKILL to": name, "times": kills[name], "losses": losses[name]} for name in names]
    times = kills.total() - kills[AT_END]
    table.append({"SIGKILL to": "all", "times": times, "losses": losses.total()})
    words = (
        f"Three people run two jobs each, again and again, of one GPU, two, or two workers with one each; {ended}\n"
        "runs came to their ends by themselves. A loss is a GPU that two processes have open at once, one held\n"
        "for a job whose run is over, or one that cannot be had at the end, when a job asks for all of them.\n"
        "The GPUs are a stand-in's; it was never run on a machine with two."
    )
    command = f"make chaos GPUS={gpus} N={times} SEED={seed}"
    write_table(out / "chaos.md", f"Kill what holds one of {gpus} GPUs at any instant", command, table, words)


if __name__ == "__main__":
    main()
