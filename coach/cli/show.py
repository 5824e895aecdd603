"""`coach show`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.output import Format, Output, console, fields, print_csv, print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from coach.core.jobs.job import Job
    from coach.handler.home import Home
    from coach.report.models import SpeedRow
    from coach.report.replay import LedgerRow
    from coach.report.status import EpochRow, JobRow


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `coach ps` shows it.")],
    output: Output = Format.TABLE,
    events: Annotated[bool, typer.Option("--events", help="Also list its events.")] = False,
) -> None:
    """Show one job: its decisions, epochs, models and cost.

    With -o csv, the epochs; with -o json, everything.

    Example: coach show lenet-digits
    """
    from coach.cli.jobs import find, past_jobs
    from coach.handler.home import Home
    from coach.report.history import history
    from coach.report.models import speed_rows
    from coach.report.replay import ledger, pauses
    from coach.report.status import EPOCH_COLUMNS, epoch_rows, job_row

    home = Home.default()
    past = find(past_jobs(home), job)
    records = home.records(past)
    row = job_row(past.job, time.time(), orphan=past.orphan)
    epochs = epoch_rows(past.job, pauses(r for r in records if r.job in ("", past.job.name)))
    lines = list(history(records)) if events or output is Format.JSON else []
    if output is Format.CSV:
        print_csv(EPOCH_COLUMNS, map(fields, epochs))
    elif output is Format.JSON:
        print_json(
            fields(row)
            | {
                "why": list(past.job.why),
                "epochs": [fields(epoch) for epoch in epochs],
                "ledger": [fields(entry) for entry in ledger(records, past.job.name)],
                "speed": [fields(entry) for entry in speed_rows(past.job)],
                "convergence": past.job.convergence.to_dict() if past.job.convergence else None,
                "events": [{"at": _iso(line.at), "text": line.text} for line in lines],
                "spec": past.job.spec.to_json(),
            }
        )
    else:
        screen = console()
        _facts(screen, home, past.job, row, epochs)
        _models(screen, past.job, speed_rows(past.job), row.currency)
        _epochs(screen, epochs, row.currency)
        _ledger(screen, ledger(records, past.job.name), row.currency)
        if lines:
            _section(screen, "Events")
            for line in lines:
                screen.print(f"  {_clock(line.at)} {line.text}", soft_wrap=True)


def _facts(screen: Console, home: Home, job: Job, row: JobRow, epochs: list[EpochRow]) -> None:
    from coach.cli import tables
    from coach.report import words
    from coach.report.models import outside_words

    measure = f"{row.metric} {row.target:g}, {words.count(row.epochs_in_a_row, 'time')} in a row"
    now = words.score(row.loss if row.metric == "loss" else row.accuracy)
    best = words.score(row.best_loss if row.metric == "loss" else row.best_accuracy)
    left = None if row.budget is None else row.budget - row.spent - row.reserved
    facts = {
        "state": f"{row.state} ({row.reason}): {row.message}"
        if row.message
        else f"{row.state} ({row.reason})",
        "target": f"{measure}; now {now}, best {best}, held {words.count(row.in_a_row, 'time')}",
        "eta": tables.eta(row, interval=True),
        "workers x servers": f"{tables.size(row)}, of {job.minimum} to {job.maximum}",
        "spent / budget": f"{tables.money(row)}; {words.amount(row.reserved)} reserved, {words.rest(left)} left",
        "prices": job.spec.spec.price_book.name,
        "time": f"{words.duration(row.seconds)} held, {words.duration(row.training_seconds)} training and evaluating",
        "overhead": outside_words(epochs),
        "predicted / real": _predicted(row),
        "submitted": words.moment(job.submitted_at),
        "started": words.moment(job.started_at),
        "ended": words.moment(job.ended_at),
        "model": job.spec.spec.model.file,
        "data": job.spec.spec.data.uri or job.spec.spec.data.format.value,
        "checkpoint": job.weights or words.UNKNOWN,
        "logs": str(home.logs(job.name)),
    }
    screen.print(row.name, style="bold")
    for name, value in facts.items():
        screen.print(f"  {name:<18}{value}", soft_wrap=True)
    if job.why:
        _section(screen, "Why")
        for step in job.why:
            screen.print(f"  {step}", soft_wrap=True)


def _predicted(row: JobRow) -> str:
    from coach.report import words

    if row.predicted_seconds is None or row.actual_seconds is None:
        return words.UNKNOWN
    error = words.percent(row.predicted_seconds / row.actual_seconds - 1, signed=True)
    return f"{words.duration(row.predicted_seconds)} / {words.duration(row.actual_seconds)} ({error})"


def _models(screen: Console, job: Job, rows: Sequence[SpeedRow], currency: str) -> None:
    from coach.report import words
    from coach.report.models import curve_words, speed_words

    _section(screen, "Models")
    screen.print(f"  learning curve: {curve_words(job)}", soft_wrap=True)
    screen.print(f"  speed: {speed_words(job)}", soft_wrap=True)
    if not rows:
        return
    made = table(
        "W×S",
        ("MEASURED", "right"),
        ("PREDICTED EPOCHS/S (80 %)", "right"),
        ("SECONDS", "right"),
        (f"COST {currency}", "right"),
        "",
    )
    for row in rows:
        speeds = (row.epochs_per_second, row.epochs_per_second_low, row.epochs_per_second_high)
        made.add_row(
            f"{row.workers}x{row.servers}",
            words.number(row.measured, zeros=True),
            "{} ({}-{})".format(*(words.number(value, zeros=True) for value in speeds)),
            words.number(row.seconds, zeros=True),
            words.amount(row.cost),
            "" if row.affordable else "more than is left",
        )
    _indented(screen, made)


def _epochs(screen: Console, rows: list[EpochRow], currency: str) -> None:
    from coach.cli import tables
    from coach.cli.screen import WIDE

    if rows:
        _section(screen, "Epochs")
        _indented(screen, tables.epochs_table(rows, currency, wide=screen.width >= WIDE))


def _ledger(screen: Console, rows: list[LedgerRow], currency: str) -> None:
    from coach.report import words

    if not rows:
        return
    _section(screen, f"Ledger, in {currency}")
    made = table(
        ("EPOCH", "right"),
        ("ATTEMPT", "right"),
        "W×S",
        "OUTCOME",
        ("RESERVED", "right"),
        ("COST", "right"),
        ("IDLE", "right"),
        ("SPENT", "right"),
    )
    for row in rows:
        made.add_row(
            str(row.epoch),
            str(row.attempt),
            f"{row.workers}x{row.servers}",
            row.outcome,
            *(words.amount(value) for value in (row.reserved, row.cost, row.held, row.spent)),
        )
    _indented(screen, made)


def _section(screen: Console, title: str) -> None:
    screen.print()
    screen.print(title, style="bold")


def _indented(screen: Console, made: Any) -> None:
    from rich.padding import Padding

    screen.print(Padding(made, (0, 0, 0, 2), expand=False))


def _iso(at: float) -> str | None:
    from coach.report.words import iso

    return iso(at)


def _clock(at: float) -> str:
    from coach.report.words import clock

    return clock(at)
