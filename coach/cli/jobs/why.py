"""`coach why`."""

from __future__ import annotations

from coach.cli.display.output import Format
from coach.cli.options import JobName, Output


def command(job: JobName, output: Output = Format.TABLE) -> None:
    """Explain why a job waits, or has its workers and servers.

    Shows the last decision step by step, the jobs before it in the queue, what other allocations would bring and
    cost and why each was refused, the predicted end, and the money.

    Example: coach why lenet-digits
    """
    from coach.cli.display import lines

    lines.why(job, output)
