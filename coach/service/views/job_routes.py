"""The routes of the API: of the process, of the service, and of jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, TypeVar
from weakref import WeakValueDictionary

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, TypeAdapter

from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.money import to_money
from coach.handler.accounts import terms as account_terms
from coach.handler.endpoint import API
from coach.report.row_types import AccountRow, JobDetail, JobList, JobRow
from coach.service import schemas
from coach.service.errors import may_answer
from coach.service.metrics import Metrics
from coach.service.operations import ReadOnlyError
from coach.service.requests import KeyedRequest, find
from coach.service.views.answers import Answers

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

_LIST: TypeAdapter[JobList] = TypeAdapter(JobList)
_VERSION = metadata.version("coach-trainer")


@dataclass(frozen=True, slots=True)
class Context(Answers):
    """The objects that the routes of one application use."""

    metrics: Metrics
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
    return await context.records(job, after, wait)


@service_wide.get("/accounts", tags=["accounts"], responses=may_answer())
async def accounts(context: InContext) -> schemas.Accounts:
    """The budgets over jobs: what each has spent, reserved and left in its present period."""
    return await context.accounts()


@service_wide.put("/accounts/{name}", tags=["accounts"], responses=may_answer(409, 413, 422, 503))
async def set_account(context: InContext, name: Name, setting: schemas.AccountTerms) -> AccountRow:
    """Make a budget over jobs, or change its terms; what was spent and reserved stays."""
    return await context.service.set_account(account_terms(name, **setting.model_dump()))


@service_wide.delete("/accounts/{name}", tags=["accounts"], responses=may_answer(404, 409, 422, 503))
async def remove_account(context: InContext, name: Name) -> schemas.Accounts:
    """Remove a budget over jobs that pays no job which has not ended; the others. The journal keeps what was spent."""
    await context.service.remove_account(name)
    return schemas.Accounts(accounts=context.service.accounts())


@service_wide.get("/spending", tags=["accounts"], responses=may_answer())
async def spending(context: InContext) -> schemas.Spending:
    """Who spent what: a row for each account, period and job."""
    return await context.spending()


# -- looking at jobs -------------------------------------------------------------------------------------------


@jobs.get("", response_model=JobList, responses=may_answer(422))
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
    found = await context.list_jobs(state=state, q=q, limit=limit, cursor=cursor, after=after, wait=wait)
    return Response(_LIST.dump_json(found), media_type="application/json")


@jobs.get("/{name}", responses=may_answer(404, 422))
async def job(context: InContext, known: Known, after: After = 0, wait: Wait = 0.0) -> JobDetail:
    """One job with its epochs and its ledger."""
    return await context.job(known.name, after=after, wait=wait)


@jobs.get("/{name}/events", responses=may_answer(404, 422))
async def events(context: InContext, known: Known, after: After = 0, wait: Wait = 0.0) -> schemas.Events:
    """What happened to a job, in words. At most 1,000 lines; ask again with `after` = `seq` for the next."""
    return await context.events(known.name, after=after, wait=wait)


@jobs.get("/{name}/logs", responses=may_answer(404, 422))
async def logs(context: InContext, known: Known) -> schemas.LogFiles:
    """The logs of a job's functions."""
    return await context.logs(known.name)


@jobs.get("/{name}/logs/{function}", responses=may_answer(404, 422))
async def log_text(
    context: InContext,
    known: Known,
    function: Annotated[str, InPath(pattern=schemas.NAME, max_length=63)],
    after: Annotated[int, Query(ge=0, le=2**53, description="`next` of the previous answer.")] = 0,
    before: Annotated[bool, Query(description="Of what was written before it, as far as it is kept.")] = False,
) -> schemas.LogText:
    """The log of one function from byte `after` on."""
    return await context.log_text(known.name, function, after=after, before=before)


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
    await context.service.suspend(name, now=suspension.now)
    return context.service.row(name)


@jobs.post("/{name}/resume", responses=may_answer(404, 409, 413, 422, 503))
async def resume(context: InContext, name: Name, resumption: schemas.Resumption, key: Key = None) -> JobRow:
    """Resume a job that was stopped, failed or ran out of money; or give a running one more money."""
    budget = None if resumption.budget is None else to_money(resumption.budget)
    added = to_money(resumption.add_budget)

    async def do(request: KeyedRequest) -> JobRow:
        return await context.service.resume(name, added, budget, request, accept_model=resumption.accept_model)

    return await context.once(key, resumption, do, name)
