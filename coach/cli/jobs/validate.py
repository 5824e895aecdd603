"""`coach validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Job files; each may have several jobs.")
    ],
    check_files: Annotated[
        bool,
        typer.Option("--check-files/--no-check-files", help="Also look at the models and data they name."),
    ] = True,
) -> None:
    """Check job files, and start nothing.

    All mistakes at once, each with its place and with what would be right. Models and data are only looked at.

    Example: coach validate jobs/*.yaml
    """
    from coach.cli.display.summary import wanted
    from coach.jobfiles.load import load_jobs

    for job in load_jobs(files, check_files=check_files):
        typer.echo(f"{job.path}: {wanted(job.spec)}")
