"""Trying a program until its first report, for `coach try -- COMMAND`."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coach.core.spec.job import TrainingJob
from coach.core.spec.metric_source import NUMBER
from coach.platforms.local.programs import Worker
from coach.platforms.local.supervisor import Ended, Order
from coach.platforms.program_metrics.base import ProgramReport, Wanted

#: Seconds that the program then gets to end.
GRACE = 3.0
#: Lines of its output that are shown.
LINES = 8
#: What programs print of a number: a few words, and `:` or `=`.
_NAMED = re.compile(rf"([A-Za-z][\w./@-]*(?: [A-Za-z][\w./@-]*){{0,3}}['\"]?\s*[:=]\s*['\"]?)({NUMBER})")


@dataclass(frozen=True, slots=True)
class ProgramTrial:
    """What a trial found: the first report's metrics and its seconds, or how the program ended before it.

    `printed` are the last lines; `others` are what else it printed with a number, `pattern` finds the one of them whose
    name is most like the metric's.
    """

    metric: str
    values: dict[str, float]
    seconds: float
    ended: Ended | None
    printed: Sequence[str]
    others: Sequence[str]
    pattern: str

    @property
    def good(self) -> bool:
        """Whether the metric was found."""
        return self.metric in self.values


def run(job: TrainingJob, seconds: float) -> ProgramTrial:
    """Run the job's program until it prints the job's metric, or ends, or for so many seconds. Raises OSError."""
    return asyncio.run(_run(job, seconds))


async def _run(job: TrainingJob, seconds: float) -> ProgramTrial:
    spec, program = job.spec, job.spec.program
    assert program is not None
    found, at, heard = dict[str, float](), [0.0], asyncio.Event()

    def note(report: ProgramReport, when: float) -> None:
        if not heard.is_set():
            found.update(report.values)
            at[0] = when
            if spec.metric in report.values:
                heard.set()

    with tempfile.TemporaryDirectory(prefix="coach-try-") as folder:
        log = Path(folder, "log")
        order = Order(
            name=job.name,
            command=program.command,
            directory=(program.directory or ".").removeprefix("file://"),
            env={"PYTHONUNBUFFERED": "1", **os.environ, **program.env},
            log=str(log),
            wanted=Wanted(spec.metric, program.sources(), program.samples_per_epoch),
            seconds=seconds + GRACE,
            grace=GRACE,
            memory=spec.resources.worker.resources.memory,
        )
        worker = await Worker.start(order, note)
        first = asyncio.create_task(heard.wait())
        try:
            await asyncio.wait({worker.ended, first}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            by_itself = worker.ended.done()
        finally:
            first.cancel()
            worker.end(GRACE)
            ended = await worker.ended
        lines = [json.loads(line)["message"] for line in log.read_text().splitlines()] if log.exists() else []
    others, pattern = _others(lines, spec.metric)
    return ProgramTrial(
        spec.metric, found, at[0], ended if by_itself else None, lines[-LINES:], others, pattern
    )


def _others(lines: Sequence[str], metric: str) -> tuple[list[str], str]:
    """What is printed before numbers in these lines, and a pattern for what is most like the metric; "" without any."""
    before = [match[1] for line in lines for match in _NAMED.finditer(line)]
    names = {re.sub(r"['\"]?\s*[:=]\s*['\"]?$", "", text): text for text in before}
    if not names:
        return [], ""
    like = {name.lower(): name for name in names}
    near = difflib.get_close_matches(metric.replace("_", " ").lower(), like, 1, 0.0)
    return list(names), _pattern(names[like[near[0]]])


def _pattern(before: str) -> str:
    """A regular expression for the number after this text."""
    return re.escape(before).replace("\\ ", " ") + "([-+.eE0-9]+)"
