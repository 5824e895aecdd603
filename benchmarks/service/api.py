"""How fast the service answers with 1,000 jobs, and with 1,000 that have ended.

    python -m benchmarks.service.api

A service on a platform in memory (its jobs wait or are in an epoch that does not end) gets 1,000 jobs over HTTP, 64 at
a time, and then requests for the status of all of them, over one connection, as a page or a follower would send them.
The time is what a caller waits: HTTP, the handler, the journal on disk, JSON. Another service starts on a journal of
1,000 ended jobs with 100,000 epochs (`benchmarks.service.handler_memory` writes it), and answers about one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import RESULTS, ROOT, write_csv, write_table
from benchmarks.service import handler_memory
from coach.handler.endpoint import API
from tests.service.conftest import job_text

COMMAND = "python -m benchmarks.service.api"
JOBS, AT_ONCE, ASKED = 1_000, 64, 200
STARTS = 5


def main() -> None:
    """Measure, print and keep."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name, service(Path(name)) as (http, process):
        rows += measure(http, Path(name))
        rows.append(_row("memory of the service, MB", resident(process)))
    with tempfile.TemporaryDirectory() as name:
        journal = Path(name) / "home" / "journal.db"
        handler_memory.write(journal)
        handler_memory.save_snapshots(journal)
        past = f"{handler_memory.JOBS:,} ended jobs, {handler_memory.JOBS * handler_memory.EPOCHS:,} epochs"
        starts = []
        for number in range(STARTS):
            began = time.perf_counter()
            with service(Path(name)) as (http, process):
                http.get(http.base_url.join("/health")).raise_for_status()
                starts.append((time.perf_counter() - began, cpu_seconds(process)))
                if number == STARTS - 1:
                    asked = measure_past(http)
                    asked.append(_row(f"{past}: memory of the service, MB", resident(process), "<= 200"))
        waited, computed = (statistics.median(start) for start in zip(*starts, strict=True))
        rows.append(_row(f"{past}: until the service answers, median of {STARTS} starts, s", waited, "< 2"))
        rows.append(_row(f"{past}: what it computed until then, s of a core", computed))
        rows += asked
    write_csv(RESULTS / "service" / "service.csv", rows)
    note = f"The machine's load average at the end was {os.getloadavg()[0]:.0f}, on {os.cpu_count()} cores."
    write_table(RESULTS / "service" / "service.md", "The service with 1,000 jobs", COMMAND, rows, note)
    print((RESULTS / "service" / "service.md").read_text())


@contextlib.contextmanager
def service(folder: Path) -> Iterator[tuple[httpx.Client, int]]:
    """A service with its state in `folder`, and the number of its process."""
    (folder / "model.py").write_text("")
    environment = os.environ | {"COACH_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.service.fake_service", "0", "3600"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1]
            headers = {"Authorization": f"Bearer {(folder / 'home' / 'token').read_text().strip()}"}
            limits = httpx.Limits(max_connections=AT_ONCE)
            with httpx.Client(base_url=url + API, headers=headers, limits=limits, timeout=300, trust_env=False) as http:
                yield http, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def measure(http: httpx.Client, folder: Path) -> list[dict[str, Any]]:
    """Waiting jobs: submissions and status requests."""

    def submit(number: int) -> float:
        began = time.perf_counter()
        body = {"files": [{"path": f"{folder}/job.yaml", "text": job_text(f"job-{number}")}]}
        http.post("/jobs", json=body).raise_for_status()
        return time.perf_counter() - began

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waits = list(pool.map(submit, range(JOBS)))
    rows = [_row(f"{JOBS:,} submissions, {AT_ONCE} at a time: all, s", time.perf_counter() - began)]
    rows.append(_row("one of them, median, s", statistics.median(waits)))
    rows += _asked(http, "/jobs", f"status of {JOBS:,} jobs", "< 50")
    rows += _asked(http, "/jobs/job-500/why", "why one waits")
    return rows + _asked(http, str(http.base_url.join("/metrics")), "the metrics")


def measure_past(http: httpx.Client) -> list[dict[str, Any]]:
    """Ended jobs: status of all, and of one."""
    rows = _asked(http, "/jobs", f"status of {handler_memory.JOBS:,} ended jobs", "< 50")
    rows += _asked(http, "/jobs/job-500", f"one of {handler_memory.EPOCHS} epochs, with them and its ledger")
    rows += _asked(http, "/jobs/job-500/events", "what happened to it")
    seq = http.get("/jobs/job-500/events").json()["seq"]
    return rows + _asked(http, f"/jobs/job-500/events?after={seq}", "what happened since")


def _asked(http: httpx.Client, path: str, what: str, goal: str = "") -> list[dict[str, Any]]:
    times = [_timed(http, path) for _ in range(ASKED)][ASKED // 10 :]
    return [
        _row(f"{what}: median, ms", 1000 * statistics.median(times), goal),
        _row(f"{what}: 99 of 100 within, ms", 1000 * statistics.quantiles(times, n=100)[98]),
    ]


def _timed(http: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    http.get(path).raise_for_status()
    return time.perf_counter() - began


def cpu_seconds(process: int) -> float:
    """Seconds of a core that a process has used."""
    used = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Megabytes that a process has in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _row(what: str, measured: float, goal: str = "") -> dict[str, Any]:
    return {"what": what, "measured": measured, "goal": goal}


if __name__ == "__main__":
    main()
