"""The routes of the API: of the process, of the service, and of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, TypeVar
from weakref import WeakValueDictionary

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, TypeAdapter

from coach.core.errors import UserError
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.lifecycle.forecast import remaining_epochs
from coach.core.money import to_money
from coach.handler.accounts import terms as account_terms
from coach.handler.endpoint import API
from coach.jobfiles.diagnostics import show
from coach.jobfiles.dump import as_new
from coach.report.formatting import iso
from coach.report.row_types import AccountRow, JobRow
from coach.report.status import epoch_rows, forecast_rows
from coach.service import schemas
from coach.service.errors import may_answer
from coach.service.function_logs import log_files, read
from coach.service.job_history import Stories
from coach.service.metrics import Metrics
from coach.service.operations import NoSuchJobError, ReadOnlyError, Service
from coach.service.requests import KeyedRequest, find

#: Rows of the journal in one answer, at most.
MAX_RECORDS = 1000

Name = Annotated[str, InPath(pattern=schemas.NAME, max_length=40, description="The job's name.")]
After = Annotated[int, Query(ge=0, le=2**53, description="Only what is later than this `seq`.")]
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=schemas.LONGEST_WAIT,
        allow_inf_nan=False,
        description="Seconds to wait for a record later than `after`.",
    ),
]
Names = Annotated[
    list[Annotated[str, Query(pattern=schemas.NAME, max_length=40)]],
    Query(alias="job", max_length=1000, description="Names of jobs; may be repeated."),
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]+$",
        max_length=100,
        description="A word of the caller's own for this request. Sent again with it, also to a service that was "
        "started again, nothing is done twice; with another body it is refused.",
    ),
]
T = TypeVar("T")

_LIST: TypeAdapter[schemas.JobList] = TypeAdapter(schemas.JobList)
_VERSION = metadata.version("coach-trainer")


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that the routes of one application use."""

    service: Service
    metrics: Metrics
    stories: Stories
    #: By Idempotency-Key: held by the request with it that is under way.
    keys: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def once(
        self, key: str | None, body: BaseModel, do: Callable[[KeyedRequest], Awaitable[T]], name: str = ""
    ) -> T:
        """The answer to a request about job `name`; of two with one key the second waits until the first is done."""

        async def held() -> T:
            async with self.keys.setdefault(key or "", asyncio.Lock()) if key else contextlib.nullcontext():
                what = f"{name} {body.model_dump_json()}".encode()
                return await do(find(self.service.reader, key, what))

        # It is done to its end, also where its caller has gone.
        return await asyncio.shield(asyncio.ensure_future(held()))

    async def wait_for_news(self, after: int, seconds: float, names: Sequence[str] | None = None) -> None:
        """Wait for a record later than `after`, of these jobs or of any."""
        reader = self.service.reader

        def news() -> bool:
            if names is None:
                return self.service.last_seq() > after
            return next(reader.rows(names, after, 1), None) is not None

        if seconds > 0 and not news():
            await self.service.changed(seconds, news)


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def _job(name: Name, request: Request) -> Job:
    context: Context = request.app.state.context
    return context.service.job(name)


InContext = Annotated[Context, Depends(_context)]
#: The job of the path's name; without one, the answer is 404.
Known = Annotated[Job, Depends(_job)]

# Prefixes are given here, not where the routers are included: a route's path, which metrics and the log name, has them.
process = APIRouter(tags=["service"])
service_wide = APIRouter(prefix=API)
jobs = APIRouter(prefix=f"{API}/jobs", tags=["jobs"])


# -- the process: paths without a version, as probes and Prometheus expect them --------------------------------


@process.get("/health", responses=may_answer())
async def health(context: InContext) -> schemas.Health:
    """Say that the service runs."""
    return schemas.Health(status="stopping" if context.service.stopping else "ok", version=_VERSION)


@process.get("/metrics", responses=may_answer(), response_class=PlainTextResponse)
async def metrics_page(context: InContext) -> Response:
    """Numbers for Prometheus."""
    return Response(context.metrics.page(), media_type=context.metrics.content_type)


# -- the whole service -----------------------------------------------------------------------------------------


