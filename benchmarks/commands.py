"""How long commands that only look take to start, as multiples of an empty Python.

    python -m benchmarks.commands [ROUNDS]    # 11, two minutes on a quiet machine; results/service/commands.md

CPU seconds, user's and system's, which other programs on the machine change little. One process after the other, each
command and `python -c pass` in turn; medians. The state folder has one job that has ended, of eight epochs, from
tests/report/recorded_jobs.py, with what its handler has written of it, and without.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.report.recorded_jobs import steady_job
from tests.service.local.test_quick import kept

RESULT = Path("results/service/commands.md")
COACH = [str(Path(sys.executable).with_name("coach"))]
EMPTY = [sys.executable, "-c", "pass"]
#: What the handler has written.
READING = ("ps", "why steady", "show steady")
#: Imports alone of what draws and of what tries, below which their commands cannot come.
COMMANDS = {
    "python -c pass": EMPTY,
    **{
        f"coach {words}": [*COACH, *words.split()]
        for words in ("--version", "--help", "ps", "why steady", "show steady", "validate jobs/a.yaml")
    },
    **{f"coach {words}, computed": ["env", "COACH_HOME={home}-computed", *COACH, *words.split()] for words in READING},
    "python -c 'import matplotlib.pyplot'": [sys.executable, "-c", "import matplotlib.pyplot"],
    "coach plot steady": [*COACH, "plot", "steady", "--dir", "{home}/figures"],
    "coach doctor": [*COACH, "doctor"],
}


def seconds(command: list[str]) -> float:
    """CPU seconds of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Write the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COACH_HOME"] = f"{folder}/home"
        home, plain = StateDirectory(Path(folder, "home")), StateDirectory(Path(folder, "home-computed"))
        with kept(home, steady_job()), contextlib.closing(Journal.write(plain.journal(1))) as journal:
            journal.append(steady_job().history)
        measured: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(rounds):
            for name, words in COMMANDS.items():
                measured[name].append(seconds([word.replace("{home}", f"{folder}/home") for word in words]))
    middle = {name: statistics.median(each) for name, each in measured.items()}
    empty = middle["python -c pass"]
    lines = [
        "# How long commands take to start",
        "",
        f"`python -m benchmarks.commands {rounds}`: medians of {rounds} processes each, one after the other.",
        "Goal: 12 times `python -c pass` for `--help`, `ps`, `why` and `show`; `plot` no slower than its imports.",
        "",
        "| command | CPU s | times `python -c pass` |",
        "| --- | ---: | ---: |",
        *(f"| `{name}` | {middle[name]:.2f} | {middle[name] / empty:.1f} |" for name in COMMANDS),
    ]
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
