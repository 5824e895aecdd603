"""One job with all that is known of it: what `coach show` prints."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from coach.cli.display import tables
from coach.cli.display.output import Format, Header, console, fields, printed, table
from coach.cli.display.status_lines import WIDE
from coach.cli.job_lookup import find
from coach.core.cluster import Allocation
from coach.core.jobs.job import Job
from coach.handler.state.state_directory import StateDirectory
from coach.report import formatting
from coach.report.accounting import ledger, pauses
from coach.report.choices import Choice, last_decision, refused_words
from coach.report.history import history
from coach.report.models import SpeedRow, curve_words, outside_words, speed_rows, speed_words
from coach.report.row_types import EpochRow, JobRow, LedgerRow
from coach.report.status import epoch_rows, forecast_rows, job_row


def show(name: str, output: Format, *, events: bool) -> None:
    """Print it; its events too with `events` and in json. Raises UserError for a name that there is not."""
    home, past = find(name)
    job, records = past.job, home.records(past)
    row = job_row(job, time.time(), orphan=past.orphan)
    epochs = epoch_rows(job, pauses(r for r in records if r.job in ("", name)))
    decision = last_decision(records, name)
    choices = decision.choices() if decision else []
    lines = list(history(records)) if events or output is Format.JSON else []
    paid, forecasts, speeds = ledger(records, name), forecast_rows(job), speed_rows(job)
    document = fields(row) | {
        "why": [step.text(name) for step in job.reasons],
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
        "epochs": list(map(fields, epochs)),
        "forecasts": list(map(fields, forecasts)),
        "ledger": list(map(fields, paid)),
        "speed": list(map(fields, speeds)),
        "convergence": job.convergence.to_dict() if job.convergence else None,
        "events": [{"at": formatting.iso(line.at), "text": line.text} for line in lines],
        "spec": job.job_file.to_json(),
    }
    if printed(output, epochs, EpochRow, document):
        return
    screen = console()
    _facts(screen, home, job, row, epochs)
    _why(screen, job, choices)
    _models(screen, job, speeds, row.currency)
    if forecasts:
        _section(screen, "What the whole job was predicted to take, and took")
        _indented(screen, tables.forecasts_table(forecasts, row.currency))
    _epochs(screen, epochs, row.currency, row.metric)
    _ledger(screen, paid, row.currency)
    if lines:
        _section(screen, "Events")
        for line in lines:
            screen.print(f"  {formatting.clock(line.at)} {line.text}", soft_wrap=True)


def _facts(screen: Console, home: StateDirectory, job: Job, row: JobRow, epochs: list[EpochRow]) -> None:
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
    refused = refused_words(choices)
    if job.reasons or refused:
        _section(screen, "Why")
    for step in job.reasons:
        screen.print(f"  {step.text(job.name)}", soft_wrap=True)
    if refused:
        screen.print(f"  considered for the last whole epoch instead of {choices[0].allocation}, and refused:")
        for line in refused:
            screen.print(f"    {line}", soft_wrap=True)


def _models(screen: Console, job: Job, rows: Sequence[SpeedRow], currency: str) -> None:
    _section(screen, "Models")
    screen.print(f"  learning curve: {curve_words(job)}", soft_wrap=True)
    screen.print(f"  speed: {speed_words(job)}", soft_wrap=True)
    if not rows:
        return
    number = partial(formatting.number, zeros=True)
    speeds = [(row.epochs_per_second, row.epochs_per_second_low, row.epochs_per_second_high) for row in rows]
    made = table(
        {
            tables.size_header(job.maximum.servers > 0): [Allocation(row.workers, row.servers).cell for row in rows],
            ("MEASURED", "right"): [number(row.measured) for row in rows],
            ("PREDICTED EPOCHS/S (80 %)", "right"): [formatting.bounded(*each, number) for each in speeds],
            ("SECONDS", "right"): [number(row.seconds) for row in rows],
            (f"COST {currency}", "right"): [formatting.amount(row.cost) for row in rows],
            "": ["" if row.affordable else "more than is left" for row in rows],
        }
    )
    _indented(screen, made)


def _epochs(screen: Console, rows: list[EpochRow], currency: str, metric: str) -> None:
    if rows:
        _section(screen, "Epochs")
        wide = screen.width >= WIDE
        _indented(screen, tables.epochs_table(rows, currency, metric, wide=wide))
        if not wide and any(row.predicted_seconds is not None for row in rows):
            screen.print(f"  from {WIDE} columns on also the bounds of PREDICTED", soft_wrap=True)


def _ledger(screen: Console, rows: list[LedgerRow], currency: str) -> None:
    if not rows:
        return
    _section(screen, f"Ledger, in {currency}")
    sizes = [Allocation(row.workers, row.servers).cell for row in rows]
    columns: dict[Header, list[str]] = {
        ("EPOCH", "right"): [str(row.epoch) for row in rows],
        ("ATTEMPT", "right"): [str(row.attempt) for row in rows],
        tables.size_header(any(row.servers for row in rows)): sizes,
        "OUTCOME": [row.outcome for row in rows],
        ("RESERVED", "right"): [formatting.amount(row.reserved) for row in rows],
        ("COST", "right"): [formatting.amount(row.cost) for row in rows],
        ("IDLE", "right"): [formatting.amount(row.held) for row in rows],
        ("SPENT", "right"): [formatting.amount(row.spent) for row in rows],
    }
    _indented(screen, table(columns, keys=2))


def _section(screen: Console, title: str) -> None:
    screen.print()
    screen.print(title, style="bold")


def _indented(screen: Console, made: Table) -> None:
    screen.print(Padding(made, (0, 0, 0, 2), expand=False))
