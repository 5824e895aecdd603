"""`coach doctor`."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from coach.cli.display.output import Format, console, printed
from coach.cli.options import Output
from coach.core.optional_feature import OptionalFeature


def command(
    also: Annotated[
        list[OptionalFeature] | None,
        typer.Option(help="Also check these; may be repeated."),
    ] = None,
    journal: Annotated[
        bool, typer.Option("--journal", help="Check every record of the journals instead, and add their ledgers up.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="With --journal: put what is whole in the place of a damaged journal.")
    ] = False,
    clock_is_right: Annotated[
        bool,
        typer.Option(
            "--clock-is-right",
            help="Let budgets over jobs begin their next period, though no handler was here for more than a day.",
        ),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Check whether this machine can run jobs.

    The state folder, its journals, the functions' Python with MXNet, disk, memory, ports, and the service; with a
    next step for each problem. The exit code is 5 where something would keep jobs from running.

    --journal --repair needs a journal that no handler has. Jobs whose records are whole are as before; one that has
    lost a record is as it was before that, suspended; the damaged journal is kept next to the new one.

    \b
    Examples:
      coach doctor
      coach doctor --also kubernetes --also go
      coach doctor --also slurm
      coach doctor --journal
      coach doctor --journal --repair
      coach doctor --clock-is-right
    """
    from coach.cli.operations import operations
    from coach.core.errors import UserError
    from coach.handler.state.state_directory import StateDirectory
    from coach.service.journal_checks import clock_checks, journal_checks, repair_checks
    from coach.service.schemas import Check, Status

    if repair and not journal:
        raise UserError("--repair is of journals: coach doctor --journal --repair")
    if clock_is_right and journal:
        raise UserError("--clock-is-right and --journal are two questions; ask them one after the other")
    if also and (journal or clock_is_right):
        raise UserError("--also looks at the machine; ask it without --journal and --clock-is-right")
    of_journals = clock_checks if clock_is_right else repair_checks if repair else journal_checks
    screen = console()
    with screen.status("looking") if output is Format.TABLE else contextlib.nullcontext(), operations() as coach:
        asked = journal or clock_is_right
        home = StateDirectory.default()
        found = list(of_journals(home)) if asked else coach.checks(also or ())
        if not found:
            found = [Check("journal", Status.OK, f"none in {home.path}: no job was run there")]
        for check in found:
            if output is Format.TABLE:
                style = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "red"}[check.status]
                screen.print(f"{check.status.value:<9}", style=style, end="")
                screen.print(f"{check.name:<17} {check.found}", soft_wrap=True)
                if check.next_step:
                    screen.print(f"{'':<27}{check.next_step}", soft_wrap=True, style="bold")
    printed(output, found, ("name", "status", "found", "next_step"))
    if any(check.status is Status.FAILED for check in found):
        raise typer.Exit(5)