@service_wide.get("/records", tags=["journal"], responses=may_answer(404, 422))
async def records(context: InContext, job: Names, after: After = 0, wait: Wait = 0.0) -> schemas.Records:
    """The journal's records of some jobs. At most 1,000 records."""
    service = context.service
    for name in job:
        service.job(name)
    await context.wait_for_news(after, wait, job)
    rows = list(service.reader.rows(job, after, MAX_RECORDS))
    progress = {name: service.handler.progress[name] for name in job if name in service.handler.progress}
    return schemas.Records(
        seq=rows[-1][0] if rows else after,
        now=service.handler.now(),
        records=[schemas.RecordRow(seq=seq, type=kind, body=json.loads(body)) for seq, kind, body in rows],
        progress={name: schemas.ProgressRow.model_validate(one) for name, one in progress.items()},
    )


@service_wide.get("/accounts", tags=["accounts"], responses=may_answer())
async def accounts(context: InContext) -> schemas.Accounts:
    """The budgets over jobs: what each has spent, reserved and left in its present period."""
    return schemas.Accounts(accounts=context.service.accounts())


@service_wide.put("/accounts/{name}", tags=["accounts"], responses=may_answer(409, 413, 422, 503))
async def set_account(context: InContext, name: Name, setting: schemas.AccountTerms) -> AccountRow:
    """Make a budget over jobs, or change its terms; what was spent and reserved stays."""
    wanted = account_terms(
        name, setting.amount, setting.currency, setting.period, setting.timezone, setting.parent, setting.labels
    )
    return await context.service.set_account(wanted)


@service_wide.delete("/accounts/{name}", tags=["accounts"], responses=may_answer(404, 409, 422, 503))
async def remove_account(context: InContext, name: Name) -> schemas.Accounts:
    """Remove a budget over jobs that pays no job which has not ended; the others. The journal keeps what was spent."""
    await context.service.remove_account(name)
    return schemas.Accounts(accounts=context.service.accounts())


@service_wide.get("/spending", tags=["accounts"], responses=may_answer())
async def spending(context: InContext) -> schemas.Spending:
    """Who spent what: a row for each account, period and job."""
    return schemas.Spending(rows=await context.service.spending())


# -- looking at jobs -------------------------------------------------------------------------------------------


@jobs.get("", response_model=schemas.JobList, responses=may_answer(422))
async def list_jobs(  # noqa: PLR0917 - they are queries
    context: InContext,
    after: After = 0,
    wait: Wait = 0.0,
    state: Annotated[list[State], Query(max_length=9, description="Only jobs in these states.")] = [],  # noqa: B006
    q: Annotated[
        str, Query(max_length=100, description="Only jobs whose name, or a label as key=value, has this in it.")
    ] = "",
    limit: Annotated[int, Query(ge=0, le=100_000, description="Jobs in one answer, at most; 0: all.")] = 0,
    cursor: Annotated[str, Query(max_length=40, description="`next` of the previous answer.")] = "",
) -> Response:
    """The state of jobs, in the order of their submission."""
    await context.wait_for_news(after, wait)
    service = context.service
    names = [name for name, job in service.jobs.items() if _matches(job, q) and (not state or job.state in state)]
    total, begin = len(names), 0
    if cursor:
        if cursor not in service.jobs:
            raise UserError(f"cursor {show(cursor)}: must be `next` of an earlier answer")
        order = {name: index for index, name in enumerate(service.jobs)}
        begin = next((i for i, name in enumerate(names) if order[name] > order[cursor]), total)
    shown = names[begin : begin + limit] if limit else names[begin:]
    # Serialized directly: validating a thousand rows that we made ourselves takes too long.
    found = schemas.JobList.model_construct(
        seq=service.last_seq(),
        stream=f"{service.identity}-{service.last_seq()}",
        total=total,
        next=shown[-1] if shown and begin + len(shown) < total else None,
        jobs=[service.view(name) for name in shown],
    )
    return Response(_LIST.dump_json(found), media_type="application/json")


def _matches(job: Job, text: str) -> bool:
    return text in job.name or any(text in f"{key}={value}" for key, value in job.job_file.metadata.labels.items())


@jobs.get("/{name}", responses=may_answer(404, 422))
async def job(context: InContext, known: Known, after: After = 0, wait: Wait = 0.0) -> schemas.JobDetail:
    """One job with its epochs and its ledger."""
    service, name = context.service, known.name
    await context.wait_for_news(after, wait, [name])
    books = await asyncio.to_thread(context.stories.books, service.past(name))
    found = service.job(name)
    return schemas.JobDetail(
        seq=books.seq,
        job=service.view(name),
        remaining=_remaining(found),
        why=[step.text(name) for step in found.reasons],
        epochs=epoch_rows(found, books.pauses),
        forecasts=forecast_rows(found),
        ledger=books.ledger,
        spec=found.job_file.to_json(),
        text=as_new(found.job_file),
        note=service.home.note(name),
    )


