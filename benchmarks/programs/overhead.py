"""Time to the end of a program with Coach and without it, in turns; and what changes and kills cost it.

    python -m benchmarks.programs.overhead 4 --again      # 4 pairs of runs of each program, then the losses
    python -m benchmarks.programs.overhead 4 --python PATH      # goes on where it was stopped; other libraries, too

The programs are `benchmarks/programs/script.py` alone and as two processes with DistributedDataParallel, and, with a
Python that has the libraries, the examples for transformers' Trainer and Lightning. A run's seconds are from the start
of its first process to its end, and it says its own CPU seconds, which a busy machine changes less. Without Coach the
second process is started 0.3 s after the first, as Coach does it: where the second is first at the group's store, it
waits a whole second before it tries again, which made runs without Coach slower before. What an interruption
costs is from SIGTERM or SIGKILL to the next report, less the median interval between two reports with the same workers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, read_csv, write_csv, write_table
from coach.core.jobs.epoch import measuring
from coach.core.jobs.job import Job
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.local import pytorch_runtime
from tests.chaos.processes import children, command, descendants

RESULT = RESULTS / "programs"
SCRIPT = Path(__file__).with_name("script.py")
MODULE = ROOT / "coach/platforms/program_metrics/coach_program.py"
COMMAND = "python -m benchmarks.programs.overhead"
#: Epochs of a run that is timed, and of one that is interrupted.
TIMED, INTERRUPTED = 8, 8
#: Seconds between the starts of two processes, as Coach starts them.
STAGGER = 0.3
#: Seconds that a run may take.
PATIENCE = 900
#: A program may take so many times its seconds without Coach.
GOAL = 1.01


@dataclass(frozen=True, slots=True)
class Timed:
    """A program that is timed: as its own Python runs `script`, with this many processes."""

    name: str
    script: Path
    workers: int = 1
    needs: str = "torch"
    #: Without Coach, too, each process has a core of its own, as Coach gives it one.
    pinned: bool = False


PROGRAMS = (
    Timed("a plain loop", SCRIPT),
    Timed("DistributedDataParallel, 2 processes", SCRIPT, 2),
    Timed("the same, both with a core for each process", SCRIPT, 2, pinned=True),
    Timed("transformers' Trainer", ROOT / "examples/programs/digits_transformers.py", 1, "transformers"),
    Timed("Lightning", ROOT / "examples/programs/digits_lightning.py", 1, "lightning"),
)
#: Runs a script, and says at its end its seconds since BEGAN and its CPU seconds.
ENDS = """
import atexit, os, runpy, sys, time
def ended():
    used = os.times()
    took = time.time() - float(os.environ["BEGAN"])
    if os.environ.get("RANK", "0") == "0":
        print(f"took {took:.3f} s, {used.user + used.system:.3f} CPU seconds", flush=True)
