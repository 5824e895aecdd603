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
        typer.Option(
            "--check-files/--no-check-files", help="Also check that the models and data they name exist."
        ),
    ] = True,
) -> None:
    """Check job files; start nothing.

    Shows all mistakes at once, each with its line and a correction. Models and data are looked at, not loaded.

    Example: coach validate jobs/*.yaml
    """
    from coach.cli.display.summary import wanted
    from coach.cli.job_files import load

    for job in load(files, check_files=check_files):
        typer.echo(f"{job.path}: {wanted(job.spec)}")
