"""Lines without colours, for which nothing of a terminal is to be known: what `coach why` prints."""

from __future__ import annotations

import sys

from coach.cli.display.output import Format, fields, printed
from coach.cli.operations import operations


def why(name: str, output: Format = Format.TABLE) -> None:
    """Print the last decision and what was considered. Raises UserError for a name that there is not."""
    with operations() as coach:
        found = coach.why_job(name)
    if not printed(output, ({"line": line} for line in found.lines), ("line",), fields(found)):
        sys.stdout.writelines(f"{line}\n" for line in found.lines)
