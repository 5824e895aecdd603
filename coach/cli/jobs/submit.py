"""`coach submit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from coach.cli.display.output import Format, console, printed
from coach.cli.options import VOLUMES, Files, Output, Policy, Prices, Set, with_prices
from coach.core.errors import UserError

if TYPE_CHECKING:
    from coach.service.schemas import TakenJob


def command(
    files: Files, set_: Set = None, prices: Prices = "", policy: Policy = "", output: Output = Format.TABLE
) -> None:
    """Give jobs to the running service.

    All of them, or none where a file has mistakes. More than 100 files go in several requests; where a later one fails,
    the jobs of the earlier ones are shown, and the exit code is that of the failure. A job that was suspended
    continues when its file is submitted again. `coach run` does the same, and stays to show them.

    Example: coach submit jobs/*.yaml
    """
    from coach.cli.job_files import load
    from coach.cli.operations import elsewhere
    from coach.cli.program import as_files
    from coach.core.jobs.reasons import State
    from coach.handler.policies import chosen_policy
    from coach.handler.state.state_directory import StateDirectory
    from coach.service.client import PartlySubmittedError, service_of, submit_all

    if (place := elsewhere()) is not None:
        from coach.cli.cluster_jobs import submit

        if policy or output is not Format.TABLE:
            raise UserError("--policy, --output: not with coach --context NAME submit, which applies objects")
        submit(place, load(files, sets=with_prices(set_, prices), volumes=VOLUMES))
        return
    loaded = load(files, sets=with_prices(set_, prices))
    chosen_policy(policy, [one.spec for one in loaded])
    with service_of(StateDirectory.default()) as client, as_files(loaded, files) as sent:
        try:
            taken = submit_all(client, sent, policy).jobs
        except PartlySubmittedError as error:
            _show(error.taken, output)
            raise
    _show(taken, output)
    if any(one.job.state == State.FAILED for one in taken):
        raise typer.Exit(1)


def _show(taken: Sequence[TakenJob], output: Format) -> None:
    from coach.cli.display.tables import jobs_table
    from coach.report.row_types import JobRow

    rows = [one.job for one in taken]
    if not printed(output, rows, JobRow):
        screen = console()
        for one in taken:
            if one.note:
                screen.print(one.note, soft_wrap=True)
        screen.print(jobs_table(rows))
        screen.print()
        screen.print(f"  all jobs    coach ps\n  one job     coach events {rows[0].name} -f", soft_wrap=True)
