"""`coach plot`."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coach.cli.results.export import Folder, Jobs, Last
from coach.core.errors import PermanentError, UserError


class Kind(StrEnum):
    """The formats of figures."""

    PNG = "png"
    SVG = "svg"
    BOTH = "both"


def command(
    jobs: Jobs = None,
    last: Last = False,
    folder: Folder = Path("coach-plots"),
    kind: Annotated[Kind, typer.Option("--format", "-f", help="Format of the figures.")] = Kind.BOTH,
) -> None:
    """Draw figures of jobs.

    Learning curve, allocation, money and fitted speed, each alone, and all on one page; what was predicted
    of the whole job; several jobs also together, eight in a figure (jobs, jobs.2, ...). Jobs without a
    finished epoch are left out.

    Example: coach plot lenet-digits --dir results
    """
    from coach.cli.job_lookup import find_all
    from coach.report.figures.job import Story, plot
    from coach.report.figures.jobs import plot_together
    from coach.report.figures.style import FORMATS

    home, chosen = find_all(jobs or [], last=last)
    drawable = [past for past in chosen if past.job.epochs]
    for past in chosen:
        if not past.job.epochs:
            typer.echo(f"{past.job.name}: no epoch has ended, there is nothing to draw", err=True)
    if not drawable:
        raise UserError("nothing was drawn; see what the jobs do with: coach ps")
    now = time.time()
    stories = [Story.of(past.job, home.records(past), now) for past in drawable]
    try:
        formats = FORMATS if kind is Kind.BOTH else (kind.value,)
        written = plot(stories, folder, formats) + plot_together(stories, folder, formats)
    except OSError as error:
        raise PermanentError(f"{folder}: cannot write there: {error.strerror or error}") from error
    for path in written:
        typer.echo(path)
