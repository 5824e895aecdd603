"""What Coach adds between two starts of a program, on each platform that starts programs here.

    python -m benchmarks.platforms                  # 3 rounds, interleaved; results/platforms.md
    python -m benchmarks.platforms --rounds 5 --without slurm

A program fails five times after a report, and resumes; there are four times between two such starts. Measured is the
time from the end of one process to the first line of the next, by both processes' own clocks. Next to it is the same
program in a loop of the shell: of processes on this machine; of `srun`, each with an allocation of its own, on a real
Slurm with three nodes (root, and Debian's packages, as `make test-slurm`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import RESULTS, write_table
from tests.slurm.cluster import SlurmCluster

#: Starts of a run; the last one is ended at the target.
STARTS = 6
PROGRAM = f"""
import os, pathlib, sys, time
began = time.time()
times = pathlib.Path(os.environ["TIMES"])
starts = times.read_text().count("start") + 1 if times.exists() else 1
time.sleep(1.0)
print(f"epoch {{starts}}: val loss: {{1 / starts:.4f}}", flush=True)
time.sleep(1.0 if starts < {STARTS} else 30.0)
with times.open("a") as file:
    file.write(f"start {{began}} {{time.time()}}\\n")
sys.exit(1)
"""
COMMAND = "python -m benchmarks.platforms"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", choices=["slurm"], nargs="*", default=[])
    options = parser.parse_args()
    gaps: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="platforms-")))
        (folder / "train.py").write_text(PROGRAM)
        platforms: dict[str, tuple[str, Sequence[str], Mapping[str, str]]] = {
            "this machine": ("{program}", ("--nodes", "1x2"), os.environ)
        }
        if "slurm" not in options.without:
            env = stack.enter_context(SlurmCluster()).env
            platforms["Slurm"] = ("srun --quiet --mem-per-cpu=100 {program}", ("--platform", "slurm"), env)
        for number in range(options.rounds):
            for name, (alone, words, env) in platforms.items():
                for how in ("alone", "Coach"):
                    times = folder / f"{name} {how} {number}".replace(" ", "-")
                    found = gaps.setdefault(name, {}).setdefault(how, [])
                    found += _gaps(folder, {**env, "TIMES": str(times)}, alone if how == "alone" else words, times)
                    print(name, how, [f"{gap:.2f}" for gap in found[2 - STARTS :]], file=sys.stderr, flush=True)
    rows = []
    for name, of in gaps.items():
        alone, coach = (statistics.median(of[how]) for how in ("alone", "Coach"))
        line = {"platform": name, "pairs of starts": len(of["Coach"]), "in a loop of the shell, s": f"{alone:.2f}"}
        most = f"{coach:.2f} ({min(of['Coach']):.2f} to {max(of['Coach']):.2f})"
        rows.append({**line, "under Coach, s": most, "Coach adds, s": f"{coach - alone:.2f}"})
    note = (
        "Medians of seconds between the end of one process and the first line of the next, interleaved; in brackets\n"
        f"the shortest and the longest. Load average: {os.getloadavg()[0]:.0f}. Slurm's loop is `srun`, each with an\n"
        "allocation of its own. Not measured on Kubernetes: pods need the test cluster's images ([epochs\n"
        "there](kubernetes/same-job.md)).\n"
    )
    write_table(RESULTS / "platforms.md", "Between two starts of a program", COMMAND, rows, note)


def _gaps(folder: Path, env: Mapping[str, str], how: str | Sequence[str], times: Path) -> list[float]:
    """The seconds between two starts, of one run: a command of the shell, or options of `coach run`."""
    program = f"{shlex.quote(sys.executable)} {folder}/train.py"
    if isinstance(how, str):
        once = how.format(program=program)
        command = ["sh", "-c", f"for start in $(seq {STARTS - 1}); do {once}; done; true"]
    else:
        own = ["--budget", "1USD", "--target", f"val_loss={1 / STARTS + 1e-3}", "--resumes", "--no-live", "--cpu", "1"]
        command = [sys.executable, "-m", "coach.cli.main", "run", *how, *own, "--memory", "200Mi", "--metric"]
        command += ["val loss: (\\S+)", "--", *shlex.split(program)]
    home = {"COACH_HOME": f"{times}.home", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env={**env, **home}, cwd=folder, capture_output=True, text=True, check=False)
    spans = [[float(each) for each in line.split()[1:]] for line in times.read_text().splitlines()]
    if len(spans) < STARTS - 1:
        raise SystemExit(f"{len(spans)} starts: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return [after[0] - before[1] for before, after in pairwise(spans)]


if __name__ == "__main__":
    main()
