"""`coach export`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from coach.cli.options import complete_job
from coach.core.errors import PermanentError

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="Names of jobs; without one, all of them.", autocompletion=complete_job),
]
Folder = Annotated[Path, typer.Option("--dir", "-d", metavar="DIR", help="Folder for the files; made where needed.")]

To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TRACKER:PLACE",
        help="Instead of files, runs of mlflow:URI, tensorboard:DIR or wandb:DIR (offline).",
    ),
]
Last = Annotated[bool, typer.Option("--last", help="The jobs of the last run.")]


def command(jobs: Jobs = None, last: Last = False, folder: Folder = Path("coach-export"), to: To = "") -> None:
    """Write jobs as CSV files, or as runs of a tracker.

    The trackers are MLflow, TensorBoard and W&B; their libraries have to be installed next to Coach.

    summary.csv has a row a job, epochs.csv a row an epoch, forecasts.csv what was predicted of a job at 10, 50 and
    90 % of it and what it took, ledger.csv a row an attempt with what it cost.

    \b
    Examples:
      coach export lenet-digits --dir results
      coach export --last --to mlflow:http://localhost:5000
    """
    from coach.cli.job_lookup import find_all
    from coach.report.export import export
    from coach.report.status import job_row

    home, chosen = find_all(jobs or [], last=last)
    now = time.time()
    if to:
        from coach.report import trackers

        tracker, _, place = to.partition(":")
        failed = dict[str, PermanentError]()
        for past in chosen:
            row = job_row(past.job, now, orphan=past.orphan)
            try:
                typer.echo(f"{past.job.name}: {trackers.write(tracker, place, row, past.job)}")
            except PermanentError as error:  # the others are written all the same
                failed[past.job.name] = error
        if failed:
            raise PermanentError("; ".join(f"{name}: {error}" for name, error in failed.items()))
        return
    rows = [(job_row(past.job, now, orphan=past.orphan), past.job, home.records(past)) for past in chosen]
    try:
        written = export(rows, folder)
    except OSError as error:
        raise PermanentError(f"{folder}: cannot write there: {error.strerror or error}") from error
    for path in written:
        typer.echo(path)