atexit.register(ended)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def main() -> None:
    """Run all, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=int, nargs="?", default=4)
    parser.add_argument("--interruptions", type=int, default=2)
    parser.add_argument("--python", help="one that has transformers and Lightning")
    parser.add_argument("--again", action="store_true", help="keep no row of an earlier run")
    options = parser.parse_args()
    python = str(pytorch_runtime.torch().python)
    out = RESULT / "overhead.csv"
    rows = [] if options.again else read_csv(out)
    there = {(int(row["pair"]), row["program"]) for row in rows}
    for pair, program in itertools.product(range(options.pairs), PROGRAMS):
        at = python if program.needs == "torch" else options.python
        if at is None or (pair, program.name) in there:
            continue
        # The order changes from pair to pair.
        found = {coach: run(program, at, coach) for coach in ((False, True) if pair % 2 == 0 else (True, False))}
        rows += [
            {"pair": pair, "program": program.name, "coach": int(coach), "seconds": seconds, "cpu": cpu}
            for coach, (seconds, cpu) in found.items()
        ]
        write_csv(out, rows)
        print(
            f"pair {pair + 1}, {program.name}: {found[False][0]:.2f} s, with Coach {found[True][0]:.2f} s", flush=True
        )
    if rows:
        _write_overhead(rows)
    out = RESULT / "interruptions.csv"
    losses = [] if options.again else read_csv(out)
    for cause, number in itertools.product(CAUSES, range(options.interruptions)):
        if not any(row["cause"] == cause and int(row["run"]) == number for row in losses):
            losses.append({"cause": cause, "run": number, **_lost(python, cause)})
            write_csv(out, losses)
            print(f"{cause}: {losses[-1]['lost']} s lost", flush=True)
    if losses:
        _write_losses(losses)


def run(program: Timed, python: str, coach: bool) -> tuple[float, float]:
    """Seconds and CPU seconds of its first process, to the program's own end; under `coach run` or without."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ".data").symlink_to(ROOT / ".data")
        # The shell's exec replaces it: the clock starts with the process.
        words = shlex.join(["exec", python, "-u", "-c", ENDS, str(program.script)])
        command = ["sh", "-c", f"BEGAN=$(date +%s.%N) {words}"]
        own = {"COACH_HOME": folder, "EPOCHS": str(TIMED), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if coach:
            given = ["--workers", str(program.workers), "--budget", "unlimited", "--name", "own", "--no-live"]
            command = [sys.executable, "-m", "coach.cli.main", "run", *given, "--", *command]
        elif program.workers > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            group = f"WORLD_SIZE={program.workers} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
            pin = "taskset -cp {rank} $BASHPID >/dev/null; " if program.pinned else ""
            ranks = [
                f"sleep {STAGGER * rank}; {pin.format(rank=rank)}export RANK={rank} {group}; {command[-1]}"
                for rank in range(program.workers)
            ]
            command = ["bash", "-c", " ".join(f"({one}) &" for one in ranks) + " wait"]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        said = (Path(folder) / "jobs/own/logs/own-worker-0.log").read_text() if coach else done.stdout
    found = re.search(r"took ([0-9.]+) s, ([0-9.]+) CPU seconds", said)
    assert found, said
    return float(found[1]), float(found[2])


def _write_overhead(rows: Sequence[dict[str, Any]]) -> None:
    table, met, missed = [], list[str](), list[str]()
    for name in dict.fromkeys(row["program"] for row in rows):
        of = [row for row in rows if row["program"] == name]
        line: dict[str, Any] = {"program": name, "pairs": len(of) // 2}
        for key in ("seconds", "cpu"):
            plain, ours = ([float(row[key]) for row in of if int(row["coach"]) == coach] for coach in (0, 1))
            ratios = [b / a for a, b in zip(plain, ours, strict=True)]
            ratio = statistics.median(ratios)
            line |= {
                f"{key} without": f"{statistics.median(plain):.2f}",
                f"{key} with Coach": f"{statistics.median(ours):.2f}",
                f"{key}, median ratio (range)": f"{ratio:.3f} ({min(ratios):.3f}-{max(ratios):.3f})",
            }
            if key == "seconds":
                (met if ratio <= GOAL else missed).append(name)
        table.append(line)
    note = (
        f"Goal: at most {GOAL} times the seconds, in the median.\nMet: {'; '.join(met) or 'by none'}. "
        f"Missed: {'; '.join(missed) or 'by none'}.\n"
        "Medians of runs in turns, to the program's own end. The range of the ratios says how far two runs of a pair\n"
        "differ. "
        f"Load average at the end: {os.getloadavg()[1]:.1f}."
    )
    print(note)
    write_table(RESULT / "overhead.md", "A program with Coach and without", COMMAND, table, note)


#: What interrupts a run.
CHANGE, REGROUPED = "a change from 1 to 2 workers", "the same in the same process"
RANK, RANKS, HANDLER = "a rank is killed", "all ranks are killed", "the handler is killed"
CAUSES = (CHANGE, REGROUPED, RANK, RANKS, HANDLER)


def _lost(python: str, cause: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        found = _interrupted(python, cause, Path(folder))
    return {key: f"{value:.2f}" for key, value in found.items()}


def _interrupted(python: str, cause: str, folder: Path) -> dict[str, float]:
    home = StateDirectory(folder / "home")
    env = {**os.environ, "COACH_HOME": str(home.path), "EPOCHS": str(INTERRUPTED)}
    change = cause in (CHANGE, REGROUPED)
    if cause == REGROUPED:  # the second worker starts meanwhile
        env |= {"EPOCHS": str(3 * INTERRUPTED), "REGROUPS": "1", "PYTHONPATH": str(folder)}
        (folder / "coach_program.py").write_bytes(MODULE.read_bytes())
    words = [
        "--workers",
        "1-2" if change else "2",
        "--budget",
        "unlimited",
        "--name",
        "own",
        "--no-live",
        "--resumes",
    ]
    words += ["--cpu", "0.5"]
    start = [sys.executable, "-m", "coach.cli.main", "run", *words, "--", python, str(SCRIPT)]

    def run() -> subprocess.Popen[bytes]:
        return subprocess.Popen(start, cwd=folder, env=env, stdout=subprocess.DEVNULL)

    process, at = run(), 0.0
    if not change:
        _until(lambda: _reports(home) >= 3)
        victims = [process.pid] if cause == HANDLER else _ranks(process.pid)
        at = time.time()
        for pid in victims[:1] if cause == RANK else victims:
            os.kill(pid, signal.SIGKILL)
        if cause == HANDLER:
            process.wait()
            process = run()
    assert process.wait(PATIENCE) == 0
    job = _job(home)
    assert job is not None
    if change:
        changed = next(epoch for epoch in job.epochs if epoch.allocation.workers == 2 and epoch.starts)
        whole = changed.report.stop_seconds + changed.report.train_seconds
        group = changed.group
    else:
        first = next(epoch for epoch in job.epochs if epoch.started_at > at and epoch.starts)
        whole, group = first.ended_at - at, first.group
    measured = [e for e in measuring(job.epochs) if e.group == group and e.allocation.workers == 2]
    interval = statistics.median(e.report.train_seconds for e in measured)
    return {"seconds": whole, "interval": interval, "lost": whole - interval}


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it does not come so far"
        time.sleep(0.05)


def _job(home: StateDirectory) -> Job | None:
    try:
        journal = Journal.read(home.journal(1))
    except Exception:  # it is just being made
        return None
    try:
        return journal.jobs().get("own")
    finally:
        journal.close()


def _reports(home: StateDirectory) -> int:
    job = _job(home)
    return 0 if job is None else len(job.epochs)


def _ranks(handler: int) -> list[int]:
    supervisors = [pid for pid in descendants(handler) if "local.supervisor" in command(pid)]
    return [pid for one in supervisors for pid in children(one) if SCRIPT.name in command(pid)]


def _write_losses(rows: Sequence[dict[str, Any]]) -> None:
    table = []
    for cause in CAUSES:
        of = [row for row in rows if row["cause"] == cause]
        lost = sorted(float(row["lost"]) for row in of)
        whole = statistics.median(float(row["seconds"]) for row in of)
        table.append(
            {
                "interruption": cause,
                "runs": len(of),
                "until the next report, median s": f"{whole:.1f}",
                "lost, median s (range)": f"{statistics.median(lost):.1f} ({lost[0]:.1f}-{lost[-1]:.1f})",
            }
        )
    note = (
        "Of the program with DistributedDataParallel. Lost: from SIGTERM or SIGKILL to the next report, less an\n"
        "interval. Most of it is the import of PyTorch; after the handler's death, also the start of `coach run`,\n"
        "which was typed again at once. In the same process the new worker imports while the first trains on.\n"
        f"Load average at the end: {os.getloadavg()[1]:.1f}."
    )
    write_table(RESULT / "interruptions.md", "What an interruption costs a program", COMMAND, table, note)


if __name__ == "__main__":
    main()
