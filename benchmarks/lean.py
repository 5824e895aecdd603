"""How much a handler with a long past needs: to start, to stand by, and to write on.

    python -m benchmarks.lean

A journal of 1,000 jobs and 100,000 epochs is written (one simulated job, copied under 1,000 names), and then measured,
each in a process of its own: the fold of its jobs, with and without snapshots; a handler on it that has nothing to do;
epochs journalled a second. Starting is given in seconds of a core, which others on the machine change little.

What is journalled is on disk before anything else happens. So with one job at a time an epoch takes as long as the disk
does to confirm it, some two transactions. Events that come meanwhile are in the next transaction together, as the
handler takes them from its queue: that is what many jobs at once make of it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, write_csv, write_table
from coach.core.cluster import Node
from coach.core.jobs import events as ev
from coach.core.policies import policy
from coach.handler.codec import EVENTS
from coach.handler.handler import Handler
from coach.handler.home import Home
from coach.handler.journal import Journal, fold
from tests.core.world import Truth, World, nodes, spec

JOBS, EPOCHS = 1_000, 100
COMMAND = "python -m benchmarks.lean"
#: Seconds that an idle handler is watched.
IDLE_SECONDS = 20.0
#: Jobs whose events come at the same time.
AT_ONCE = (1, 8, 64)
WRITE_SECONDS = 5.0


def life() -> list[Any]:
    """The records of one job of EPOCHS epochs."""
    world = World.of(nodes(1, 8.0))
    file = spec("job", maxEpochs=EPOCHS, target={"loss": 1e-4})
    world.submit(file, Truth(loss=lambda passes: 1 / (0.4 * passes + 0.5)))
    world.run()
    return [record for record in world.history if record.job]


def write(path: Path) -> None:
    """The journal, each job submitted when the one before had ended; without snapshots."""
    records, journal = life(), Journal.write(path)
    journal.append([ev.HandlerStarted(records[0].at - 1.0, nodes(1, 8.0))])
    (job,) = fold(records).values()
    spent = records[-1].at - records[0].at + 1.0
    for number in range(JOBS):
        journal.append(copied(record, number, number * spent) for record in records)
    assert job.ended
    journal.close()


def copied(record: Any, number: int, later: float = 0.0) -> Any:
    """The record of another job, so many seconds later."""
    changes: dict[str, Any] = {"job": f"job-{number}", "at": record.at + later}
    if isinstance(record, ev.JobSubmitted):
        changes["spec"] = {**record.spec, "metadata": {"name": f"job-{number}"}}
    return dataclasses.replace(record, **changes)


def remember(path: Path) -> None:
    """Give every job of the journal its snapshot, as a handler does when it ends."""
    journal = Journal.write(path)
    for job in journal.jobs().values():
        journal.remember(job)
    journal.close()


# -- measured in processes of their own -------------------------------------------------------------------


def measure_past(folder: str) -> dict[str, float]:
    """What every command and every start of a handler does first."""
    Home(Path(folder))
    began = time.process_time()
    past = Home(Path(folder)).past()
    seconds = time.process_time() - began
    assert len(past) == JOBS and sum(len(one.job.epochs) for one in past.values()) >= JOBS * EPOCHS
    return {"seconds": seconds, "MB": memory()}


class Idle:
    """A platform on which nothing is ever started."""

    linger_seconds = 0.0

    async def open(self, pod_lost: Any) -> tuple[Node, ...]:
        """One node."""
        return nodes(1, 8.0)

    async def close(self) -> None:
        """Nothing was started."""


def measure_handler(folder: str) -> dict[str, float]:
    """A handler's start, and what it takes while nothing happens."""

    async def main() -> dict[str, float]:
        began = time.process_time()
        journal = Journal.write(Path(folder) / "journal.db")
        async with Handler(Idle(), journal, policy("coach")) as handler:  # type: ignore[arg-type]
            await asyncio.sleep(0)
            await handler.wait(handler._events.empty)
            started = time.process_time() - began
            assert len(handler.jobs) == JOBS
            await asyncio.sleep(1.0)
            before = time.process_time()
            await asyncio.sleep(IDLE_SECONDS)
            share = (time.process_time() - before) / IDLE_SECONDS
        journal.close()
        return {"seconds": started, "MB": memory(), "share": share}

    return asyncio.run(main())


def measure_write(folder: str) -> dict[str, float]:
    """Epochs journalled a second, of so many jobs at once: an event of each of them, and its actions, a transaction."""
    records = life()
    steps: list[list[Any]] = []
    for record in records:
        if type(record).__name__ in EVENTS or not steps:
            steps.append([])
        steps[-1].append(record)
    found = {}
    for at_once in AT_ONCE:
        journal = Journal.write(Path(folder) / f"{at_once}.db")
        batches = [[copied(record, n) for n in range(at_once) for record in step] for step in steps]
        began, epochs = time.perf_counter(), 0
        for number in itertools.count():
            journal.append(batches[number % len(batches)])
            epochs += at_once * isinstance(steps[number % len(steps)][0], ev.EpochFinished)
            if (seconds := time.perf_counter() - began) > WRITE_SECONDS:
                break
        journal.close()
        found[str(at_once)] = epochs / seconds
    return found


def memory() -> float:
    """The most memory this process ever had, MB. (What `getrusage` says may be that of the one that forked it.)"""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def measured(what: str, folder: Path) -> dict[str, float]:
    """`what`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lean", "--measure", what, "--folder", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write the journals, measure, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=["past", "handler", "write"])
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(globals()[f"measure_{options.measure}"](options.folder)))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="coach-lean-") as folder:
        past, empty = Path(folder) / "past", Path(folder) / "empty"
        write(past / "journal.db")
        before, start_before = measured("past", past), measured("handler", past)
        remember(past / "journal.db")
        after, start_after = measured("past", past), measured("handler", past)
        size = (past / "journal.db").stat().st_size / 1e6
        on = measured("write", empty)
    what = f"{JOBS:,} jobs and {JOBS * EPOCHS:,} epochs"
    rows += _row(f"all jobs of a journal of {what}, s of a core", before["seconds"], after["seconds"], "< 2")
    rows += _row(
        "a handler's start on it, s of a core", start_before["seconds"], start_after["seconds"], "< 2"
    )
    rows += _row("memory of that handler, MB", start_before["MB"], start_after["MB"], "<= 200")
    rows += _row(
        "a core's share while nothing happens, %",
        100 * start_before["share"],
        100 * start_after["share"],
        "< 1",
    )
    for at_once, rate in on.items():
        goal = ">= 1,000" if at_once != "1" else ""
        rows += _row(f"epochs journalled a second, jobs at once: {at_once}", rate, rate, goal)
    rows += _row("size of the journal, MB", size, size, "")
    write_csv(RESULTS / "lean" / "lean.csv", rows)
    note = "Every record folded: as it was, and as it still is where a journal has no snapshots."
    write_table(RESULTS / "lean" / "lean.md", "How lean a handler with a long past is", COMMAND, rows, note)
    print((RESULTS / "lean" / "lean.md").read_text())


def _row(what: str, before: float, after: float, goal: str) -> list[dict[str, Any]]:
    return [{"what": what, "every record folded": before, "with snapshots": after, "goal": goal}]


if __name__ == "__main__":
    main()
