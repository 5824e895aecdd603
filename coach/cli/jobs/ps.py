"""`coach ps`."""

from __future__ import annotations

from typing import Annotated

import typer

from coach.cli.display.output import Format, Header, console, printed, table
from coach.cli.operations import elsewhere
from coach.cli.options import Output
from coach.core.errors import UserError
from coach.report import formatting


def command(
    devices: Annotated[
        bool, typer.Option("--devices", help="List this machine's GPUs instead: whose each is, and how busy.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """List the jobs of all runs and their states.

    \b
    Examples:
      coach ps -o json
      coach ps --devices
    """
    if devices:
        _show_devices(output)
        return
    from coach.cli.display import all_jobs

    all_jobs.ps(output)


def _show_devices(output: Format) -> None:
    from coach.platforms.local.devices.rows import DeviceRow, device_rows

    if elsewhere() is not None:
        raise UserError("--devices: those of this machine; not with --context")
    rows = device_rows()
    if printed(output, rows, DeviceRow):
        return
    screen = console()
    if not rows:
        screen.print("no GPU is found on this machine; why: coach doctor")
        return
    columns: dict[Header, list[str]] = {
        ("GPU", "right"): [str(row.index) for row in rows],
        "MODEL": [row.model for row in rows],
        ("GIB", "right"): [
            f"{row.memory:.0f}" if row.used is None else f"{row.used:.1f} of {row.memory:.0f}" for row in rows
        ],
        ("BUSY", "right"): [formatting.UNKNOWN if row.busy is None else f"{row.busy:.0f} %" for row in rows],
        ("WATT", "right"): [formatting.UNKNOWN if row.watts is None else f"{row.watts:.0f}" for row in rows],
        "WHO": [row.problem or row.who or "free" for row in rows],
        "USER": [f"{row.user} ({row.pid})" if row.pid else "" for row in rows],
        "SINCE": [formatting.local(formatting.iso(row.since)) if row.since else "" for row in rows],
        ("UUID", "wrap"): [row.uuid for row in rows],
    }
    screen.print(table(columns))
