"""The start and end of `coach run`'s output: the jobs, their results, and the next commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coach.cli.display import tables
from coach.cli.display.output import Header, table
from coach.core.cluster import Node
from coach.core.jobs.reasons import Reason, State
from coach.core.money import HOURS
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Framework
from coach.report import formatting
from coach.report.row_types import ForecastRow, JobRow

#: Jobs whose forecasts the end of a run shows; of more, `coach show` and `coach export` do.
MAX_FORECASTS = 3
NO_BUDGET = "no budget: nothing limits what {} spend"


def beginning(
    screen: Console, specs: Sequence[TrainingJob], nodes: tuple[Node, ...], policy: str, where: str = ""
) -> None:
    """Print what is about to run, with a warning about jobs without a budget."""
    books = sorted({_price_list(spec) for spec in specs})
    say(
        screen,
        f"{formatting.count(len(specs), 'job')} on {_cluster(nodes)}, policy {policy}{where}",
    )
    say(screen, f"Costs are Coach's own sum, by the price list {', '.join(books)}; it reads no cloud's bill.")
    for spec in specs:
        say(screen, f"  {wanted(spec)}")
    free = [spec.name for spec in specs if spec.spec.budget.unlimited]
    if free:
        what = "this job" if len(specs) == 1 else "these jobs" if len(free) == len(specs) else ", ".join(free)
        verb = NO_BUDGET.format(what)
        say(screen, verb.replace(" spend", " spends") if len(free) == 1 else verb)
    say(screen, "")


def _price_list(spec: TrainingJob) -> str:
    """Its name; of one machine also what it costs: `aws-p4d-24xlarge (32.77 USD an hour: 4.096 a GPU)`."""
    book = spec.spec.price_book
    if (one := book.instance) is None or not one.hour or book.nodes or book.currency in HOURS:
        return book.name
    each = f": {one.hour / one.gpu:.4g} a GPU" if one.gpu else ""
    return f"{book.name} ({one.hour:.4g} {book.currency} an hour{each})"


def ending(screen: Console, rows: Sequence[JobRow], forecasts: Mapping[str, Sequence[ForecastRow]]) -> None:
    """The summary, and the next useful commands.

    Of few jobs also what was predicted of each (`forecasts`, by name), and what it took.
    """
    screen.print()
    screen.print(summary(rows, screen.width))
    if len(rows) <= MAX_FORECASTS:
        for row in rows:
            _forecasts(screen, row, forecasts[row.name])
    screen.print()
    for row in rows:
        why = "" if row.state == State.SUCCEEDED else f"{Reason(row.reason).words}: "
        say(screen, f"{row.name}: {why}{row.message}")
    say(screen, "")
    say(screen, f"  details     coach show {rows[0].name}")
    programs = [row.name for row in rows if row.framework == Framework.ANY]
    failed = [row.name for row in rows if row.state == State.FAILED]
    if programs or failed:
        say(screen, f"  its output  coach logs {(failed or programs)[0]}")
    trained = [row.name for row in rows if row.epoch and row.name not in programs]
    if trained:
        say(screen, f"  best model  coach model {trained[0]}")
    if drawn := " ".join(row.name for row in rows if row.epoch):
        say(screen, f"  CSV files   coach export {drawn}")
        say(screen, f"  figures     coach plot {drawn}")


def _forecasts(screen: Console, row: JobRow, forecasts: Sequence[ForecastRow]) -> None:
    if any(one.seconds is not None for one in forecasts):
        screen.print()
        say(screen, f"{row.name}, as predicted on the way:")
        screen.print(tables.forecasts_table(forecasts, row.currency))


def say(screen: Console, text: str) -> None:
    """One line; on a terminal it is wrapped between words."""
    screen.print(text, soft_wrap=not screen.is_terminal)


def wanted(spec: TrainingJob) -> str:
    """A job in one line: its target, its budget, and its limits."""
    return f"{spec.name}: {_target(spec)}, {_budget(spec)}, {formatting.limits(*spec.spec.limits)}"


def _cluster(nodes: tuple[Node, ...]) -> str:
    cores = sum(node.capacity.cpu for node in nodes)
    memory = sum(node.capacity.memory for node in nodes)
    where = nodes[0].name if len(nodes) == 1 else formatting.count(len(nodes), "node")
    gpus = sum(node.capacity.gpu for node in nodes)
    also = f", {formatting.count(int(gpus), 'GPU')}" if gpus else ""
    return f"{where} ({cores:g} cores, {memory:.1f} GiB{also})"


def _target(spec: TrainingJob) -> str:
    target = spec.spec.target
    if target is None:
        return f"the best {spec.spec.metric}"
    goal = formatting.goal(target.name, target.number)
    return f"{goal} {formatting.count(target.epochs_in_a_row, 'time')} in a row" if target.epochs_in_a_row > 1 else goal


def _budget(spec: TrainingJob) -> str:
    budget, account = spec.spec.budget_money, spec.spec.budget.account
    if budget is None:
        return "no budget" if account is None else f"paid by {account}"
    return f"at most {formatting.plain_amount(budget / 1e9)} {spec.spec.price_book.currency}"


def _best(rows: Sequence[JobRow]) -> dict[Header, list[str | Text]]:
    """Loss and accuracy of all, and any other metric of those that have it."""
    others = dict.fromkeys(row.metric for row in rows if row.metric not in ("loss", "accuracy"))
    found: dict[Header, list[str | Text]] = {
        ("BEST LOSS", "right"): [formatting.score(row.best_loss) for row in rows],
        ("BEST ACCURACY", "right"): [formatting.score(row.best_accuracy) for row in rows],
    }
    if others and not any(row.best_loss is not None or row.best_accuracy is not None for row in rows):
        found = {}
    for name in others:
        found[f"BEST {name.upper()}", "right"] = [
            formatting.score(row.best) if row.metric == name else formatting.UNKNOWN for row in rows
        ]
    return found


def summary(rows: Sequence[JobRow], width: int) -> Table:
    """One row a job; one column a job if only that fits into `width`."""
    columns: dict[Header, list[str | Text]] = {
        "NAME": [row.name for row in rows],
        "STATE": [tables.state(row) for row in rows],
        ("EPOCHS", "right"): [str(row.epoch) for row in rows],
        **_best(rows),
        "TARGET": [formatting.goal(row.metric, row.target) for row in rows],
        ("TIME", "right"): [formatting.duration(row.seconds) for row in rows],
        "SPENT / BUDGET": [tables.money(row) for row in rows],
        ("LEFT", "right"): [formatting.left(row.budget, row.spent) for row in rows],
    }
    made = table(columns)
    others = list(columns)[1:]
    turned_columns: dict[Header, Sequence[str | Text]] = {
        "": [Text(name if isinstance(name, str) else name[0], "bold") for name in others]
    }
    turned_columns |= zip(
        (row.name for row in rows), zip(*(columns[name] for name in others), strict=True), strict=True
    )
    turned = table(turned_columns)
    return turned if turned.needed() <= width < made.needed() else made
