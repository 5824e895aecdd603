"""`coach prune`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from coach.cli.display.output import Format, console, fields, printed, table
from coach.cli.options import Output, complete_job
from coach.core.errors import UserError


def command(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB", help="Names of jobs; without one, all that have ended.", autocompletion=complete_job
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Their best and last checkpoints too: only their records stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, delete nothing.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Delete old checkpoints of ended jobs.

    All but the best epoch's and the last one. Shows first what it would delete and how much that frees, and asks.
    While a job runs its old checkpoints go by themselves; the best, the last two and those that
    spec.checkpoint.keepEvery names stay.

    \b
    Examples:
      coach prune --dry-run
      coach prune lenet-digits --all --yes
    """
    from coach.cli.operations import operations

    with operations() as coach:
        found = coach.prune(jobs or [], everything=everything, dry_run=True)
        rows = [{"job": each.job, "file": file} for each in found for file in each.files]
        if not printed(output, rows, ("job", "file"), list(map(fields, found))):
            made = table(
                {
                    "NAME": [each.job for each in found],
                    ("DELETES", "right"): [str(len(each.files)) for each in found],
                    ("FREES", "right"): [size(each.bytes) for each in found],
                    ("KEEPS EPOCH", "right"): [", ".join(map(str, each.keeps)) or "-" for each in found],
                }
            )
            console().print(made)
        many, total = sum(len(each.files) for each in found), size(sum(each.bytes for each in found))
        typer.echo(f"{many} checkpoint{'' if many == 1 else 's'} to delete, {total} to free", err=True)
        if dry_run or not many:
            return
        if not yes:
            if not sys.stdin.isatty():
                raise UserError("nothing was deleted: --yes deletes without asking")
            typer.confirm("Delete them?", abort=True, err=True)
        coach.prune([each.job for each in found], everything=everything)
    typer.echo(f"deleted; {total} are free", err=True)


def size(many: float) -> str:
    """Bytes as a person reads them, such as 3.2 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if many < 1024:
            return f"{many:.0f} {unit}" if unit == "B" else f"{many:.1f} {unit}"
        many /= 1024
    return f"{many:.1f} GiB"
