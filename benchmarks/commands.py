"""How long commands that only look take to start, as multiples of an empty Python.

    python -m benchmarks.commands [ROUNDS]    # 11, two minutes on a quiet machine; results/service/commands.md

One process after the other, each command and `python -c pass` in turn; medians. The state folder has one job that has
ended, of eight epochs, from tests/report/recorded_jobs.py.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.report.recorded_jobs import steady_job

RESULT = Path("results/service/commands.md")
COACH = [str(Path(sys.executable).with_name("coach"))]
EMPTY = [sys.executable, "-c", "pass"]
#: Imports alone of what draws and of what tries, below which their commands cannot come.
COMMANDS = {
    "python -c pass": EMPTY,
    **{
        f"coach {words}": [*COACH, *words.split()]
        for words in ("--version", "ps", "why steady", "show steady", "validate jobs/a.yaml")
    },
    "python -c 'import matplotlib.pyplot'": [sys.executable, "-c", "import matplotlib.pyplot"],
    "coach plot steady": [*COACH, "plot", "steady", "--dir", "{home}/figures"],
    "coach doctor": [*COACH, "doctor"],
}


def seconds(command: list[str]) -> float:
    """Wall seconds of one process."""
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - begin


def main() -> None:
    """Write the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COACH_HOME"] = folder
        journal = Journal.write(StateDirectory(Path(folder)).journal(1))
        journal.append(steady_job().history)
        journal.close()
        measured: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(rounds):
            for name, words in COMMANDS.items():
                measured[name].append(seconds([word.replace("{home}", folder) for word in words]))
    middle = {name: statistics.median(each) for name, each in measured.items()}
    empty = middle["python -c pass"]
    lines = [
        "# How long commands take to start",
        "",
        f"`python -m benchmarks.commands {rounds}`: medians of {rounds} processes each, one after the other.",
        "Goal: 0.3 s for `--version`, `ps`, `why` and `show`; `plot` no slower than its imports.",
        "",
        "| command | s | times `python -c pass` |",
        "| --- | ---: | ---: |",
        *(f"| `{name}` | {middle[name]:.2f} | {middle[name] / empty:.1f} |" for name in COMMANDS),
    ]
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
