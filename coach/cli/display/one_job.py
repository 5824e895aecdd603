"""One job with all that is known of it: what `coach show` prints."""

from __future__ import annotations

import shlex
import statistics
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from coach.cli.display import tables
from coach.cli.display.output import WIDE, Format, Header, console, fields, printed, table
from coach.cli.operations import operations
from coach.core.cluster import Allocation
from coach.report import formatting
from coach.report.row_types import EpochRow, JobDetail, LedgerRow

if TYPE_CHECKING:
    from coach.service.schemas import EventLine


def show(name: str, output: Format = Format.TABLE, *, events: bool = False) -> None:
    """Print it; its events too with `events` and in json. Raises UserError for a name that there is not."""
    with operations() as coach:
        found, after = coach.job(name), 0
        lines: list[EventLine] = []
        while events or output is Format.JSON:
            more = coach.events(name, after=after)
            if not more.events:
                break
            lines, after = lines + more.events, more.seq
    document = fields(found) | {"events": [fields(line) for line in lines]}
    if printed(output, found.epochs, EpochRow, fields(found.job) | document):
        return
    screen, row = console(), found.job
    _facts(screen, found)
    _why(screen, found)
    _models(screen, found)
    if found.forecasts:
        _section(screen, "What the whole job was predicted to take, and took")
        _indented(screen, tables.forecasts_table(found.forecasts, row.currency))
    _epochs(screen, found.epochs, row.currency, row.metric)
    _ledger(screen, found.ledger, row.currency)
    if lines:
        _section(screen, "Events")
        for line in lines:
            screen.print(f"  {formatting.local(line.at)[-8:]} {line.text}", soft_wrap=True)


def _facts(screen: Console, found: JobDetail) -> None:
    row, now, best = found.job, formatting.score(found.job.value), formatting.score(found.job.best)
    target = f"{formatting.goal(row.metric, row.target)}; now {now}, best {best}"
    if row.target is not None:
        goal = f"{formatting.goal(row.metric, row.target)}, {formatting.count(row.epochs_in_a_row, 'time')} in a row"
        target = f"{goal}; now {now}, best {best}, held {formatting.count(row.consecutive_hits, 'time')}"
    counts = "workers x servers" if found.has_servers else "workers"
    facts = {
        "state": f"{row.state} ({row.reason}): {row.message}" if row.message else f"{row.state} ({row.reason})",
        "target": target,
        "eta": tables.eta(row, interval=True),
        counts: f"{tables.size(row)} ({found.limits})",
        **({"GPUs": "; ".join(found.devices)} if found.devices else {}),
        **({"GPUs' use": found.device_use} if found.device_use else {}),
        "spent / budget": f"{tables.money(row)}; {formatting.amount(row.reserved)} reserved, "
        f"{formatting.left(row.budget, row.spent + row.reserved)} left",
        "prices": found.prices,
        "time": f"{formatting.duration(row.seconds)} held, "
        f"{formatting.duration(row.training_seconds)} training and evaluating",
        "overhead": _outside_words(found.epochs),
        "submitted": formatting.local(row.submitted_at),
        "started": formatting.local(row.started_at),
        "ended": formatting.local(row.ended_at),
        **_work(found),
        "logs": found.logs,
    }
    screen.print(row.name, style="bold")
    for name, value in facts.items():
        screen.print(f"  {name:<18}{value}", soft_wrap=True)


def _work(found: JobDetail) -> dict[str, str]:
    """What is trained: a model on data, or a program."""
    spec = found.spec["spec"]
    if (program := spec.get("program")) is not None:
        return {
            "program": shlex.join(program["command"]),
            "directory": program.get("directory") or formatting.UNKNOWN,
        }
    model, data = spec["model"], spec["data"]
    size = {"epoch": f"{found.epoch_samples:,} samples"} if found.epoch_samples else {}
    net = model.get("net", "net")
    return {
        **size,
        "framework": found.job.framework,
        "model": model["file"] if net == "net" else f"{model['file']}:{net}",
        "data": data.get("uri") or data["format"],
        "checkpoint": found.checkpoint or formatting.UNKNOWN,
    }


def _why(screen: Console, found: JobDetail) -> None:
    """The steps of the last decision, and what the last one on a whole epoch considered and refused."""
    if found.why or found.refused:
        _section(screen, "Why")
    for step in found.why:
        screen.print(f"  {step}", soft_wrap=True)
    if found.refused:
        chosen = Allocation(found.considered[0].workers, found.considered[0].servers)
        screen.print(f"  considered for the last whole epoch instead of {chosen}, and refused:")
        for line in found.refused:
            screen.print(f"    {line}", soft_wrap=True)


def _models(screen: Console, found: JobDetail) -> None:
    _section(screen, "Models")
    screen.print(f"  learning curve: {found.curve_words}", soft_wrap=True)
    screen.print(f"  speed: {found.speed_words}", soft_wrap=True)
    if not (rows := found.speed):
        return
    number = partial(formatting.number, zeros=True)
    speeds = [(row.epochs_per_second, row.epochs_per_second_low, row.epochs_per_second_high) for row in rows]
    made = table(
        {
            tables.size_header(found.has_servers): [Allocation(row.workers, row.servers).cell for row in rows],
            ("MEASURED", "right"): [number(row.measured) for row in rows],
            ("PREDICTED EPOCHS/S (80 %)", "right"): [formatting.bounded(*each, number) for each in speeds],
            ("SECONDS", "right"): [number(row.seconds) for row in rows],
            (f"COST {found.job.currency}", "right"): [formatting.amount(row.cost) for row in rows],
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
    grace: dict[Header, list[str]] = {}
    if any(row.grace for row in rows):
        grace = {("GRACE", "right"): [formatting.amount(row.grace) for row in rows]}
    columns: dict[Header, list[str]] = {
        ("EPOCH", "right"): [str(row.epoch) for row in rows],
        ("ATTEMPT", "right"): [str(row.attempt) for row in rows],
        tables.size_header(any(row.servers for row in rows)): sizes,
        "OUTCOME": [row.outcome for row in rows],
        ("RESERVED", "right"): [formatting.amount(row.reserved) for row in rows],
        ("COST", "right"): [formatting.amount(row.cost) for row in rows],
        ("IDLE", "right"): [formatting.amount(row.held) for row in rows],
        **grace,
        ("SPENT", "right"): [formatting.amount(row.spent) for row in rows],
    }
    _indented(screen, table(columns, keys=2))


def _section(screen: Console, title: str) -> None:
    screen.print()
    screen.print(title, style="bold")


def _indented(screen: Console, made: Table) -> None:
    screen.print(Padding(made, (0, 0, 0, 2), expand=False))


def _outside_words(rows: list[EpochRow]) -> str:
    """Time outside training: medians, by whether a group had to be formed."""
    if not rows:
        return formatting.UNKNOWN
    fresh = [row.outside_seconds for row in rows if row.new_group]
    kept = [row.outside_seconds for row in rows if not row.new_group]
    total = sum(row.outside_seconds for row in rows)
    parts = [f"{formatting.duration(total)} in all"]
    if fresh:
        parts.append(f"median {formatting.duration(statistics.median(fresh))} an epoch with a new group")
    if kept:
        parts.append(f"{formatting.duration(statistics.median(kept))} with the same")
    return ", ".join(parts)
