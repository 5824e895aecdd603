"""Time to the end of a program with Coach and without it, in turns; and what changes and kills cost it.

    python -m benchmarks.programs.overhead 4        # 4 pairs of runs of each program, then the losses

The programs are `benchmarks/programs/script.py` alone and as two processes with DistributedDataParallel. A run's
seconds are from the start of its process (with Coach: of the one that Coach starts) to its last line, and it says its
own CPU seconds, which a busy machine changes less. What an interruption costs is from SIGTERM or SIGKILL to the next
report, less the median interval between two reports with the same workers.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, write_csv, write_table
from coach.core.jobs.job import Job
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.local import pytorch_runtime
from tests.chaos.processes import children, command, descendants

RESULT = RESULTS / "programs"
SCRIPT = Path(__file__).with_name("script.py")
COMMAND = "python -m benchmarks.programs.overhead"
#: Epochs of a run that is timed, and of one that is interrupted.
TIMED, INTERRUPTED = 8, 8
#: Seconds that a run may take.
PATIENCE = 900


def main() -> None:
    """Run all, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=int)
    parser.add_argument("--interruptions", type=int, default=3)
    options = parser.parse_args()
    python = str(pytorch_runtime.torch().python)
    rows: list[dict[str, Any]] = []
    for pair in range(options.pairs):
        for workers in (1, 2):
            # The order changes from pair to pair.
            for coach in (False, True) if pair % 2 == 0 else (True, False):
                seconds, cpu = (with_coach if coach else without)(python, workers)
                rows.append(
                    {"pair": pair, "workers": workers, "coach": int(coach), "seconds": seconds, "cpu": cpu}
                )
                print(rows[-1], file=sys.stderr, flush=True)
        write_csv(RESULT / "overhead.csv", rows)
        _write_overhead(rows)
    losses = [
        {"cause": cause, **found} for cause in CAUSES for found in _lost(python, cause, options.interruptions)
    ]
    write_csv(RESULT / "interruptions.csv", losses)
    _write_losses(losses)


def _ended(line: str) -> tuple[float, float]:
    found = re.search(r"took ([0-9.]+) s, ([0-9.]+) CPU seconds", line)
    assert found, line
    return float(found[1]), float(found[2])


def without(python: str, workers: int) -> tuple[float, float]:
    """Seconds and CPU seconds of the first process, started as torchrun does."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        processes = []
        for rank in range(workers):
            env = {**os.environ, "EPOCHS": str(TIMED), "BEGAN": str(time.time()), "OMP_NUM_THREADS": "1"}
            if workers > 1:
                env |= {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(workers),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                }
            processes.append(
                subprocess.Popen(
                    [python, "-u", SCRIPT], cwd=folder, env=env, stdout=subprocess.PIPE, text=True
                )
            )
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    return _ended(said[0])


def with_coach(python: str, workers: int) -> tuple[float, float]:
    """The same under `coach run`, to the program's own end."""
    with tempfile.TemporaryDirectory() as folder:
        # The shell's exec replaces it: the clock starts with the process that Coach starts.
        program = ["sh", "-c", f'BEGAN=$(date +%s.%N) exec "{python}" "{SCRIPT}"']
        words = [*("--workers", str(workers), "--budget", "unlimited", "--name", "own", "--no-live")]
        done = subprocess.run(
            [sys.executable, "-m", "coach.cli.main", "run", *words, "--", *program],
            cwd=folder,
            env={**os.environ, "COACH_HOME": folder, "EPOCHS": str(TIMED), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return _ended((Path(folder) / "jobs/own/logs/own-worker-0.log").read_text())


def _write_overhead(rows: Sequence[dict[str, Any]]) -> None:
    table = []
    for workers, name in ((1, "a plain loop"), (2, "DistributedDataParallel, 2 processes")):
        of = [row for row in rows if row["workers"] == workers]
        line: dict[str, Any] = {"program": name, "pairs": len(of) // 2}
        for key in ("seconds", "cpu"):
            plain, ours = ([row[key] for row in of if row["coach"] == coach] for coach in (0, 1))
            ratios = [b / a for a, b in zip(plain, ours, strict=True)]
            line |= {
                f"{key} without": f"{statistics.median(plain):.2f}",
                f"{key} with Coach": f"{statistics.median(ours):.2f}",
            }
            line[f"{key}, median ratio (range)"] = (
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
            )
        table.append(line)
    note = (
        "Medians of runs in turns, to the program's own end. The range of the ratios says how far two runs of a pair\n"
        "differ. "
        f"Load average at the end: {os.getloadavg()[1]:.1f}."
    )
    write_table(RESULT / "overhead.md", "A program with Coach and without", COMMAND, table, note)


#: What interrupts a run.
CAUSES = ("a change from 1 to 2 workers", "a rank is killed", "all ranks are killed", "the handler is killed")


def _lost(python: str, cause: str, times: int) -> Iterator[dict[str, Any]]:
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            found = _interrupted(python, cause, Path(folder))
        print(cause, found, file=sys.stderr, flush=True)
        yield {"run": number, **{key: f"{value:.2f}" for key, value in found.items()}}


def _interrupted(python: str, cause: str, folder: Path) -> dict[str, float]:
    home = StateDirectory(folder / "home")
    env = {**os.environ, "COACH_HOME": str(home.path), "EPOCHS": str(INTERRUPTED)}
    change = cause == CAUSES[0]
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
        victims = [process.pid] if cause == CAUSES[3] else _ranks(process.pid)
        at = time.time()
        for pid in victims[:1] if cause == CAUSES[1] else victims:
            os.kill(pid, signal.SIGKILL)
        if cause == CAUSES[3]:
            process.wait()
            process = run()
    assert process.wait(PATIENCE) == 0
    job = _job(home)
    assert job is not None
    if change:
        changed = next(epoch for epoch in job.epochs if epoch.report.stop_seconds)
        whole = changed.report.stop_seconds + changed.report.train_seconds
        group = changed.group
    else:
        first = next(epoch for epoch in job.epochs if epoch.started_at > at and epoch.starts)
        whole, group = first.ended_at - at, first.group
    interval = statistics.median(
        e.report.train_seconds for e in job.epochs if e.group == group and not e.starts
    )
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
        "which was typed again at once.\n"
        f"Load average at the end: {os.getloadavg()[1]:.1f}."
    )
    write_table(RESULT / "interruptions.md", "What an interruption costs a program", COMMAND, table, note)


if __name__ == "__main__":
    main()
