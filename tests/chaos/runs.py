"""Runs whose victim is the handler itself: `coach run` in a process of its own, killed or stopped, and run again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from coach.core.errors import CoachError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.handler.state.codec import Record
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.chaos.draw import Fault, Instant
from tests.chaos.processes import gone, marked
from tests.chaos.stage import PATIENCE, Outcome, Stage, job_file, losses

ROOT = Path(__file__).resolve().parents[2]
#: Seconds that a handler is stopped: longer than an epoch, shorter than what it has paid for.
PAUSE = 2.0


async def run_with(fault: Fault, stage: Stage) -> Outcome:
    """One run of a job under `coach run`; the stage knows of undisturbed ones."""
    with tempfile.TemporaryDirectory(prefix="chaos-run-") as name:
        home, temporary = StateDirectory(Path(name) / "home"), Path(name) / "tmp"
        temporary.mkdir()
        file = Path(name) / "job.yaml"
        job = job_file("struck", stage.framework, stage.servers_are, probing=fault.probing)
        file.write_text(yaml.safe_dump(job))
        environment = {**os.environ, "COACH_HOME": str(home.path), "TMPDIR": str(temporary)}
        began = time.monotonic()
        log = (Path(name) / "out").open("ab")
        runs, struck = 0, ""
        try:
            while runs < 3:
                runs += 1
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "coach.cli.main", "run", str(file),
                    cwd=ROOT, env=environment, stdout=log, stderr=log,
                )  # fmt: skip
                try:
                    async with asyncio.timeout(PATIENCE):
                        if not struck:
                            struck = await _strike(home, process, fault, stage.usual)
                        await process.wait()
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
                if process.returncode != -signal.SIGKILL:
                    break
            job = _job(home, Path(name) / "out")
            lost = losses(job, 1, stage.calm)
            if process.returncode != 0:
                lost.append(f"exit code {process.returncode}")
        except TimeoutError:
            lost, job = [f"not over after {PATIENCE:.0f} s"], _job(home, Path(name) / "out")
        finally:
            log.close()
        lost += [
            f"left: {what}" for what in await asyncio.to_thread(gone, lambda: marked("COACH_HOME", str(home.path)), 10)
        ]
        lost += [f"left: {path.name}" for path in temporary.iterdir()]
        lost += [f"left: {path.name}" for path in home.checkpoints("struck").iterdir() if path.suffix != ".ckpt"]
        if lost:
            lost.append((Path(name) / "out").read_text()[-1500:])
        return Outcome(struck, lost, job.attempts.count, len(job.epochs), [], time.monotonic() - began)


def _job(home: StateDirectory, log: Path) -> Job:
    try:
        return _jobs(home)["struck"]
    except (CoachError, KeyError) as error:
        raise AssertionError(f"it did not even begin: {error}: {log.read_text()}") from error


def _jobs(home: StateDirectory) -> dict[str, Job]:
    journal = Journal.read(home.journal(1))
    try:
        return journal.jobs()
    finally:
        journal.close()


async def _strike(
    home: StateDirectory, process: asyncio.subprocess.Process, fault: Fault, usual: tuple[float, float]
) -> str:
    """Send the signal at the drawn instant, as the journal shows it; what was hit."""
    with _records(home, process) as next_record:
        async for record in next_record():
            if _is_instant(record, fault):
                break
        else:
            return ""
    train, evaluate = usual
    await asyncio.sleep(
        {
            Instant.STARTING: fault.share * 0.5,
            Instant.PROBING: fault.share * 0.4,
            Instant.FORMING: fault.share * 0.25,
            Instant.TRAINING: fault.share * train,
            Instant.EVALUATING: train + fault.share * evaluate,
            Instant.SETTLING: fault.share * 0.03,
        }[fault.instant]
    )
    if process.returncode is not None:
        return ""
    if fault.signal == "SIGKILL":
        process.kill()
    else:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE)
        process.send_signal(signal.SIGCONT)
    return f"handler {process.pid}"


def _is_instant(record: Record, fault: Fault) -> bool:
    match fault.instant:
        case Instant.STARTING:
            return isinstance(record, act.DeployPods)
        case Instant.PROBING:
            return isinstance(record, act.RunEpoch) and record.kind is EpochKind.PROBE and record.number >= fault.epoch
        case Instant.FORMING:
            return isinstance(record, act.RunEpoch)
        case Instant.TRAINING | Instant.EVALUATING:
            return isinstance(record, act.RunEpoch) and record.number >= fault.epoch
        case Instant.SETTLING:
            return isinstance(record, ev.EpochFinished) and int(record.token.rpartition(".")[2]) >= fault.epoch


@contextlib.contextmanager
def _records(home: StateDirectory, process: asyncio.subprocess.Process) -> Iterator[Callable[[], object]]:
    """The journal's records as they are written, until the process ends."""
    readers: list[Journal] = []

    async def follow():  # type: ignore[no-untyped-def]
        after = 0
        while process.returncode is None:
            if not readers:
                with contextlib.suppress(Exception):  # not there yet, or just being made
                    readers.append(Journal.read(home.journal(1)))
            if readers:
                with contextlib.suppress(Exception):
                    for number, record in readers[0].records(after=after):
                        after = number
                        yield record
            await asyncio.sleep(0.004)

    try:
        yield follow
    finally:
        for reader in readers:
            reader.close()
