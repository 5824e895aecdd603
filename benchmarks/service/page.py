"""How the page behaves with 1,000 jobs in a real browser: first paint, cost of updates, scrolling, memory, weight.

    python -m benchmarks.service.page

A service on a platform in memory gets 1,000 jobs. Chromium (needs Debian's package, and Playwright) opens the page on
loopback. Then 60 rows a second change: a ticker in the service's process marks rows as changed, without journal
records, so the stream and the page do all the work that real changes cause. CPU is that of all of Chromium's
processes. Wall times are upper bounds on a machine that does other things.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, write_csv, write_table
from coach import Client
from coach.handler.state.state_directory import StateDirectory
from coach.plugins import policy
from coach.service.operations import Service
from coach.service.page.routes import STATIC
from coach.service.serve import Serving, serve
from tests.handler.fake_platform import CLUSTER, FakePlatform
from tests.service.conftest import job_text

COMMAND = "python -m benchmarks.service.page"
JOBS, RATE, OPENED = 1_000, 60, 7
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="be the service with the ticker")
    if parser.parse_args().serve:
        sys.exit(_served())
    with tempfile.TemporaryDirectory() as name:
        rows = [*weight(), *measured(Path(name))]
    write_csv(RESULTS / "web" / "page.csv", rows)
    note = f"The machine's load average at the end was {os.getloadavg()[0]:.0f}, on {os.cpu_count()} cores."
    write_table(RESULTS / "web" / "page.md", "The page with 1,000 jobs", COMMAND, rows, note)
    print((RESULTS / "web" / "page.md").read_text())


def _served() -> int:
    """The service: a ticker marks rows as changed, RATE a second, while the file `tick` is there."""

    async def tick(service: Service) -> None:
        number = 0
        real = service.last_seq
        more = 0
        service.last_seq = lambda: real() + more  # type: ignore[method-assign]
        while True:
            await asyncio.sleep(1 / RATE)
            if Path("tick").exists():
                names = list(service.jobs)
                number, more = number + 1, more + 1
                service.changed_at[names[(number * 7) % len(names)]] = service.last_seq()
                service.wake()

    platform = FakePlatform(nodes=CLUSTER, epoch_seconds=3600.0)
    return serve(
        Serving(
            StateDirectory.default(),
            CLUSTER,
            policy("coach"),
            lambda home, now: platform,
            port=0,
            folders=(Path.cwd(),),
            companion=tick,
        ),
        lambda endpoint: print(f"ready {endpoint.url}", flush=True),
    )


def weight() -> list[dict[str, Any]]:
    """Bytes of the page."""
    files = [path.read_bytes() for path in STATIC.iterdir() if path.suffix in (".html", ".js", ".css")]
    return [
        _row("page weight, kB", sum(map(len, files)) / 1e3),
        _row("page weight compressed, kB", sum(len(gzip.compress(one, 4, mtime=0)) for one in files) / 1e3),
    ]


def measured(folder: Path) -> list[dict[str, Any]]:
    """All that needs a browser."""
    from playwright.sync_api import sync_playwright

    (folder / "model.py").write_text("")
    os.environ["COACH_HOME"] = str(folder / "home")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with (
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.service.page", "--serve"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
        sync_playwright() as playwright,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1]
            file = folder / "job.yaml"
            with Client() as coach:
                for part in range(JOBS // 100):
                    file.write_text(job_text(*(f"job-{part}-{number}" for number in range(100))))
                    coach.submit([file])
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=[*ARGUMENTS, "--js-flags=--expose-gc"]
                )
                page = browser.new_page()
                page.goto(f"{url}/ui/#login={coach.login_codes().code}")
                page.get_by_text("live", exact=True).wait_for(timeout=60_000)
                rows = [*_painted(page, url), *_updated(page, folder, process.pid)]
                browser.close()
                return rows
        finally:
            process.terminate()


def _painted(page: Any, url: str) -> list[dict[str, Any]]:
    paints, seen = [], []
    for _ in range(OPENED):
        page.goto("about:blank")
        began = time.perf_counter()
        page.goto(f"{url}/ui/")
        page.get_by_role("button", name=f"All {JOBS}").wait_for()
        page.locator("tbody tr th a").first.wait_for()
        seen.append(time.perf_counter() - began)
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1e3)
    return [
        _row(f"first paint, median of {OPENED}, s", statistics.median(paints), "< 0.5"),
        _row(f"rows of {JOBS:,} jobs seen, median of {OPENED}, s", statistics.median(seen), "< 0.5"),
        _row("elements in the document", page.evaluate("document.getElementsByTagName('*').length")),
    ]


def _updated(page: Any, folder: Path, service: int) -> list[dict[str, Any]]:
    (folder / "tick").touch()
    session = page.context.new_cdp_session(page)

    def heap() -> float:
        session.send("HeapProfiler.collectGarbage")
        return float(session.send("Runtime.getHeapUsage")["usedSize"])

    page.wait_for_timeout(3_000)
    processes = chromium()
    began, before, served = time.perf_counter(), cpu_seconds(processes), cpu_seconds([service])
    page.wait_for_timeout(20_000)
    wall = time.perf_counter() - began
    share = (cpu_seconds(processes) - before) / wall
    serving = (cpu_seconds([service]) - served) / wall
    page.wait_for_timeout(max(0, 1_000 / RATE - wall - 3) * 1_000)
    early = heap()
    frames = page.evaluate(
        """() => new Promise((done) => {
            const box = document.querySelector('.scroller'), times = [];
            let last = performance.now(), step = 0;
            const next = (now) => {
                times.push(now - last); last = now;
                box.scrollTo(0, (step++ * 97) % (box.scrollHeight - box.clientHeight));
                step < 300 ? requestAnimationFrame(next) : done(times.sort((a, b) => a - b));
            };
            requestAnimationFrame(next);
        })"""
    )
    page.wait_for_timeout(9_000 / RATE * 1_000)
    late = heap()
    return [
        _row(f"{RATE} updates a second: Chromium, % of a core", 100 * share, "< 10"),
        _row(f"{RATE} updates a second: service, % of a core", 100 * serving),
        _row("frame while scrolling, 95th percentile, ms", frames[int(0.95 * len(frames))], "<= 100"),
        _row("heap after 1,000 updates, MB", early / 1e6),
        _row("heap after 10,000 updates, over that", late / early, "<= 1.2"),
    ]


def chromium() -> list[int]:
    """All processes of the browsers that this process started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with _gone():
            name, _, rest = stat.read_text().rpartition(")")
            parents[int(stat.parent.name)] = int(rest.split()[1]), name
    found, grown = {os.getpid()}, True
    while grown:
        more = {one for one, (parent, _) in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return [one for one in found if one in parents and "chrom" in parents[one][1]]


def cpu_seconds(processes: Sequence[int]) -> float:
    """Seconds of a core that processes have used."""
    used = 0
    for process in processes:
        with _gone():
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


def _gone() -> Any:
    return contextlib.suppress(FileNotFoundError, ProcessLookupError)


def _row(what: str, measured: float, goal: str = "") -> dict[str, Any]:
    return {"what": what, "measured": measured, "goal": goal}


if __name__ == "__main__":
    main()
