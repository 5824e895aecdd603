"""What a handler with a long journal needs: to start, to idle, and to write.

    python -m benchmarks.service.handler_memory

A journal of 1,000 jobs and 100,000 epochs is written (one simulated job, copied under 1,000 names), and then measured,
each in a process of its own: the fold of its jobs, with and without snapshots; an idle handler on it; epochs journalled
a second. Starting is given in CPU seconds, which other load on the machine changes little.

A record is on disk before anything else happens. So with one job at a time an epoch takes as long as the disk needs to
confirm it, some two transactions. Events that arrive in the meantime are in the next transaction together, as the
handler takes them from its queue: so many jobs at once journal more epochs a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, write_csv, write_table
from coach import collector
from coach.core.jobs import events as ev
from coach.core.jobs.fitted_models import FittedCurve
from coach.core.jobs.fold import apply
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.state.codec import EVENTS
from coach.handler.state.journal import Journal, fold
from coach.handler.state.snapshots import due
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.base import Cluster
from coach.plugins import policy
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec

JOBS, EPOCHS = 1_000, 100
COMMAND = "python -m benchmarks.service.handler_memory"
#: Seconds that an idle handler is watched.
IDLE_SECONDS = 20.0
#: Jobs whose events come at the same time.
AT_ONCE = (1, 8, 64)
WRITE_SECONDS = 5.0


def life(epochs: int = EPOCHS) -> list[Any]:
    """The records of one job of so many epochs."""
    world = World.of(nodes(1, 8.0))
    file = spec("job", maxEpochs=epochs, target={"loss": 1e-4}, stopEarly=False)
    world.submit(file, FaultyDynamics(loss=lambda epochs_trained: 1 / (0.4 * epochs_trained + 0.5)))
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


def write_living(path: Path) -> None:
    """The journal of a handler that was killed while all jobs were under way, each at an instant of its own.

    Each job has its last snapshot where the handler would have written it.
    """
    records, journal, dice = life(EPOCHS + 10), Journal.write(path), random.Random(1)
    journal.append([ev.HandlerStarted(records[0].at - 1.0, nodes(1, 8.0))])
    ends = [record.at for record in records if isinstance(record, ev.EpochFinished)]
    kept = kept_at(records)
    for number in range(JOBS):
        killed = dice.uniform(ends[EPOCHS - 3], ends[EPOCHS + 3])
        own = [copied(record, number) for record in records if record.at <= killed]
        last = max(place for place in kept if place <= len(own))
        journal.append(own[:last])
        journal.save_snapshots(*fold(own[:last]).values())
        journal.append(own[last:])
    journal.close()


def forget(path: Path) -> None:
    """Take all snapshots away."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM snapshots")


def kept_at(records: list[Any]) -> list[int]:
    """After how many of one job's records a handler keeps it: at an event and its actions."""
    places, (living,) = [], fold(records[:1]).values()
    with tempfile.TemporaryDirectory(prefix="coach-lean-") as folder:
        journal = Journal.write(Path(folder) / "journal.db")
        for step in steps_of(records):
            journal.append(step)
            for record in step:
                if not isinstance(record, ev.JobSubmitted):
                    apply(living, record)
            if due(living):
                journal.save_snapshots(living)
                places.append(journal.last_seq())
        journal.close()
    return places


def steps_of(records: list[Any]) -> list[list[Any]]:
    """Each event with the actions that followed."""
    steps: list[list[Any]] = []
    for record in records:
        if type(record).__name__ in EVENTS or not steps:
            steps.append([])
        steps[-1].append(record)
    return steps