def _remaining(job: Job) -> schemas.Range | None:
    if job.ended or not job.epochs:
        return None
    left = remaining_epochs(job)
    return schemas.Range.model_validate(left) if math.isfinite(left.high) else None


@jobs.get("/{name}/events", responses=may_answer(404, 422))
async def events(context: InContext, known: Known, after: After = 0, wait: Wait = 0.0) -> schemas.Events:
    """What happened to a job, in words. At most 1,000 lines; ask again with `after` = `seq` for the next."""
    service, name = context.service, known.name
    await context.wait_for_news(after, wait, [name])
    found, last = await asyncio.to_thread(context.stories.events, service.past(name), after)
    lines = [
        schemas.EventLine(seq=seq, at=iso(line.at), text=line.text, important=line.important) for seq, line in found
    ]
    return schemas.Events(seq=last, ended=service.job(name).ended, events=lines)


@jobs.get("/{name}/logs", responses=may_answer(404, 422))
async def logs(context: InContext, known: Known) -> schemas.LogFiles:
    """The logs of a job's functions."""
    files = log_files(context.service.home.logs(known.name))
    return schemas.LogFiles(
        functions=[schemas.LogFile(function=key, bytes=file.stat().st_size) for key, file in files.items()]
    )


@jobs.get("/{name}/logs/{function}", responses=may_answer(404, 422))
async def log_text(
    context: InContext,
    known: Known,
    function: Annotated[str, InPath(pattern=schemas.NAME, max_length=63)],
    after: Annotated[int, Query(ge=0, le=2**53, description="`next` of the previous answer.")] = 0,
) -> schemas.LogText:
    """The log of one function from byte `after` on."""
    file = log_files(context.service.home.logs(known.name)).get(function)
    if file is None:
        raise NoSuchJobError(
            f"job {known.name} has no function {function!r}; see them all at {API}/jobs/{known.name}/logs"
        )
    text, position = await asyncio.to_thread(read, file, after)
    return schemas.LogText(text=text.decode(errors="replace"), next=position)


# -- steering jobs ---------------------------------------------------------------------------------------------


@jobs.post("", status_code=201, responses=may_answer(409, 413, 422, 503))
async def submit(context: InContext, submission: schemas.Submission, key: Key = None) -> schemas.Submitted:
    """Submit the jobs of job files, all or none. A suspended job is resumed when its file is submitted again."""
    service = context.service

    async def do(request: KeyedRequest) -> schemas.Submitted:
        seq = service.last_seq()
        taken = await service.submit(contents(submission), submission.policy, request)
        return schemas.Submitted(seq=min([seq, *(one.seq - 1 for one in (request.done or {}).values())]), jobs=taken)

    return await context.once(key, submission, do)


def contents(submission: schemas.Submission | schemas.Simulation) -> list[tuple[Path, bytes]]:
    """The files of a request: path and content."""
    return [(Path(file.path), file.text.encode()) for file in submission.files]


@jobs.put("/{name}/note", responses=may_answer(404, 409, 413, 422))
async def write_note(context: InContext, known: Known, note: schemas.Note) -> schemas.Note:
    """Keep what a user writes about a job, in place of what was there."""
    if context.service.read_only:
        raise ReadOnlyError("this page only shows jobs; to write notes: coach serve")
    context.service.home.write_note(known.name, note.text)
    return note


@jobs.post("/{name}/cancel", responses=may_answer(404, 409, 422))
async def cancel(context: InContext, name: Name) -> JobRow:
    """End a job for good, now."""
    return await context.service.cancel(name)


@jobs.post("/{name}/suspend", responses=may_answer(404, 409, 413, 422))
async def suspend(context: InContext, name: Name, suspension: schemas.Suspension) -> JobRow:
    """Stop a job so that it can be resumed. A stopped or ended job is not changed."""
    await context.service.suspend([name], now=suspension.now)
    return context.service.row(name)


@jobs.post("/{name}/resume", responses=may_answer(404, 409, 413, 422, 503))
async def resume(context: InContext, name: Name, resumption: schemas.Resumption, key: Key = None) -> JobRow:
    """Resume a job that was stopped, failed or ran out of money; or give a running one more money."""
    budget = None if resumption.budget is None else to_money(resumption.budget)
    added = to_money(resumption.add_budget)

    async def do(request: KeyedRequest) -> JobRow:
        return await context.service.resume(name, added, budget, request, accept_model=resumption.accept_model)

    return await context.once(key, resumption, do, name)
