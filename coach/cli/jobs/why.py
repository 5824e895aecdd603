"""`coach why`."""

from __future__ import annotations

import time

from coach.cli.display.output import Format, Output, console, printed
from coach.cli.options import JobName


def command(job: JobName, output: Output = Format.TABLE) -> None:
    """Explain why a job waits, or has its workers and servers.

    Shows the last decision step by step, the jobs before it in the queue, what other allocations would bring and
    cost and why each was refused, the predicted end, and the money.

    Example: coach why lenet-digits
    """
    from coach.cli.job_lookup import past_jobs
    from coach.report.why import why

    home, past = past_jobs([job])
    found = past[job]
    others = {name: one.job for name, one in past.items() if one.journal == found.journal}
    lines = why(found.job, others, home.nodes(found), time.time(), orphan=found.orphan)
    if not printed(output, ({"line": line} for line in lines), ("line",), {"lines": lines}):
        screen = console()
        for line in lines:
            screen.print(line, soft_wrap=True)