def copied(record: Any, number: int, later: float = 0.0) -> Any:
    """The record of another job, so many seconds later, with a loss that is its own."""
    changes: dict[str, Any] = {"job": f"job-{number}", "at": record.at + later}
    share = 1 + 1e-6 * number
    if isinstance(record, ev.JobSubmitted):
        changes["spec"] = {**record.spec, "metadata": {"name": f"job-{number}"}}
    if isinstance(record, ev.EpochFinished) and record.report.loss is not None:
        changes["report"] = dataclasses.replace(record.report, loss=record.report.loss * share)
    if isinstance(record, ev.ModelsFitted) and record.convergence:
        points = [[x, value * share] for x, value in record.convergence["points"]]
        changes["convergence"] = {"metric": "loss", "points": points, "asked": answered(record.convergence)}
    return dataclasses.replace(record, **changes)


def save_snapshots(path: Path) -> None:
    """Give every job of the journal its snapshot, as a handler does when it ends."""
    journal = Journal.write(path)
    for job in journal.jobs().values():
        journal.save_snapshots(job)
    journal.close()


# -- measured in processes of their own -------------------------------------------------------------------


def measure_past(folder: str) -> dict[str, float]:
    """What every command and every start of a handler does first."""
    StateDirectory(Path(folder))
    began = time.process_time()
    past = StateDirectory(Path(folder)).past()
    seconds = time.process_time() - began
    assert len(past) == JOBS and sum(len(one.job.epochs) for one in past.values()) >= JOBS * EPOCHS
    return {"seconds": seconds, "MB": memory()}


class Idle:
    """A platform on which nothing is ever started."""

    linger_seconds = 0.0
    programs_outlive = False
    places_pods = False
    checkpoints: str | None = None

    async def open(self, events: Any) -> Cluster:
        """One node."""
        return Cluster(nodes(1, 8.0))

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
            while any(map(due, handler.jobs.values())):  # it writes the snapshots that are due
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.0)
            before = time.process_time()
            await asyncio.sleep(IDLE_SECONDS)
            share = (time.process_time() - before) / IDLE_SECONDS
        journal.close()
        return {"seconds": started, "MB": memory(), "share": share}

    return asyncio.run(main())


def measure_killed(folder: str) -> dict[str, float]:
    """A handler's start where another was killed: the jobs as they were, and then what each of them does next."""

    async def main() -> dict[str, float]:
        began = time.process_time()
        journal = Journal.write(Path(folder) / "journal.db")
        jobs = journal.jobs()
        read = {"seconds": time.process_time() - began, "MB": memory()}
        assert len(jobs) == JOBS and not any(job.ended for job in jobs.values())
        assert sum(len(job.epochs) for job in jobs.values()) >= JOBS * (EPOCHS - 3)
        async with Handler(Idle(), journal, policy("coach"), jobs) as handler:  # type: ignore[arg-type]
            await asyncio.sleep(0)
            await handler.wait(handler._events.empty)
            decided = {"decided": time.process_time() - began, "decided MB": memory()}
        journal.close()
        return read | decided

    return asyncio.run(main())


def measure_write(folder: str) -> dict[str, float]:
    """Epochs journalled a second, of so many jobs at once: an event of each of them, and its actions, a transaction."""
    records = life()
    steps = steps_of(records)
    found = {}
    for at_once in AT_ONCE:
        journal = Journal.write(Path(folder) / f"{at_once}.db")
        batches = [[copied(record, n) for n in range(at_once) for record in step] for step in steps]
        living: dict[str, Job] = {}
        began, epochs = time.perf_counter(), 0
        for number in itertools.count():
            journal.append(batches[number % len(batches)])
            keep(journal, living, batches[number % len(batches)])
            epochs += at_once * isinstance(steps[number % len(steps)][0], ev.EpochFinished)
            if (seconds := time.perf_counter() - began) > WRITE_SECONDS:
                break
        journal.close()
        found[str(at_once)] = epochs / seconds
    return found


def keep(journal: Journal, living: dict[str, Job], records: list[Any]) -> None:
    """What a handler does with its jobs when records of theirs are journalled."""
    for record in records:
        if isinstance(record, ev.JobSubmitted):
            living |= fold([record])
        else:
            apply(living[record.job], record)
    if snapshots := [living[name] for name in {record.job for record in records} if due(living[name])]:
        journal.save_snapshots(*snapshots)


