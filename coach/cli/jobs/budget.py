"""`coach budget`: budgets over jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, Header, console, printed, table
from coach.cli.options import Output
from coach.core.errors import UserError
from coach.core.money import to_amount
from coach.report import formatting

if TYPE_CHECKING:
    from coach.report.row_types import AccountRow, JobDetails

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Budgets over jobs: what a team may spend in a month.\n\n"
    "A job names its account in its file, `budget: {account: team-a}`. Money is reserved before it is spent, over all "
    "jobs of the account and of those that it is in; a job that it does not cover waits.\n\n"
    "Example: coach budget set team-a 50USD/month",
)
Name = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's name.")]


@app.command("set")
def set_(
    account: Name,
    amount: Annotated[
        str,
        typer.Argument(
            metavar="AMOUNT", help="50USD/month, 50USD/week, 50USD/30d (a rolling window), or 50USD for ever."
        ),
    ],
    within: Annotated[
        str, typer.Option("--in", metavar="ACCOUNT", help="The account that it is in, which pays too.")
    ] = "",
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="Where months and weeks begin at midnight.")] = "UTC",
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="It pays all jobs with this label; several: with all."),
    ] = None,
) -> None:
    """Make an account, or change its terms.

    What was spent and reserved stays. An amount below that reserves nothing more; running epochs end.
    A job is paid by the account that it names and by all whose labels it has: each has to cover it.

    \b
    Examples:
      coach budget set team-a 50USD/month
      coach budget set team-a 50USD/week --in research --timezone Europe/Berlin
      coach budget set gpu-team 500USD/month --label team=vision
    """
    from coach.cli.operations import operations
    from coach.handler import accounts

    wanted = accounts.setting(account, amount, timezone, within, label or ())
    with operations() as coach:
        row = coach.set_account(
            account,
            amount=to_amount(wanted.amount),
            currency=wanted.currency,
            period=wanted.period,
            timezone=timezone,
            parent=within,
            labels=wanted.labels,
        )
    _show([row], Format.TABLE)


@app.command()
def remove(account: Name) -> None:
    """Remove an account that pays no job which has not ended.

    What was spent stays in the journal and in `coach budget report`; set again, the account has it again.

    Example: coach budget remove team-a
    """
    from coach.cli.operations import operations

    with operations() as coach:
        coach.remove_account(account)
    console().print(f"{account} is removed; what it paid: coach budget report {account}")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List all accounts: spent, reserved, left, and what will be spent.

    Example: coach budget list -o json
    """
    from coach.cli.operations import operations

    with operations() as coach:
        rows = coach.accounts().accounts
    if rows or output is not Format.TABLE:
        _show(rows, output)
    else:
        console().print("no account yet; make one with: coach budget set team-a 50USD/month")


@app.command()
def show(account: Name, output: Output = Format.TABLE) -> None:
    """Show one account, those in it, and its jobs.

    Example: coach budget show team-a
    """
    from coach.cli.operations import operations

    with operations() as coach:
        rows = coach.accounts().accounts
        inside = _inside(rows, account)
        paid = [(job, paying) for job in coach.list_jobs().jobs if (paying := inside.intersection(_payers(rows, job)))]
    _show([row for row in rows if row.name in inside], output)
    if output is Format.TABLE and paid:
        made = table(
            {
                "job": [job.name for job, _ in paid],
                "account": [", ".join(sorted(paying)) for _, paying in paid],
                "state": [job.state for job, _ in paid],
                ("spent", "right"): [f"{job.spent:.4f}" for job, _ in paid],
                ("reserved", "right"): [f"{job.reserved:.4f}" for job, _ in paid],
                ("why", "wrap"): [job.message for job, _ in paid],
            }
        )
        console().print(made)


@app.command()
def report(
    account: Annotated[str, typer.Argument(metavar="[ACCOUNT]", help="Only this account and those in it.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Report who spent what, period by period.

    \b
    Examples:
      coach budget report
      coach budget report team-a -o csv
    """
    from coach.cli.operations import operations
    from coach.report.row_types import SpendingRow

    with operations() as coach:
        rows = coach.spending().rows
        inside = _inside(coach.accounts().accounts, account) if account else set()
    rows = [row for row in rows if not account or row.account in inside]
    if not printed(output, rows, SpendingRow):
        columns: dict[Header, list[str]] = {
            "account": [row.account for row in rows],
            "since": [(row.since or "")[:10] for row in rows],
            "job": [row.job for row in rows],
            "state": [row.state for row in rows],
            ("spent", "right"): [f"{row.spent:.4f} {row.currency}" for row in rows],
        }
        made = table(columns, keys=3)
        console().print(made if rows else "no job has spent money of an account yet")


def _inside(rows: Sequence[AccountRow], account: str) -> set[str]:
    """The account and those in it. Raises UserError for one that is not there."""
    found = {row.name for row in rows if row.name == account}
    if not found:
        there = ", ".join(row.name for row in rows) or "none"
        raise UserError(
            f"there is no account {account}; there are: {there}; make it: coach budget set {account} AMOUNT"
        )
    for row in rows:  # each is after the one that it is in
        if row.parent in found:
            found.add(row.name)
    return found


def _payers(rows: Sequence[AccountRow], job: JobDetails) -> list[str]:
    """The accounts that pay a job: the one that it names, and all whose labels it has."""
    labels = {f"{key}={value}" for key, value in job.labels.items()}
    by_label = [row.name for row in rows if row.labels and labels.issuperset(row.labels.split(","))]
    return [job.account, *by_label] if job.account else by_label


def _show(rows: list[Any], output: Format) -> None:
    from coach.report.row_types import AccountRow

    if not printed(output, rows, AccountRow):
        forecasts = [(row.forecast, row.forecast_low, row.forecast_high) for row in rows]
        pers = ["" if row.period == "ever" else f"/{row.period}" for row in rows]
        made = table(
            {
                "ACCOUNT": [row.name for row in rows],
                "IN": [row.parent for row in rows],
                ("BUDGET", "right"): [
                    f"{row.amount:g} {row.currency}{per}" for row, per in zip(rows, pers, strict=True)
                ],
                ("SPENT", "right"): [f"{row.spent:.4f}" for row in rows],
                ("RESERVED", "right"): [f"{row.reserved:.4f}" for row in rows],
                ("LEFT", "right"): [f"{row.left:.4f}" for row in rows],
                ("USED", "right"): [f"{row.spent / row.amount:.0%}" if row.amount else "" for row in rows],
                ("FORECAST", "right"): [formatting.bounded(*each, formatting.amount) for each in forecasts],
                "RUNS OUT": [_written(row, row.runs_out) for row in rows],
                "UNTIL": [_written(row, row.until) for row in rows],
                "JOBS": [f"{row.jobs}{f', {row.waiting} waiting' if row.waiting else ''}" for row in rows],
            }
        )
        console().print(made)


def _written(row: Any, at: str | None) -> str:
    """A time in the zone of the account of `row`; "" for none."""
    from coach.core.periods import Period

    return Period(row.period, row.timezone).written(datetime.fromisoformat(at).timestamp()) if at else ""
