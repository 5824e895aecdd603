"""The HTTP API over a service: FastAPI checks what comes in and documents it; the work is `coach.service.service`'s."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Response, Security
from fastapi import Path as InPath
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from pydantic import TypeAdapter

from coach.core.money import to_money
from coach.report.formatting import iso
from coach.report.status import JobRow, epoch_rows
from coach.report.why import why
from coach.service import schemas
from coach.service.errors import answer_errors, may_answer
from coach.service.function_logs import log_files, read
from coach.service.job_history import Stories
from coach.service.metrics import Metrics
from coach.service.middleware import Guard, remember_route
from coach.service.service import NoSuchJobError, Service

Name = Annotated[str, InPath(pattern=schemas.NAME, max_length=40, description="The job's name.")]
After = Annotated[int, Query(ge=0, le=2**53, description="Only what came later than this `seq`.")]
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=schemas.LONGEST_WAIT,
        allow_inf_nan=False,
        description="Seconds to wait for something to happen after `after`, before an answer without it.",
    ),
]
Names = Annotated[
    list[Annotated[str, Query(pattern=schemas.NAME, max_length=40)]],
    Query(alias="job", max_length=1000, description="Names of jobs; may be repeated."),
]

_LIST: TypeAdapter[schemas.JobList] = TypeAdapter(schemas.JobList)


def make_app(service: Service, token: str, *, longest_wait: float = schemas.LONGEST_WAIT) -> FastAPI:  # noqa: PLR0915
    """The API of a service; `token` is what callers must show, `longest_wait` bounds their waiting (seconds)."""
    metrics = Metrics(service)
    app = FastAPI(
        title="Coach",
        version=metadata.version("coach-trainer"),
        description="Train to a target within a budget. Everything but /health and /openapi.json wants the token.",
        docs_url=None,
        redoc_url=None,
        dependencies=[
            Security(HTTPBearer(auto_error=False, description="The token of the service.")),
            Depends(remember_route),
        ],
    )
    app.add_middleware(Guard, token=token, note=metrics.answered)
    reader = service.reader
    stories = Stories(service.home)

    async def wait_for_news(after: int, seconds: float, names: Sequence[str] | None = None) -> None:
        """Until a record later than `after` is there, of these jobs or of any."""

        def news() -> bool:
            if names is None:
                return reader.last_seq() > after
            return next(reader.rows(names, after, 1), None) is not None

        if seconds > 0 and not news():
            await service.changed(min(seconds, longest_wait), news)

    @app.get("/health", tags=["service"])
    async def health() -> schemas.Health:
        """Say that the service lives."""
        return schemas.Health(status="stopping" if service.stopping else "ok", version=app.version)

    @app.get("/cluster", tags=["service"], responses=may_answer())
    async def cluster() -> schemas.Cluster:
        """What the service runs jobs on, and how it shares it out."""
        nodes = [
            schemas.NodeRow(name=n.name, cpu=n.capacity.cpu, memory=n.capacity.memory) for n in service.nodes
        ]
        return schemas.Cluster(
            version=app.version,
            policy=service.policy.name,
            nodes=nodes,
            folders=[str(folder) for folder in service.folders],
            home=str(service.home.path),
            stopping=service.stopping,
        )

    @app.get("/metrics", tags=["service"], responses=may_answer(), response_class=PlainTextResponse)
    async def metrics_page() -> Response:
        """Numbers for Prometheus."""
        return Response(metrics.page(), media_type=metrics.content_type)

    @app.get("/jobs", tags=["jobs"], response_model=schemas.JobList, responses=may_answer(422))
    async def jobs(after: After = 0, wait: Wait = 0.0) -> Response:
        """How all jobs stand, in the order of their submission."""
        await wait_for_news(after, wait)
        # A thousand rows through the response model would take a while to check what we made ourselves.
        found = schemas.JobList.model_construct(seq=reader.last_seq(), jobs=service.rows())
        return Response(_LIST.dump_json(found), media_type="application/json")

    @app.post("/jobs", tags=["jobs"], status_code=201, responses=may_answer(413, 422, 503))
    async def submit(submission: schemas.Submission) -> schemas.Submitted:
        """Take on the jobs of job files, all or none. A job that was interrupted goes on when its file comes again."""
        seq = reader.last_seq()
        files = [(Path(file.path), file.text.encode()) for file in submission.files]
        taken = await service.submit(files, submission.policy)
        rows = [schemas.TakenJob(job=one.row, went_on=one.went_on, note=one.note) for one in taken]
        return schemas.Submitted(seq=seq, jobs=rows)

    @app.get("/jobs/{name}", tags=["jobs"], responses=may_answer(404, 422))
    async def job(name: Name, after: After = 0, wait: Wait = 0.0) -> schemas.JobDetail:
        """One job with its epochs and its ledger."""
        service.job(name)
        await wait_for_news(after, wait, [name])
        books = await asyncio.to_thread(stories.books, service.past(name))
        found = service.job(name)
        return schemas.JobDetail(
            seq=books.seq,
            job=service.row(name),
            why=list(found.reasons),
            epochs=epoch_rows(found, books.pauses),
            ledger=books.ledger,
            spec=found.job_file.to_json(),
        )

    @app.get("/jobs/{name}/events", tags=["jobs"], responses=may_answer(404, 422))
    async def events(name: Name, after: After = 0, wait: Wait = 0.0) -> schemas.Events:
        """What happened to a job, in words. At most 1,000 lines; ask again with `after` = `seq` for the next."""
        service.job(name)
        await wait_for_news(after, wait, [name])
        told = await asyncio.to_thread(stories.told, service.past(name), after)
        lines = [
            schemas.EventLine(seq=seq, at=iso(line.at), text=line.text, important=line.important)
            for seq, line in told.lines
        ]
        return schemas.Events(seq=told.seq, ended=service.job(name).ended, events=lines)

    @app.get("/jobs/{name}/why", tags=["jobs"], responses=may_answer(404, 422))
    async def why_job(name: Name) -> schemas.Why:
        """Why a job waits, or has what it has: the decisions with their numbers."""
        found = service.job(name)
        return schemas.Why(lines=why(found, service.jobs, service.nodes, service.handler.now()))

    @app.get("/jobs/{name}/logs", tags=["jobs"], responses=may_answer(404, 422))
    async def logs(name: Name) -> schemas.LogFiles:
        """The logs of a job's functions."""
        service.job(name)
        files = log_files(service.home.logs(name))
        return schemas.LogFiles(
            functions=[
                schemas.LogFile(function=key, bytes=file.stat().st_size) for key, file in files.items()
            ]
        )

    @app.get("/jobs/{name}/logs/{function}", tags=["jobs"], responses=may_answer(404, 422))
    async def log_text(
        name: Name,
        function: Annotated[str, InPath(pattern=schemas.NAME, max_length=63)],
        after: Annotated[int, Query(ge=0, le=2**53, description="`next` of the answer before.")] = 0,
    ) -> schemas.LogText:
        """The log of one function from byte `after` on."""
        service.job(name)
        file = log_files(service.home.logs(name)).get(function)
        if file is None:
            raise NoSuchJobError(
                f"job {name} has no function {function!r}; see them all at /jobs/{name}/logs"
            )
        text, position = await asyncio.to_thread(read, file, after)
        return schemas.LogText(text=text.decode(errors="replace"), next=position)

    @app.post("/jobs/{name}/cancel", tags=["jobs"], responses=may_answer(404, 409, 422))
    async def cancel(name: Name) -> JobRow:
        """End a job for good, now."""
        return await service.cancel(name)

    @app.post("/jobs/{name}/interrupt", tags=["jobs"], responses=may_answer(404, 413, 422))
    async def suspend(name: Name, suspension: schemas.Suspension) -> JobRow:
        """Stop a job so that it can be resumed. One that has stopped, or ended, stays as it is."""
        await service.suspend([name], now=suspension.now)
        return service.row(name)

    @app.post("/jobs/{name}/resume", tags=["jobs"], responses=may_answer(404, 409, 413, 422, 503))
    async def resume(name: Name, resumption: schemas.Resumption) -> JobRow:
        """Go on with a job that was stopped, failed or ran out of money; or give a running one more of it."""
        return await service.resume(name, to_money(resumption.add_budget))

    @app.get("/records", tags=["journal"], responses=may_answer(404, 422))
    async def records(job: Names, after: After = 0, wait: Wait = 0.0) -> schemas.Records:
        """What the journal says of some jobs, for those who want to know everything. At most 1,000 records."""
        for name in job:
            service.job(name)
        await wait_for_news(after, wait, job)
        rows = list(reader.rows(job, after, 1000))
        progress = {name: service.handler.progress[name] for name in job if name in service.handler.progress}
        return schemas.Records.model_validate(
            {
                "seq": rows[-1][0] if rows else after,
                "now": service.handler.now(),
                "records": [{"seq": seq, "type": kind, "body": _json(body)} for seq, kind, body in rows],
                "progress": {
                    name: {"token": p.token, "state": p.state, "samples": p.samples, "total": p.total}
                    for name, p in progress.items()
                },
            }
        )

    answer_errors(app)
    _correct(app.openapi()["paths"])
    return app


def _correct(paths: dict[str, Any]) -> None:
    """Put right in the document what FastAPI takes from the application, or from the page's own type."""
    paths["/health"]["get"].pop("security")  # it is open to everybody
    unknown = paths["/metrics"]["get"]["responses"]["401"]["content"]
    unknown["application/json"] = unknown.pop("text/plain")  # errors are JSON everywhere


def _json(text: str) -> Any:
    import json

    return json.loads(text)
