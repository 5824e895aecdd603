"""Job files as commands read them: with their warnings on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from coach.jobfiles.load import LoadedJob, load_jobs


def load(files: Iterable[Path], *, check_files: bool = True, volumes: Sequence[Path] = ()) -> list[LoadedJob]:
    """The jobs of all files, as `load_jobs` gives them; raises as that does."""
    loaded = load_jobs(files, check_files=check_files, volumes=volumes)
    for one in loaded:
        for warning in one.warnings:
            typer.echo(f"warning: {warning}", err=True)
    return loaded