@functools.cache
def _answer(points: tuple[tuple[float, float], ...]) -> list[Any]:
    target = TrainingJob.from_json(spec("job", target={"loss": 1e-4})).spec.target
    asked: list[Any] = FittedCurve({"metric": "loss", "points": points}, points[-1][0]).asked(target)["asked"]
    return asked


def answered(convergence: dict[str, Any]) -> list[Any]:
    """What the handler asked of a curve when it was fitted; a millionth of the loss changes nothing of it."""
    return _answer(tuple((x, value) for x, value in convergence["points"]))


def memory() -> float:
    """The peak memory of this process, MB. (`getrusage` may report that of the process that forked it.)"""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def measured(what: str, folder: Path) -> dict[str, float]:
    """`what`, in a process of its own."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.service.handler_memory",
            "--measure",
            what,
            "--folder",
            str(folder),
            "--jobs",
            str(JOBS),
        ],
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
    parser.add_argument("--measure", choices=["past", "handler", "killed", "write"])
    parser.add_argument("--folder")
    parser.add_argument("--jobs", type=int, default=JOBS, help="fewer are for a look: the table is not kept")
    options = parser.parse_args()
    collector.look_seldom()  # as in all of `coach`
    globals()["JOBS"], usual = options.jobs, JOBS
    if options.measure:
        print(json.dumps(globals()[f"measure_{options.measure}"](options.folder)))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="coach-lean-") as folder:
        past, empty = Path(folder) / "past", Path(folder) / "empty"
        write(past / "journal.db")
        before, start_before = measured("past", past), measured("handler", past)
        save_snapshots(past / "journal.db")
        after, start_after = measured("past", past), measured("handler", past)
        size = (past / "journal.db").stat().st_size / 1e6
        (past / "journal.db").unlink()
        on = measured("write", empty)
        living = Path(folder) / "living"
        write_living(living / "journal.db")
        killed = measured("killed", living)
        forget(living / "journal.db")
        killed_before = measured("killed", living)
    what = f"{JOBS:,} jobs and {JOBS * EPOCHS:,} epochs"
    rows += _row(f"all jobs of a journal of {what}, s of a core", before["seconds"], after["seconds"], "< 2")
    rows += _row("a handler's start on it, s of a core", start_before["seconds"], start_after["seconds"], "< 2")
    rows += _row("memory of that handler, MB", start_before["MB"], start_after["MB"], "<= 200")
    rows += _row(
        "a core's share while nothing happens, %",
        100 * start_before["share"],
        100 * start_after["share"],
        "< 1",
    )
    what = f"a handler killed with {JOBS:,} living jobs and {JOBS * EPOCHS:,} epochs"
    for key, words, goal in (
        ("seconds", "these read by the next, s of a core", "< 2"),
        ("MB", "its memory then, MB", "<= 200"),
        ("decided", "until it has decided what each does next, s of a core", ""),
        ("decided MB", "its memory then, MB", ""),
    ):
        rows += _row(f"{what}: {words}", killed_before[key], killed[key], goal)
    for at_once, rate in on.items():
        goal = ">= 1,000" if at_once != "1" else ""
        rows += _row(f"epochs journalled a second, jobs at once: {at_once}", rate, rate, goal)
    rows += _row("size of the journal, MB", size, size, "")
    note = (
        "Every record folded: as it was, and as it still is where a journal has no snapshots. Snapshots of living jobs "
        "are written as they grow, in the epochs journalled too."
    )
    folder = str(RESULTS / "lean") if usual == JOBS else tempfile.mkdtemp(prefix="coach-lean-")
    write_csv(Path(folder) / "lean.csv", rows)
    write_table(Path(folder) / "lean.md", "How lean a handler with a long past is", COMMAND, rows, note)
    print((Path(folder) / "lean.md").read_text())


def _row(what: str, before: float, after: float, goal: str) -> list[dict[str, Any]]:
    return [{"what": what, "every record folded": before, "with snapshots": after, "goal": goal}]


if __name__ == "__main__":
    main()
