"""The routes of what is shown in addition to jobs: why, figures, the cluster, plans, consequences, and the stream."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import StreamingResponse

from coach.core.cluster import Node, Resources
from coach.core.errors import UserError
from coach.core.jobs.job import Job
from coach.core.optional_feature import OptionalFeature
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Framework
from coach.handler.endpoint import API
from coach.handler.resume_rules import NotNowError
from coach.handler.state.checkpoints import Surplus
from coach.jobfiles.diagnostics import JobFileError
from coach.report.comparison import Comparison
from coach.report.row_types import EpochRow, ForecastRow, LedgerRow, Why, as_csv
from coach.report.status import epoch_rows, forecast_rows
from coach.service import schemas
from coach.service.errors import may_answer, shown_problems
from coach.service.views.consequences import Of, consequences
from coach.service.views.figures import figures
from coach.service.views.job_routes import InContext, Known, Names, contents
from coach.service.views.models import checkpoint
from coach.service.views.simulations import simulate
from coach.service.views.stream import Feed, LogTail

STREAM = f"{API}/stream"
#: Matplotlib draws one figure at a time.
_DRAWING = threading.Lock()

views = APIRouter(prefix=API)
Chosen = Annotated[str, Query(max_length=20, description="The epoch: best, last, or a number.")]


class Picture(StrEnum):
    """The figures that are drawn."""

    PAGE = "page"
    CURVE = "curve"
    ALLOCATION = "allocation"
    MONEY = "money"
    SPEED = "speed"
    PREDICTION = "prediction"


class Table(StrEnum):
    """The tables of a job that are files."""

    EPOCHS = "epochs"
    FORECASTS = "forecasts"
    LEDGER = "ledger"


class Format(StrEnum):
    """The formats of figures."""

    PNG = "png"
    SVG = "svg"


def _a_file(description: str, *types: str) -> dict[int | str, dict[str, Any]]:
    """An answer that is no JSON, for the document."""
    binary = {"image/png", "application/octet-stream"}
    text = {"type": "string"}
    content = {one: {"schema": text | ({"format": "binary"} if one in binary else {})} for one in types}
    return {200: {"description": description, "content": content}}


# -- the whole service -----------------------------------------------------------------------------------------


@views.get("/cluster", tags=["service"], responses=may_answer())
async def cluster(
    context: InContext,
    limit: Annotated[int, Query(ge=1, le=1000, description="Rows of the queue in one answer, at most.")] = 100,
    cursor: Annotated[str, Query(pattern=r"^([1-9]\d{0,8})?$", description="`next` of the previous answer.")] = "",
) -> schemas.Cluster:
    """The service's nodes with what is used of them, the queue, and the policy."""
    return await context.cluster(limit=limit, cursor=cursor)


@views.get(
    "/stream",
    tags=["service"],
    response_class=StreamingResponse,
    responses=_a_file(
        "Server-sent events: `jobs` (the rows that changed), `progress` (the trained share of running epochs, by job), "
        "`log` (new lines of the log that was asked for), `reset` (the id is of another journal: ask for everything "
        "again).",
        "text/event-stream",
    )
    | may_answer(404),
)
async def stream(  # noqa: PLR0917 - they are queries
    request: Request,
    context: InContext,
    after: Annotated[str, Query(max_length=40, description="The id after which to go on; `stream` of a list.")] = "",
    job: Annotated[str, Query(max_length=40, description="Only of this job.")] = "",
    log: Annotated[
        str,
        Query(
            pattern=f"^({schemas.NAME[1:-1]}/{schemas.NAME[1:-1]})?$",
            max_length=104,
            description="JOB/FUNCTION: also new lines of this log.",
        ),
    ] = "",
    log_after: Annotated[int, Query(ge=0, le=2**53, description="Of that log only what is later than this byte.")] = 0,
    last: Annotated[str | None, Header(alias="Last-Event-ID", max_length=40)] = None,
) -> StreamingResponse:
    """Changes of jobs as they happen, at most four times a second. It goes on after an id, also in another process."""
    if job:
        context.service.job(job)
    tail = None
    if log:
        owner, function = log.split("/")
        tail = LogTail(owner, function, context.service.home.logs(context.service.job(owner).name), log_after)
    feed: Feed = request.app.state.feed
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(feed.events(last or after, job, tail), media_type="text/event-stream", headers=headers)


