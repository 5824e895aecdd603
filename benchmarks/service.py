"""How fast the service answers with 1,000 jobs.

    python -m benchmarks.service

A service on a platform in memory (its jobs wait or stand in an epoch that does not end) is given 1,000 jobs over HTTP,
64 at a time, and then asked for the status of all of them, over one connection, as a page or a follower would. What is
timed is what a caller waits: HTTP, the handler, the journal on disk, JSON.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import RESULTS, ROOT, write_csv, write_table
from tests.service.conftest import job_text

COMMAND = "python -m benchmarks.service"
JOBS, AT_ONCE, ASKED = 1_000, 64, 200


def main() -> None:
    """Measure, print and keep."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text("")
        environment = os.environ | {"COACH_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [sys.executable, "-m", "tests.service.doubled", "0", "3600"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as service:
            assert service.stdout is not None
            url = service.stdout.readline().split()[1]
            token = (folder / "home" / "token").read_text().strip()
            try:
                rows = measure(url, token, folder)
                rows.append(_row("memory of the service, MB", resident(service.pid)))
            finally:
                service.send_signal(signal.SIGTERM)
    write_csv(RESULTS / "service" / "service.csv", rows)
    note = f"The machine's load average at the end was {os.getloadavg()[0]:.0f}, on {os.cpu_count()} cores."
    write_table(RESULTS / "service" / "service.md", "The service with 1,000 jobs", COMMAND, rows, note)
    print((RESULTS / "service" / "service.md").read_text())


def measure(url: str, token: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of the table."""
    limits = httpx.Limits(max_connections=AT_ONCE)
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, limits=limits, timeout=300, trust_env=False) as http:

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
        for path, what in (
            ("/jobs", f"status of {JOBS:,} jobs"),
            ("/jobs/job-500/why", "why one waits"),
            ("/metrics", "the metrics"),
        ):
            times = [_timed(http, path) for _ in range(ASKED)][ASKED // 10 :]
            rows.append(_row(f"{what}: median, ms", 1000 * statistics.median(times), _goal(path)))
            rows.append(_row(f"{what}: 99 of 100 within, ms", 1000 * statistics.quantiles(times, n=100)[98]))
        return rows


def _timed(http: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    http.get(path).raise_for_status()
    return time.perf_counter() - began


def _goal(path: str) -> str:
    return "< 50" if path == "/jobs" else ""


def resident(process: int) -> float:
    """Megabytes that a process has in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _row(what: str, measured: float, goal: str = "") -> dict[str, Any]:
    return {"what": what, "measured": measured, "goal": goal}


if __name__ == "__main__":
    main()
