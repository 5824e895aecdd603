"""How `coach run` begins and ends on the screen: what is asked for, what came out, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from coach.cli import tables
from coach.cli.output import table
from coach.core.cluster import Node
from coach.core.jobs.reasons import State
from coach.core.jobs.spec import TrainingJob
from coach.core.policies.base import AllocationPolicy
from coach.report import words
from coach.report.status import JobRow

NO_BUDGET = "no budget: nothing limits what {} spend"


def beginning(
    screen: Console, specs: Sequence[TrainingJob], nodes: tuple[Node, ...], policy: AllocationPolicy
) -> None:
    """Say what is about to be done, and aloud what nothing limits."""
    say(screen, f"{words.count(len(specs), 'job')} on {_cluster(nodes)}, policy {policy.name}")
    for spec in specs:
        say(screen, f"  {spec.name}: {_target(spec)}, {_budget(spec)}, {_limits(spec)}")
    free = [spec.name for spec in specs if spec.spec.budget_money is None]
    if free:
        what = "this job" if len(specs) == 1 else "these jobs" if len(free) == len(specs) else ", ".join(free)
        verb = NO_BUDGET.format(what)
        say(screen, verb.replace(" spend", " spends") if len(free) == 1 else verb)


def ending(screen: Console, rows: Sequence[JobRow], files: Sequence[Path]) -> None:
    """The summary, and the next useful commands."""
    made = table(
        "NAME",
        "STATE",
        ("EPOCHS", "right"),
        tables.metric_header(rows).replace(" →", " / BEST →"),
        ("TIME", "right"),
        ("TRAINING", "right"),
        ("PREDICTED / REAL", "right"),
        "SPENT / BUDGET",
        "LEFT",
    )
    for row in rows:
        made.add_row(
            row.name,
            tables.state(row),
            str(row.epoch),
            _scores(row),
            words.duration(row.seconds),
            words.duration(row.training_seconds) if row.epoch else words.UNKNOWN,
            _predicted(row),
            tables.money(row),
            words.rest(None if row.budget is None else row.budget - row.spent),
        )
    screen.print()
    screen.print(made)
    screen.print()
    for row in rows:
        if row.message:
            say(screen, f"{row.name}: {row.message}")
    say(screen, "")
    names = " ".join(row.name for row in rows)
    if any(row.state == State.WAITING for row in rows):
        say(screen, f"  go on       coach run {shlex.join(map(str, files))}")
    say(screen, f"  details     coach show {rows[0].name}")
    say(screen, f"  CSV files   coach export {names}")
    say(screen, f"  figures     coach plot {names}")


def say(screen: Console, text: str) -> None:
    """One line, not wrapped, nothing in it marked up."""
    screen.print(text, soft_wrap=True)


def _cluster(nodes: tuple[Node, ...]) -> str:
    cores = sum(node.capacity.cpu for node in nodes)
    memory = sum(node.capacity.memory for node in nodes)
    where = nodes[0].name if len(nodes) == 1 else words.count(len(nodes), "node")
    return f"{where} ({cores:g} cores, {memory:.1f} GiB)"


def _target(spec: TrainingJob) -> str:
    target = spec.spec.target
    goal = f"loss {target.loss:g}" if target.loss is not None else f"accuracy {target.accuracy:g}"
    return (
        f"{goal} {words.count(target.epochs_in_a_row, 'time')} in a row"
        if target.epochs_in_a_row > 1
        else goal
    )


def _budget(spec: TrainingJob) -> str:
    budget = spec.spec.budget_money
    book = spec.spec.price_book
    if budget is None:
        return "no budget"
    return f"at most {words.plain_amount(budget / 1e9)} {book.currency} by the prices {book.name}"


def _limits(spec: TrainingJob) -> str:
    smallest, largest = spec.spec.limits
    if smallest == largest:
        return f"always {smallest} workers x servers"
    return f"{smallest} to {largest} workers x servers"


def _scores(row: JobRow) -> str:
    loss = row.metric == "loss"
    last, best = (row.loss, row.best_loss) if loss else (row.accuracy, row.best_accuracy)
    return f"{words.score(last)} / {words.score(best)} → {row.target:g}"


def _predicted(row: JobRow) -> str:
    if row.predicted_seconds is None or row.actual_seconds is None:
        return words.UNKNOWN
    return f"{words.duration(row.predicted_seconds)} / {words.duration(row.actual_seconds)}"