@views.get("/checks", tags=["service"], responses=may_answer())
async def checks(context: InContext, also: Annotated[list[OptionalFeature], Query()] = []) -> list[schemas.Check]:  # noqa: B006
    """Whether the service's machine can run jobs, as `coach doctor` shows it."""
    return await context.checks(also)


@views.post("/prune", tags=["jobs"], responses=may_answer(404, 409, 413, 422))
async def prune(context: InContext, asked: schemas.Pruning) -> list[Surplus]:
    """Delete checkpoints of ended jobs, as `coach prune` does: what was deleted, or would be."""
    return await context.prune(asked.jobs, everything=asked.everything, dry_run=asked.dry_run)


@views.post("/validate", tags=["jobs"], responses=may_answer(413, 422))
async def validate(context: InContext, submission: schemas.Submission) -> schemas.Checked:
    """Check job files as a submission would, and start nothing. Mistakes are in the answer, whose status is 200."""
    try:
        names, warnings = await context.service.validate(contents(submission))
    except JobFileError as error:
        return schemas.Checked(valid=False, jobs=[], problems=shown_problems(error), warnings=[])
    return schemas.Checked(valid=True, jobs=names, problems=[], warnings=warnings)


@views.post("/plan", tags=["jobs"], responses=may_answer(413, 422))
async def plan(context: InContext, submission: schemas.Submission) -> schemas.Plans:
    """Predict the time and cost of the jobs of job files, as `coach plan` does; start nothing."""
    return schemas.Plans(plans=await context.service.plan(contents(submission), submission.policy))


@views.get("/comparison", tags=["jobs"], responses=may_answer(404, 422))
async def compare_jobs(context: InContext, job: Names) -> Comparison:
    """Jobs side by side, as `coach compare` has them: best values by money and time, and what their files differ in."""
    return await context.compare_jobs(job)


@views.post("/simulations", tags=["jobs"], responses=may_answer(404, 409, 413, 422, 503))
async def simulate_jobs(context: InContext, asked: schemas.Simulation) -> schemas.Simulated:
    """Simulate jobs under other policies or on other nodes, as `coach simulate` does, within limits."""
    service = context.service
    specs = [service.job(name).job_file for name in asked.jobs] + await service.specs(contents(asked))
    if not 1 <= len(specs) <= schemas.MAX_SIMULATED:
        raise UserError(f"{len(specs)} jobs: must be 1 to {schemas.MAX_SIMULATED}, of the service (jobs) or of files")
    if asked.budget is not None:
        specs = [_with_budget(spec, asked.budget) for spec in specs]
    nodes = service.nodes
    if asked.nodes is not None:
        one = Resources(asked.nodes.cpu, asked.nodes.memory, asked.nodes.gpu)
        nodes = tuple(Node(f"node-{number}", one) for number in range(asked.nodes.count))
    return await simulate(service.home, specs, nodes, asked.policies, timeline=asked.timeline)


def _with_budget(job: TrainingJob, amount: float) -> TrainingJob:
    document = job.to_json()
    currency = job.spec.price_book.currency
    document["spec"]["budget"] = {"amount": amount, "currency": currency}
    return TrainingJob.from_json(document)


# -- one job ---------------------------------------------------------------------------------------------------


@views.get("/jobs/{name}/why", tags=["jobs"], responses=may_answer(404, 422))
async def why_job(context: InContext, known: Known) -> Why:
    """Why a job waits, or why it has its allocation: the decisions with their numbers, as lines and as data."""
    return await context.why_job(known.name)


@views.get("/jobs/{name}/consequences", tags=["jobs"], responses=may_answer(404, 422))
async def job_consequences(
    context: InContext, known: Known, of: Annotated[Of, Query(description="The request.")]
) -> schemas.Consequences:
    """What a request about a job would do: what is lost, what comes back, what stays."""
    return consequences(known, of, context.service.handler.now())


