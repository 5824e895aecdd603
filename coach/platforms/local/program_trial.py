"""Trying a program until its first report, for `coach try -- COMMAND`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coach.core.cluster import Pod, PodId, Role
from coach.core.spec.job import TrainingJob
from coach.platforms.local.cluster import parse_nodes
from coach.platforms.local.devices.pool import DevicePool
from coach.platforms.local.programs import Worker
from coach.platforms.local.supervisor import Ended, Order
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.files import written_since
from coach.platforms.program_metrics.others import SILENT, Others, by_likeness, undecided
from coach.platforms.program_metrics.reader import Reader

#: Seconds that the program then gets to end.
GRACE = 3.0
#: Lines of its output that are shown.
LINES = 8


@dataclass(frozen=True, slots=True)
class ProgramTrial:
    """What a trial found: the first report's metrics and its seconds, or how the program ended before it.

    `epoch` is what it says to have trained by then, `by` the kind of its source. `printed` are the last lines; `others`
    are what else it printed with a number, or wrote to files. `source` finds the one of them whose name is most like
    the metric's, as `--metric` takes it; "" without any. `line`: in which it was found, where that is a guess. `doubt`:
    why it was not found, where that is known.
    """

    metric: str
    values: dict[str, float]
    epoch: float | None
    by: str
    seconds: float
    ended: Ended | None
    printed: Sequence[str]
    others: Sequence[str]
    source: str
    line: str = ""
    doubt: str = ""

    @property
    def good(self) -> bool:
        """Whether the metric was found."""
        return self.metric in self.values


def run(job: TrainingJob, seconds: float) -> ProgramTrial:
    """Run the job's program until it prints the job's metric, or ends, or for so many seconds.

    Raises OSError; PodError where others have the GPUs that it asks for.
    """
    return asyncio.run(_run(job, seconds))


async def _run(job: TrainingJob, seconds: float) -> ProgramTrial:
    spec, program = job.spec, job.spec.program
    assert program is not None
    first: list[tuple[ProgramReport, float]] = []
    found, heard = dict[str, float](), asyncio.Event()
    began = time.time()

    def note(report: ProgramReport, when: float) -> None:
        if not heard.is_set():
            found.update(report.values)
            if spec.metric in report.values:
                first.append((report, when))
                heard.set()

    with tempfile.TemporaryDirectory(prefix="coach-try-") as folder:
        log, checkpoints = Path(folder, "log"), Path(folder, "checkpoints")
        checkpoints.mkdir()
        pool, here = DevicePool(parse_nodes("")), PodId(job.name, Role.WORKER, 0)
        asks = spec.resources.worker.resources
        seen = pool.take(Pod(here, "this-machine", asks)) if asks.gpu else None
        own = {"COACH_JOB": job.name, "COACH_CHECKPOINTS": str(checkpoints)}
        order = Order(
            name=job.name,
            command=program.command,
            directory=program.folder,
            env={"PYTHONUNBUFFERED": "1", **os.environ, **program.env, **pool.environment(seen, program.env), **own},
            log=str(log),
            wanted=Wanted.of(spec),
            seconds=seconds + GRACE,
            grace=GRACE,
            memory=asks.memory,
            job=job.name,
            leases=pool.descriptors(here),
        )
        worker = await Worker.start(order, note)
        waits = asyncio.create_task(heard.wait())
        try:
            await asyncio.wait({worker.ended, waits}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            by_itself = worker.ended.done()
        finally:
            waits.cancel()
            worker.end(GRACE)
            ended = await worker.ended
        lines = [json.loads(line)["message"] for line in log.read_text().splitlines()] if log.exists() else []
    others, doubt = dict[str, str](), ""
    if not heard.is_set():
        printed, reader = Others(), Reader(order.wanted)
        for line in lines:
            printed.add(line)
            reader.line(line)
        others = by_likeness(spec.metric, {**printed.sources, **_written(Path(order.directory), began)})
        if names := reader.undecided:
            doubt = undecided(spec.metric, names, printed.sources)
        elif not lines and not by_itself:
            doubt = SILENT
    report, at = first[0] if first else (ProgramReport({}, None, ""), 0.0)
    how, source = ended if by_itself else None, next(iter(others.values()), "")
    return ProgramTrial(
        *(
            spec.metric,
            found,
            report.epoch,
            report.source,
            at,
            how,
            lines[-LINES:],
            list(others),
            source,
            report.line,
            doubt,
        )
    )


def _written(directory: Path, since: float) -> dict[str, str]:
    """The metrics in files that were written since then, and the source of each."""
    found: dict[str, str] = {}
    for kind, path, names in written_since(directory, since):
        where = str(Path(path).parent) if kind == "tensorboard" else path
        for one in ("version_", "checkpoint-"):  # the next run has another number
            where = re.sub(rf"\b{one}\d+", f"{one}*", where)
        found |= {f"{name} in {path}": f"{kind}:{where}#{name}" for name in names}
    return found
