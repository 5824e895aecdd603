"""Job files as commands read them: with `--set` and the user's defaults, and with their warnings on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from coach.handler.known_optimizers import optimizers_here
from coach.jobfiles.changes import Changes, defaults_file
from coach.jobfiles.load import LoadedJob, load_jobs
from coach.jobfiles.optimizers import nothing_known


def load(
    files: Iterable[Path], *, check_files: bool = True, volumes: Sequence[Path] = (), sets: Sequence[str] | None = ()
) -> list[LoadedJob]:
    """The jobs of all files, as `load_jobs` gives them; raises as that does, and UserError for a wrong `--set`.

    `volumes` are a cluster's: then functions run there, and no Python here knows their optimizers.
    """
    knows = nothing_known if volumes else optimizers_here
    changes = Changes.read(sets or (), defaults_file())
    loaded = load_jobs(files, check_files=check_files, volumes=volumes, knows=knows, changes=changes)
    say(loaded, changes)
    return loaded


def say(jobs: Sequence[LoadedJob], changes: Changes) -> None:
    """Print which of the user's defaults they have, and their warnings."""
    if used := dict.fromkeys(name for one in jobs for name in one.defaults):
        typer.echo(f"{', '.join(used)}: from {changes.path}", err=True)
    for one in jobs:
        for warning in one.warnings:
            typer.echo(f"warning: {warning}", err=True)