@views.get("/jobs/{name}/figures", tags=["jobs"], responses=may_answer(404, 422))
async def job_figures(context: InContext, known: Known) -> schemas.Figures:
    """What a job's figures show that its rows have not: the fitted curve, and its money over time."""
    service = context.service
    past, seq = service.past(known.name), service.changed_at.get(known.name, 0)
    records = await asyncio.to_thread(service.home.records, past)
    return await asyncio.to_thread(figures, known, records, seq, service.handler.now())


@views.get(
    "/jobs/{name}/figures/{picture}.{kind}",
    tags=["jobs"],
    response_class=Response,
    responses=_a_file("The figure.", "image/png", "image/svg+xml") | may_answer(404, 409),
)
async def job_picture(context: InContext, known: Known, picture: Picture, kind: Format) -> Response:
    """One figure of a job, as `coach plot` draws it; `page` has the first four."""
    service = context.service
    if not known.epochs:
        raise NotNowError(f"{known.name}: no epoch has ended, there is nothing to draw")
    records = await asyncio.to_thread(service.home.records, service.past(known.name))
    drawn = await asyncio.to_thread(_drawn, records, known, service.handler.now(), picture, kind)
    media = "image/png" if kind is Format.PNG else "image/svg+xml"
    name = known.name if picture is Picture.PAGE else f"{known.name}-{picture.value}"
    return Response(drawn, media_type=media, headers=_named(f"{name}.{kind.value}"))


def _drawn(records: Sequence[Any], job: Job, now: float, picture: Picture, kind: Format) -> bytes:
    from coach.report.figures.job import Story, one_figure

    with _DRAWING:
        return one_figure(Story.of(job, records, now), "" if picture is Picture.PAGE else picture.value, kind.value)


@views.get(
    "/jobs/{name}/model",
    tags=["jobs"],
    response_class=StreamingResponse,
    responses=_a_file("The checkpoint of an epoch.", "application/octet-stream") | may_answer(404, 409),
)
async def job_model(known: Known, epoch: Chosen = "best") -> StreamingResponse:
    """An epoch's weights: of a PyTorch job what `coach model` writes, of an MXNet job its arrays as .npz."""
    file = checkpoint(known, epoch)
    ending = "pt" if known.spec.framework is Framework.PYTORCH else "npz"
    headers = {
        "Content-Disposition": f'attachment; filename="{known.name}.{ending}"',
        "Content-Length": str(os.fstat(file.fileno()).st_size),
    }
    return StreamingResponse(_parts(file), media_type="application/octet-stream", headers=headers)


@views.get("/jobs/{name}/model-card", tags=["jobs"], responses=may_answer(404, 409, 422))
async def model_card(context: InContext, known: Known, epoch: Chosen = "best") -> dict[str, Any]:
    """What that model was trained on, how, to what, and for how much."""
    return await context.model_card(known.name, epoch)


def _parts(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while part := file.read(1 << 20):
            yield part


@views.get(
    "/jobs/{name}/{table}.csv",
    tags=["jobs"],
    response_class=Response,
    responses=_a_file("The table.", "text/csv") | may_answer(404),
)
async def job_table(context: InContext, known: Known, table: Annotated[Table, InPath()]) -> Response:
    """The epochs, the forecasts or the ledger of a job as CSV, with the columns of `coach export`."""
    books = await asyncio.to_thread(context.stories.books, context.service.past(known.name))
    tables: dict[Table, tuple[type[Any], Sequence[Any]]] = {
        Table.EPOCHS: (EpochRow, epoch_rows(known, books.pauses)),
        Table.FORECASTS: (ForecastRow, forecast_rows(known)),
        Table.LEDGER: (LedgerRow, books.ledger),
    }
    headers = _named(f"{known.name}-{table.value}.csv")
    return Response(as_csv(*tables[table]), media_type="text/csv", headers=headers)


def _named(file: str) -> dict[str, str]:
    # What a browser opens instead of saving it may run nothing: an SVG is a document.
    return {
        "Content-Disposition": f'inline; filename="{file}"',
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
