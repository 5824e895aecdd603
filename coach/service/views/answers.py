"""The answers to operations that read: the same for the API's routes and for commands that read a state folder here.

Each method has the name and the arguments of the client's (`coach.service.calls.Operations`).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from coach.core.errors import PermanentError, UserError
from coach.core.estimation.interval import Interval
from coach.core.jobs.job import Job
from coach.core.lifecycle.forecast import remaining
from coach.core.optional_feature import OptionalFeature
from coach.handler.interactive_run import over
from coach.handler.search.definition import load
from coach.handler.state.checkpoints import Surplus, delete, surplus
from coach.handler.state.state_directory import StateDirectory
from coach.jobfiles.diagnostics import show
from coach.jobfiles.dump import as_new
from coach.report import comparison, formatting
from coach.report.comparison import Comparison
from coach.report.formatting import iso
from coach.report.model_card import chosen_epoch, model_card
from coach.report.models import curve_words, speed_rows, speed_words
from coach.report.row_types import JobDetail, JobDetails, JobList, Why
from coach.report.status import epoch_rows, forecast_rows
from coach.report.why import device_use_words, devices, waiting, why
from coach.service import schemas
from coach.service.function_logs import log_files, read
from coach.service.job_history import Books, Stories
from coach.service.operations import NoSuchJobError, ReadOnlyError, Service
from coach.service.views.cluster import node_rows, queue_rows
from coach.service.views.models import refuse_program

#: Rows of the journal in one answer, at most.
MAX_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one service. Raises NoSuchJobError for a name that no job has."""

    service: Service
    stories: Stories

    async def wait_for_news(self, after: int, seconds: float, names: Sequence[str] | None = None) -> None:
        """Wait for a record later than `after`, of these jobs or of any."""

        def news() -> bool:
            return self.service.last_seq() > after if names is None else self.service.news(names, after)

        if seconds > 0 and not news():
            await self.service.changed(seconds, news)

    # -- the whole service ----------------------------------------------------------------------------------

    async def cluster(self, *, limit: int = 0, cursor: str = "") -> schemas.Cluster:
        """Its nodes, its queue (of it `limit` rows, 0: 100), its policy."""
        service = self.service
        queue, begin = waiting(service.jobs), int(cursor or 0)
        end = begin + (limit or 100)
        return schemas.Cluster(
            version=metadata.version("coach-trainer"),
            policy=service.policy.name,
            nodes=node_rows(service.nodes, service.jobs),
            queue=queue_rows(queue[begin:end], begin + 1),
            waiting=len(queue),
            next=str(end) if end < len(queue) else None,
            folders=[str(folder) for folder in service.folders],
            home=str(service.home.path),
            stopping=service.stopping,
            read_only=service.read_only,
        )

    async def checks(self, also: Collection[OptionalFeature] = ()) -> list[schemas.Check]:
        """Whether the service's machine can run jobs."""
        from coach.service.doctor import checks

        return await asyncio.to_thread(lambda: list(checks(self.service.home, tuple(also))))

    async def records(self, names: Sequence[str], after: int = 0, wait: float = 0.0) -> schemas.Records:
        """Records of jobs later than `after`."""
        service = self.service
        for name in names:
            service.job(name)
        await self.wait_for_news(after, wait, names)
        rows = list(service.reader.rows(names, after, MAX_RECORDS))
        progress = {name: service.handler.progress[name] for name in names if name in service.handler.progress}
        return schemas.Records(
            seq=rows[-1][0] if rows else after,
            now=service.handler.now(),
            records=[schemas.RecordRow(seq=seq, type=kind, body=json.loads(body)) for seq, kind, body in rows],
            progress={name: schemas.ProgressRow.model_validate(one) for name, one in progress.items()},
        )

    async def accounts(self) -> schemas.Accounts:
        """The budgets over jobs."""
        return schemas.Accounts(accounts=self.service.accounts())

    async def spending(self) -> schemas.Spending:
        """What each job paid out of which account."""
        return schemas.Spending(rows=await self.service.spending())

    async def list_searches(self) -> schemas.SearchList:
        """All searches."""
        return schemas.SearchList(searches=[one.row() for one in self.service.searches.all()])

    async def search(self, name: str, *, after: int = 0, wait: float = 0.0) -> schemas.SearchDetail:
        """One search with its trials."""
        load(self.service.home, name)
        await self.wait_for_news(after, wait)
        seq = self.service.last_seq()
        row, trials, gain = await self.service.searches.outlook(name)
        return schemas.SearchDetail(seq=seq, search=row, trials=trials, next_gain=gain)

    # -- jobs -----------------------------------------------------------------------------------------------

    async def list_jobs(
        self,
        *,
        state: Sequence[str] = (),
        q: str = "",
        limit: int = 0,
        cursor: str = "",
        after: int = 0,
        wait: float = 0.0,
    ) -> JobList:
        """Jobs in the order of their submission; those that wait for room with when they are expected to start."""
        await self.wait_for_news(after, wait)
        service = self.service
        names = [name for name, job in service.jobs.items() if _matches(job, q) and (not state or job.state in state)]
        total, begin = len(names), 0
        if cursor:
            if cursor not in service.jobs:
                raise UserError(f"cursor {show(cursor)}: must be `next` of an earlier answer")
            order = {name: index for index, name in enumerate(service.jobs)}
            begin = next((i for i, name in enumerate(names) if order[name] > order[cursor]), total)
        shown = names[begin : begin + limit] if limit else names[begin:]
        starts = service.expected_starts()
        rows = [service.view(name) for name in shown]
        return JobList(
            seq=service.last_seq(),
            stream=f"{service.identity}-{service.last_seq()}",
            total=total,
            next=shown[-1] if shown and begin + len(shown) < total else None,
            jobs=[replace(row, starts_in=starts[row.name]) if row.name in starts else row for row in rows],
        )

    async def job(self, name: str, *, after: int = 0, wait: float = 0.0) -> JobDetail:
        """One job with its epochs, its ledger and its models."""
        service = self.service
        service.job(name)
        await self.wait_for_news(after, wait, [name])
        books = await asyncio.to_thread(self.stories.books, service.past(name))
        found = service.job(name)
        return job_detail(found, service.view(name), books, service.home)

    async def events(self, name: str, *, after: int = 0, wait: float = 0.0) -> schemas.Events:
        """What happened to a job, in words."""
        service = self.service
        service.job(name)
        await self.wait_for_news(after, wait, [name])
        found, last = await asyncio.to_thread(self.stories.events, service.past(name), after)
        lines = [
            schemas.EventLine(seq=seq, at=iso(line.at), text=line.text, important=line.important) for seq, line in found
        ]
        past = service.past(name)
        return schemas.Events(seq=last, ended=past.job.ended, over=past.orphan or over(past.job), events=lines)

    async def why_job(self, name: str) -> Why:
        """Why a job waits, or has its allocation."""
        service = self.service
        past, (others, nodes, taken) = service.past(name), service.others(name)
        return why(past.job, others, nodes, service.handler.now(), taken, orphan=past.orphan)

    async def compare_jobs(self, names: Sequence[str]) -> Comparison:
        """Jobs side by side."""
        service = self.service

        def found() -> Comparison:
            return comparison.compare_jobs(
                [(service.job(name), service.home.records(service.past(name))) for name in names]
            )

        return await asyncio.to_thread(found)

    async def logs(self, name: str) -> schemas.LogFiles:
        """The logs of a job's functions."""
        files = log_files(self.service.home.logs(self.service.job(name).name))
        return schemas.LogFiles(
            functions=[schemas.LogFile(function=key, bytes=file.stat().st_size) for key, file in files.items()]
        )

    async def log_text(self, name: str, function: str, *, after: int = 0, before: bool = False) -> schemas.LogText:
        """The log of one function from byte `after` on; `before`: the part that was written before this file."""
        file = log_files(self.service.home.logs(self.service.job(name).name)).get(function)
        if file is None:
            raise NoSuchJobError(f"job {name} has no function {function!r}; see them all: coach logs {name}")
        if before:
            file = file.with_name(f"{file.name}.1")
        text, position = await asyncio.to_thread(read, file, after)
        return schemas.LogText(text=text.decode(errors="replace"), next=position)

    async def model_card(self, name: str, epoch: str = "best") -> dict[str, Any]:
        """What the model of an epoch was trained on, how, to what, and for how much."""
        found = self.service.job(name)
        refuse_program(found)
        return model_card(found, chosen_epoch(found, epoch))

    async def prune(
        self, names: Sequence[str] = (), *, everything: bool = False, dry_run: bool = False
    ) -> list[Surplus]:
        """Delete the checkpoints of ended jobs but for the best and the last. Raises UserError, PermanentError."""
        jobs = [self.service.job(name) for name in dict.fromkeys(names)] or list(self.service.jobs.values())
        if names and (one := next((job for job in jobs if not job.ended), None)) is not None:
            raise UserError(
                f"{one.name} is {one.state.value}: a job keeps what it needs until it ends; coach cancel {one.name}"
            )
        if self.service.read_only and not dry_run:
            raise ReadOnlyError("this page only shows jobs; to delete checkpoints: coach prune")
        ended = [job for job in jobs if job.ended]

        def pruned() -> list[Surplus]:
            found = [surplus(job, everything=everything) for job in ended]
            for job, each in zip(ended, found, strict=True):
                if not dry_run:
                    delete(job, each)
            return found

        try:
            return await asyncio.to_thread(pruned)
        except OSError as error:
            raise PermanentError(f"checkpoints cannot be deleted: {error}") from error


