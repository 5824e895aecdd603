"""`coach show`."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, Output, console, fields, print_csv, print_json, table
from coach.cli.options import JobName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from coach.core.jobs.job import Job
    from coach.handler.state.state_directory import StateDirectory
    from coach.report.accounting import LedgerRow
    from coach.report.choices import Choice
    from coach.report.models import SpeedRow
    from coach.report.status import EpochRow, ForecastRow, JobRow


def command(
    job: JobName,
    output: Output = Format.TABLE,
    events: Annotated[bool, typer.Option("--events", help="Also list its events.")] = False,
) -> None:
    """Show one job: its decisions, epochs, models and cost.

    With -o csv, the epochs; with -o json, everything.

    Example: coach show lenet-digits
    """
    from coach.cli.job_lookup import find, past_jobs
    from coach.handler.state.state_directory import StateDirectory
    from coach.report.accounting import ledger, pauses
    from coach.report.choices import last_decision
    from coach.report.history import history
    from coach.report.models import speed_rows
    from coach.report.status import EPOCH_COLUMNS, epoch_rows, forecast_rows, job_row

    home = StateDirectory.default()
    past = find(past_jobs(home), job)
    records = home.records(past)
    row = job_row(past.job, time.time(), orphan=past.orphan)
    epochs = epoch_rows(past.job, pauses(r for r in records if r.job in ("", past.job.name)))
    decision = last_decision(records, past.job.name)
    choices = decision.choices() if decision else []
    lines = list(history(records)) if events or output is Format.JSON else []
    if output is Format.CSV:
        print_csv(EPOCH_COLUMNS, map(fields, epochs))
    elif output is Format.JSON:
        print_json(
            fields(row)
            | {
                "why": [step.text(past.job.name) for step in past.job.reasons],
                "considered": [
                    {
                        "workers": one.allocation.workers,
                        "servers": one.allocation.servers,
                        "verdict": one.verdict.value,
                        "reason": one.reason,
                        "pace": one.pace,
                        "cost": one.cost,
                    }
                    for one in choices
                ],
                "epochs": [fields(epoch) for epoch in epochs],
                "forecasts": [fields(one) for one in forecast_rows(past.job)],
                "ledger": [fields(entry) for entry in ledger(records, past.job.name)],
                "speed": [fields(entry) for entry in speed_rows(past.job)],
                "convergence": past.job.convergence.to_dict() if past.job.convergence else None,
                "events": [{"at": _iso(line.at), "text": line.text} for line in lines],
                "spec": past.job.job_file.to_json(),
            }
        )
    else:
        screen = console()
        _facts(screen, home, past.job, row, epochs)
        _why(screen, past.job, choices)
        _models(screen, past.job, speed_rows(past.job), row.currency)
        _forecasts(screen, forecast_rows(past.job), row.currency)
        _epochs(screen, epochs, row.currency, row.metric)
        _ledger(screen, ledger(records, past.job.name), row.currency)
        if lines:
            _section(screen, "Events")
            for line in lines:
                screen.print(f"  {_clock(line.at)} {line.text}", soft_wrap=True)


def _facts(screen: Console, home: StateDirectory, job: Job, row: JobRow, epochs: list[EpochRow]) -> None:
    from coach.cli.display import tables
    from coach.report import formatting
    from coach.report.models import outside_words

    now, best = formatting.score(row.value), formatting.score(row.best)
    target = f"{formatting.goal(row.metric, row.target)}; now {now}, best {best}"
    if row.target is not None:
        goal = f"{formatting.goal(row.metric, row.target)}, {formatting.count(row.epochs_in_a_row, 'time')} in a row"
        target = f"{goal}; now {now}, best {best}, held {formatting.count(row.consecutive_hits, 'time')}"
    counts = "workers x servers" if job.maximum.servers else "workers"
    facts = {
        "state": f"{row.state} ({row.reason}): {row.message}" if row.message else f"{row.state} ({row.reason})",
        "target": target,
        "eta": tables.eta(row, interval=True),
        counts: f"{tables.size(row)} ({formatting.limits(job.minimum, job.maximum)})",
        "spent / budget": f"{tables.money(row)}; {formatting.amount(row.reserved)} reserved, "
        f"{formatting.left(row.budget, row.spent + row.reserved)} left",
        "prices": job.price_book.name,
        "time": f"{formatting.duration(row.seconds)} held, "
        f"{formatting.duration(row.training_seconds)} training and evaluating",
        "overhead": outside_words(epochs),
        "submitted": formatting.moment(job.submitted_at),
        "started": formatting.moment(job.started_at),
        "ended": formatting.moment(job.ended_at),
        **_work(job),
        "logs": str(home.logs(job.name)),
    }
    screen.print(row.name, style="bold")
    for name, value in facts.items():
        screen.print(f"  {name:<18}{value}", soft_wrap=True)


def _work(job: Job) -> dict[str, str]:
    """What is trained: a model on data, or a program."""
    from coach.report import formatting

    model, data, program = job.spec.model, job.spec.data, job.spec.program
    if program is not None:
        return {"program": shlex.join(program.command), "directory": program.directory or formatting.UNKNOWN}
    assert model is not None and data is not None
    size = {"epoch": f"{job.epoch_samples:,} samples"} if job.epoch_samples else {}
    return {
        **size,
        "framework": job.spec.framework.value,
        "model": model.file if model.net == "net" else f"{model.file}:{model.net}",
        "data": data.uri or data.format.value,
        "checkpoint": job.weights or formatting.UNKNOWN,
    }


def _why(screen: Console, job: Job, choices: Sequence[Choice]) -> None:
    """The steps of the last decision, and what the last one on a whole epoch considered and refused."""
    from coach.report.choices import refused_words

    refused = refused_words(choices)
    if job.reasons or refused:
        _section(screen, "Why")
    for step in job.reasons:
        screen.print(f"  {step.text(job.name)}", soft_wrap=True)
    if refused:
        screen.print(f"  considered for the last whole epoch instead of {choices[0].allocation}, and refused:")
        for line in refused:
            screen.print(f"    {line}", soft_wrap=True)


def _forecasts(screen: Console, rows: list[ForecastRow], currency: str) -> None:
    from coach.cli.display import tables

    if rows:
        _section(screen, "What the whole job was predicted to take, and took")
        _indented(screen, tables.forecasts_table(rows, currency))


def _models(screen: Console, job: Job, rows: Sequence[SpeedRow], currency: str) -> None:
    from coach.cli.display.tables import size_header
    from coach.core.cluster import Allocation
    from coach.report import formatting
    from coach.report.models import curve_words, speed_words

    _section(screen, "Models")
    screen.print(f"  learning curve: {curve_words(job)}", soft_wrap=True)
    screen.print(f"  speed: {speed_words(job)}", soft_wrap=True)
    if not rows:
        return
    made = table(
        size_header(job.maximum.servers > 0),
        ("MEASURED", "right"),
        ("PREDICTED EPOCHS/S (80 %)", "right"),
        ("SECONDS", "right"),
        (f"COST {currency}", "right"),
        "",
    )
    for row in rows:
        speeds = (row.epochs_per_second, row.epochs_per_second_low, row.epochs_per_second_high)
        made.add_row(
            Allocation(row.workers, row.servers).cell,
            formatting.number(row.measured, zeros=True),
            "{} ({}-{})".format(*(formatting.number(value, zeros=True) for value in speeds)),
            formatting.number(row.seconds, zeros=True),
            formatting.amount(row.cost),
            "" if row.affordable else "more than is left",
        )
    _indented(screen, made)


def _epochs(screen: Console, rows: list[EpochRow], currency: str, metric: str) -> None:
    from coach.cli.display import tables
    from coach.cli.display.status_lines import WIDE

    if rows:
        _section(screen, "Epochs")
        wide = screen.width >= WIDE
        _indented(screen, tables.epochs_table(rows, currency, metric, wide=wide))
        if not wide and any(row.predicted_seconds is not None for row in rows):
            screen.print(f"  from {WIDE} columns on also the bounds of PREDICTED", soft_wrap=True)


def _ledger(screen: Console, rows: list[LedgerRow], currency: str) -> None:
    from coach.cli.display.tables import size_header
    from coach.core.cluster import Allocation
    from coach.report import formatting

    if not rows:
        return
    _section(screen, f"Ledger, in {currency}")
    made = table(
        ("EPOCH", "right"),
        ("ATTEMPT", "right"),
        size_header(any(row.servers for row in rows)),
        "OUTCOME",
        ("RESERVED", "right"),
        ("COST", "right"),
        ("IDLE", "right"),
        ("SPENT", "right"),
        keys=2,
    )
    for row in rows:
        made.add_row(
            str(row.epoch),
            str(row.attempt),
            Allocation(row.workers, row.servers).cell,
            row.outcome,
            *(formatting.amount(value) for value in (row.reserved, row.cost, row.held, row.spent)),
        )
    _indented(screen, made)


def _section(screen: Console, title: str) -> None:
    screen.print()
    screen.print(title, style="bold")


def _indented(screen: Console, made: Any) -> None:
    from rich.padding import Padding

    screen.print(Padding(made, (0, 0, 0, 2), expand=False))


def _iso(at: float) -> str | None:
    from coach.report.formatting import iso

    return iso(at)


def _clock(at: float) -> str:
    from coach.report.formatting import clock

    return clock(at)
