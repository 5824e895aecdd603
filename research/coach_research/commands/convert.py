"""`coach convert`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def command(  # noqa: PLR0917 - they are options
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Job files of the thesis (JSON).")],
    folder: Annotated[
        Path | None,
        typer.Option("--dir", "-d", metavar="DIR", help="Write a job file for each; without it, all are printed."),
    ] = None,
    error_files: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the testing errors; without it, `errorFiles` near the file."),
    ] = None,
    models: Annotated[
        str, typer.Option(metavar="PATH", help="Folder of the model files, for the job files to name.")
    ] = "",
    data: Annotated[str, typer.Option(metavar="PATH", help="Folder of the data sets, for the job files to name.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Turn job files of the thesis into Coach's.

    JSON becomes YAML. Their testing errors and static settings come along; what has no counterpart is in comments.

    Example: coach convert jobs/LeNet/*.json --dir jobs/thesis
    """
    from coach.core.errors import PermanentError, UserError
    from coach.jobfiles.diagnostics import JobFileError, Problem
    from coach.report.export import write
    from coach_research.thesis.convert import convert_to_yaml

    target = folder or Path()
    options = {
        "error_files": error_files,
        "models": models or os.path.relpath("functions/models", target),
        "data": data or os.path.relpath(".data", target),
    }
    texts: dict[Path, str] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            text = convert_to_yaml(file, **options)
        except JobFileError as error:
            problems += error.problems
            continue
        name = target / f"{file.stem}.yaml"
        texts[name if name not in texts else target / f"{file.resolve().parent.name}-{file.stem}.yaml"] = text
    if problems:
        raise JobFileError(problems)
    if folder is None:
        typer.echo("---\n".join(texts.values()), nl=False)
        return
    there = [str(path) for path in texts if path.exists()]
    if there and not force:
        raise UserError(f"{', '.join(there)}: there already, nothing was written; --force writes over them")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            typer.echo(write(path, text.encode()))
    except OSError as error:
        raise PermanentError(f"{folder}: cannot write there: {error.strerror or error}") from error
