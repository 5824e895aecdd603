"""The routes of searches."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter

from coach.handler.endpoint import API
from coach.service import schemas
from coach.service.errors import may_answer
from coach.service.operations import ReadOnlyError
from coach.service.views.job_routes import After, Context, InContext, Name, Wait

searches = APIRouter(prefix=f"{API}/searches", tags=["searches"])


@searches.get("", responses=may_answer())
async def list_searches(context: InContext) -> schemas.SearchList:
    """All searches: the best of each, its money, and why it ended."""
    return await context.list_searches()


@searches.get("/{name}", responses=may_answer(404, 422))
async def search(context: InContext, name: Name, after: After = 0, wait: Wait = 0.0) -> schemas.SearchDetail:
    """One search with its trials; with `wait` once there is a record later than `after`."""
    return await context.search(name, after=after, wait=wait)


@searches.post("", status_code=201, responses=may_answer(409, 413, 422, 503))
async def start_search(context: InContext, start: schemas.SearchStart) -> schemas.SearchDetail:
    """Begin the search of a file, or go on with it; sent again while it runs, it changes nothing."""
    _refuse(context)
    found = await context.service.searches.start(Path(start.file.path), start.file.text.encode())
    return await context.search(found.definition.name)


@searches.post("/{name}/resume", responses=may_answer(404, 409, 413, 422, 503))
async def resume_search(context: InContext, name: Name, more: schemas.SearchResumption) -> schemas.SearchDetail:
    """Go on with a search, with a larger budget or another deadline."""
    _refuse(context)
    await context.service.searches.resume(name, more.budget, more.deadline or 0.0)
    return await context.search(name)


@searches.post("/{name}/stop", responses=may_answer(404, 409, 413, 422))
async def stop_search(context: InContext, name: Name, suspension: schemas.Suspension) -> schemas.SearchDetail:
    """Give no job of a search another epoch. It can be resumed."""
    _refuse(context)
    context.service.searches.stop(name, now=suspension.now)
    return await context.search(name)


def _refuse(context: Context) -> None:
    if context.service.read_only:
        raise ReadOnlyError("this page only shows jobs; to search: coach search FILE")