def _matches(job: Job, text: str) -> bool:
    return text in job.name or any(text in f"{key}={value}" for key, value in job.job_file.metadata.labels.items())


def job_detail(found: Job, row: JobDetails, books: Books, home: StateDirectory) -> JobDetail:
    """All that is known of a job."""
    return JobDetail(
        seq=books.seq,
        job=row,
        remaining=_remaining(found),
        why=[step.text(found.name) for step in found.decision.reasons],
        considered=books.considered,
        refused=books.refused,
        epochs=epoch_rows(found, books.pauses),
        forecasts=forecast_rows(found),
        ledger=books.ledger,
        speed=speed_rows(found),
        convergence=found.models.convergence.to_dict() if found.models.convergence else None,
        curve_words=curve_words(found),
        speed_words=speed_words(found),
        limits=formatting.limits(found.minimum, found.maximum),
        has_servers=found.maximum.servers > 0,
        devices=devices(found),
        device_use=device_use_words(found),
        prices=found.price_book.name,
        epoch_samples=found.epoch_samples,
        checkpoint=found.progress.weights or None,
        logs=str(home.logs(found.name)),
        spec=found.job_file.to_json(),
        text=as_new(found.job_file),
        note=home.note(found.name),
    )


def _remaining(job: Job) -> Interval | None:
    if job.ended or not job.epochs:
        return None
    left = remaining(job)
    return left.epochs if left.known and math.isfinite(left.epochs.high) else None
