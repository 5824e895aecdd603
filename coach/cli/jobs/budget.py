"""`coach budget`: budgets over jobs."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import typer

from coach.cli.display.output import Format, Header, Output, console, printed, table
from coach.core.errors import UserError
from coach.core.money import to_amount
from coach.report import formatting

app = typer.Typer(
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
    from coach.handler import accounts, endpoint
    from coach.handler.state.state_directory import StateDirectory
    from coach.service.client import service_of

    home = StateDirectory.default()
    wanted = accounts.setting(account, amount, timezone, within, label or ())
    if endpoint.find(home):
        with service_of(home) as client:
            client.set_account(
                account,
                amount=to_amount(wanted.amount),
                currency=wanted.currency,
                period=wanted.period,
                timezone=timezone,
                parent=within,
                labels=wanted.labels,
            )
    else:
        accounts.set_account(home, wanted)
    _show([row for row in _rows() if row.name == account], Format.TABLE)


@app.command()
def remove(account: Name) -> None:
    """Remove an account that pays no job which has not ended.

    What was spent stays in the journal and in `coach budget report`; set again, the account has it again.

    Example: coach budget remove team-a
    """
    from coach.handler import accounts, endpoint
    from coach.handler.state.state_directory import StateDirectory
    from coach.service.client import service_of

    home = StateDirectory.default()
    if endpoint.find(home):
        with service_of(home) as client:
            client.remove_account(account)
    else:
        accounts.set_account(home, accounts.removal(accounts.read(home)[0], account))
    console().print(f"{account} is removed; what it paid: coach budget report {account}")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List all accounts: spent, reserved, left, and what will be spent.

    Example: coach budget list -o json
    """
    rows = _rows()
    if rows or output is not Format.TABLE:
        _show(rows, output)
    else:
        console().print("no account yet; make one with: coach budget set team-a 50USD/month")


@app.command()
def show(account: Name, output: Output = Format.TABLE) -> None:
    """Show one account, those in it, and its jobs.

    Example: coach budget show team-a
    """
    from coach.handler import accounts
    from coach.handler.state.state_directory import StateDirectory

    known, jobs = accounts.read(StateDirectory.default())
    _known(known, account)
    inside = {one.name for one in known.inside(known.known[account]) if not one.removed}
    _show([row for row in _rows() if row.name in inside], output)
    if output is not Format.TABLE:
        return
    paid = [(job, paying) for job in jobs.values() if (paying := inside.intersection(known.innermost(job)))]
    if paid:
        made = table(
            {
                "job": [job.name for job, _ in paid],
                "account": [", ".join(sorted(paying)) for _, paying in paid],
                "state": [job.state.value for job, _ in paid],
                ("spent", "right"): [f"{job.ledger.spent / 1e9:.4f}" for job, _ in paid],
                ("reserved", "right"): [f"{job.ledger.reserved / 1e9:.4f}" for job, _ in paid],
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
    from coach.handler import accounts
    from coach.handler.state.state_directory import StateDirectory
    from coach.report.accounting import spending_rows
    from coach.report.row_types import SpendingRow

    home = StateDirectory.default()
    known, jobs = accounts.read(home)
    if account:
        _known(known, account)
        inside = {one.name for one in known.inside(known.known[account])}
    else:
        inside = set(known.known)
    paying = {name: known.innermost(job) for name, job in jobs.items()}
    rows = [row for row in spending_rows(known, jobs, accounts.payments(home, paying)) if row.account in inside]
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


def _rows() -> list[Any]:
    from coach.handler import accounts
    from coach.handler.state.state_directory import StateDirectory
    from coach.report.accounting import account_rows

    known, jobs = accounts.read(StateDirectory.default())
    return account_rows(known, jobs, time.time())


def _known(known: Any, account: str) -> None:
    """Raises UserError for an account that is not there."""
    if account not in known.known:
        raise UserError(known.unknown(account, "USD"))


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
