"""Job files as commands read them: with their warnings on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from coach.handler.known_optimizers import optimizers_here
from coach.jobfiles.load import LoadedJob, load_jobs
from coach.jobfiles.optimizers import nothing_known


def load(files: Iterable[Path], *, check_files: bool = True, volumes: Sequence[Path] = ()) -> list[LoadedJob]:
    """The jobs of all files, as `load_jobs` gives them; raises as that does.

    `volumes` are a cluster's: then functions run there, and no Python here knows their optimizers.
    """
    knows = nothing_known if volumes else optimizers_here
    loaded = load_jobs(files, check_files=check_files, volumes=volumes, knows=knows)
    for one in loaded:
        for warning in one.warnings:
            typer.echo(f"warning: {warning}", err=True)
    return loaded
