"""What Coach adds between two starts of a program, on each platform that starts programs here.

    python -m benchmarks.platforms                  # 3 rounds, interleaved; results/platforms.md
    python -m benchmarks.platforms --rounds 5 --without slurm kubernetes

A program fails five times after a report, and resumes; there are four times between two such starts. Measured is the
time from the end of one process to the first line of the next, by both processes' own clocks. Next to it is the same
program in a loop of the shell: of processes on this machine; of `srun`, each with an allocation of its own, on a real
Slurm with three nodes (root, and Debian's packages, as `make test-slurm`); of pods on a real Kubernetes with three
nodes (what `make test-kubernetes` builds).
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import RESULTS, write_table
from scripts import images
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.installed import Coach
from tests.kubernetes.test_programs import IMAGE, program
from tests.slurm.cluster import SlurmCluster

#: Starts of a run; the last one is ended at the target.
STARTS = 6
PROGRAM = f"""
import os, pathlib, sys, time
began = time.time()
times = pathlib.Path(os.environ.get("TIMES") or os.environ.get("COACH_CHECKPOINTS", "/tmp"), "times")
starts = times.read_text().count("start") + 1 if times.exists() else 1
time.sleep(1.0)
print(f"epoch {{starts}}: val loss: {{1 / starts:.4f}}", flush=True)
time.sleep(1.0 if starts < {STARTS} else 30.0)
line = f"start {{began}} {{time.time()}}"
with times.open("a") as file:
    file.write(line + "\\n")
print(line, flush=True)
sys.exit(1 if "COACH_JOB" in os.environ or "TIMES" in os.environ else 0)
"""
COMMAND = "python -m benchmarks.platforms"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", choices=["slurm", "kubernetes"], nargs="*", default=[])
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
        coach = None if "kubernetes" in options.without else stack.enter_context(_kubernetes())
        for number in range(options.rounds):
            for name in (*platforms, *(["Kubernetes"] if coach else [])):
                for how in ("alone", "Coach"):
                    found = gaps.setdefault(name, {}).setdefault(how, [])
                    if name in platforms:
                        alone, words, env = platforms[name]
                        times = folder / f"{name} {how} {number}".replace(" ", "-")
                        times.mkdir()
                        found += _gaps(folder, {**env, "TIMES": str(times)}, alone if how == "alone" else words, times)
                    elif coach is not None:
                        found += _between(_pods(coach, number) if how == "alone" else _job(coach, number))
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
        "allocation of its own; that of Kubernetes `kubectl run` and `kubectl wait`.\n"
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
    home = {"COACH_HOME": f"{times}/home", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env={**env, **home}, cwd=folder, capture_output=True, text=True, check=False)
    return _between((times / "times").read_text(), f"{done.stdout[-2000:]} {done.stderr[-2000:]}")


def _between(said: str, more: str = "") -> list[float]:
    """The seconds from each end to the next start."""
    spans = [[float(each) for each in line.split()[1:]] for line in said.splitlines() if line.startswith("start ")]
    if len(spans) < STARTS - 1:
        raise SystemExit(f"{len(spans)} starts: {said[-2000:]} {more}")
    return [after[0] - before[1] for before, after in pairwise(spans[: STARTS - 1])]


@contextmanager
def _kubernetes() -> Iterator[Coach]:
    """Coach on a cluster of its own on this machine."""
    with Cluster() as cluster:
        for name in images.STANDARD:
            cluster.load_image(images.OUT / f"coach-{name}.tar")
        coach = Coach(cluster)
        coach.install()
        yield coach


def _pods(coach: Coach, number: int) -> str:
    """What the program prints in a loop of pods."""
    said = ""
    for start in range(STARTS - 1):
        name = f"alone-{number}-{start}"
        coach.cluster.kubectl(
            *("run", name, f"--image={IMAGE}", "--restart=Never", "--command", "--", "python3", "-c", PROGRAM)
        )
        coach.cluster.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        said += coach.cluster.kubectl("logs", name)
        coach.cluster.kubectl("delete", "pod", name, "--wait=false")
    return said


def _job(coach: Coach, number: int) -> str:
    """What the program has written as a job."""
    name = f"gaps-{number}"
    metric = {"metric": "val_loss", "value": 1 / STARTS + 1e-3, "epochsInARow": 1}
    document = program(name, PROGRAM, target=metric)
    document["spec"]["program"] = {
        "command": ["python3", "-c", PROGRAM], "resumes": True, "metrics": {"val_loss": "val loss: (\\S+)"},
    }  # fmt: skip
    coach.apply(document)
    coach.ended(name)
    (times,) = coach.cluster.shared.rglob(f"{name}/times")  # type: ignore[attr-defined]
    return times.read_text()


if __name__ == "__main__":
    main()
