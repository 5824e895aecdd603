"""`coach why`."""

from __future__ import annotations

from coach.cli.display.output import Format, Output, console, fields, printed
from coach.cli.options import JobName


def command(job: JobName, output: Output = Format.TABLE) -> None:
    """Explain why a job waits, or has its workers and servers.

    Shows the last decision step by step, the jobs before it in the queue, what other allocations would bring and
    cost and why each was refused, the predicted end, and the money.

    Example: coach why lenet-digits
    """
    from coach.cli.operations import operations

    with operations() as coach:
        found = coach.why_job(job)
    if not printed(output, ({"line": line} for line in found.lines), ("line",), fields(found)):
        screen = console()
        for line in found.lines:
            screen.print(line, soft_wrap=True)
