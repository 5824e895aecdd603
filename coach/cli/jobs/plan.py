"""`coach plan`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, Header, console, fields, printed, table
from coach.cli.options import VOLUMES, Nodes, Output, Prices, Set, complete_job, with_prices
from coach.core.cluster import Allocation
from coach.core.errors import UserError
from coach.report import formatting

if TYPE_CHECKING:
    from rich.console import Console

    from coach.core.spec.job import TrainingJob
    from coach.handler.state.state_directory import StateDirectory
    from coach.report.budget_plan import BudgetPlan
    from coach.report.row_types import Plan, PlanRow


def command(  # noqa: PLR0917 - they are options
    given: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Job files, or names of earlier jobs.", autocompletion=complete_job),
    ],
    set_: Set = None,
    prices: Prices = "",
    nodes: Nodes = "",
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="AMOUNTS",
            help="What each of these amounts buys, such as 1,2,5 or, in hours of GPUs, 5,10gpuh: epochs, the loss to "
            "expect, when the target is met.",
        ),
    ] = "",
    deadline: Annotated[
        str,
        typer.Option(
            "--deadline",
            metavar="WHEN",
            help="What it costs to be done by then, such as 8h, friday, or 2026-12-04T18:00 (local time).",
        ),
    ] = "",
    probe: Annotated[
        float,
        typer.Option(
            "--probe",
            metavar="AMOUNT",
            help="With --budget: train the job first, as NAME-probe, for at most this amount; without earlier runs "
            "nothing is known of its learning curve.",
        ),
    ] = 0.0,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", metavar="FILE", help="With --budget: draw it too, a .png, .svg or .pdf file."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Predict the time and cost of jobs; start nothing.

    For each number of workers and servers: time and cost of an epoch and of the job, with 80 % intervals, from what
    earlier jobs of the same model measured on the same nodes; and what is not known before the job has run.

    \b
    Examples:
      coach plan jobs/lenet-digits.yaml
      coach plan jobs/lenet-digits.yaml --budget 0.001,0.002,0.005
      coach plan lenet-digits --budget 10gpuh
      coach plan lenet-digits --deadline friday
      coach plan job.yaml --budget 1,2,5 --probe 0.5 --figure plan.png
    """
    from coach.cli.operations import elsewhere
    from coach.handler.endpoint import find
    from coach.handler.state.state_directory import StateDirectory
    from coach.jobfiles.prices import instance_of
    from coach.platforms.local.cluster import parse_nodes
    from coach.report.plan import plan
    from coach.service.client import service_of

    if elsewhere() is not None:
        if budget or probe or figure or nodes:
            raise UserError("--budget, --probe, --figure, --nodes: not with coach --context NAME plan")
        _there(given, with_prices(set_, prices), deadline, output)
        return
    home = StateDirectory.default()
    amounts, unit = _amounts(budget) if budget else ([], "")
    specs = [_billed_in(unit, spec, prices) for spec in _specs(given, with_prices(set_, prices), home)]
    if (probe or figure) and not budget:
        raise UserError("--probe, --figure: only with --budget AMOUNTS")
    if budget and deadline:
        raise UserError("--budget, --deadline: one of them; the other is the answer")
    until = _seconds_until(deadline) if deadline else None
    if figure and len(specs) > 1:
        raise UserError(f"--figure {figure}: for one job; {len(specs)} were given")
    if probe:
        _probe(home, specs, probe, nodes, output)
    if find(home) and not nodes:
        with service_of(home) as client:
            cluster = client.nodes()
    else:
        cluster = parse_nodes(nodes, instance_of)
    past = home.past()
    if budget:
        from coach.report.budget_plan import budget_plan

        bought = [budget_plan(spec, past, cluster, amounts) for spec in specs]
        if figure:
            from coach.report.figures import budget as figures
            from coach.report.figures.style import save

            curve = budget_plan(specs[0], past, cluster, figures.amounts(amounts))
            save(figure, lambda: figures.draw(curve, bought[0], specs[0].spec.target_value))
        if not _printed(bought, output):
            for each in bought:
                _show_budgets(console(), each)
            if figure:
                typer.echo(figure)
        return
    _say([plan(spec, past, cluster) for spec in specs], specs, until, deadline, output)


def _there(given: Sequence[Path], sets: Sequence[str] | None, deadline: str, output: Format) -> None:
    """Plan job files, and jobs of these names, by the handler of a cluster."""
    from coach.cli.job_files import load
    from coach.cli.operations import operations
    from coach.cli.program import as_files

    files, names = [one for one in given if one.exists()], [str(one) for one in given if not one.exists()]
    loaded = load(files, sets=sets, volumes=VOLUMES) if files else []
    with operations() as coach, as_files(loaded, files) as sent, tempfile.TemporaryDirectory() as folder:
        texts = {Path(folder, f"{name}.yaml"): coach.job(name).text for name in names}
        for path, text in texts.items():
            path.write_text(text)
        plans = coach.plan([*sent, *texts]).plans
    _say(plans, [], _seconds_until(deadline) if deadline else None, deadline, output)


def _say(
    plans: Sequence[Plan], specs: Sequence[TrainingJob], until: float | None, deadline: str, output: Format
) -> None:
    from coach.cli.display.summary import say, wanted
    from coach.report.plan import cheapest_by

    answers = plans
    if until is not None:  # programs get the answer alone
        answers = [replace(one, rows=tuple(filter(None, [cheapest_by(one, until)]))) for one in plans]
    if _printed(answers, output):
        return
    screen = console()
    for number, one in enumerate(plans):
        if specs:
            say(screen, wanted(specs[number]))
        _show(screen, one)
        if until is not None:
            screen.print(f"  {_by(one, until, deadline)}\n", soft_wrap=True)


def _specs(given: Sequence[Path], sets: Sequence[str] | None, home: StateDirectory) -> list[TrainingJob]:
    """The jobs of these files, and earlier jobs of these names. Raises UserError."""
    from coach.cli.job_files import load

    past = home.past() if any(not one.exists() for one in given) else {}
    names = [str(one) for one in given if not one.exists() and str(one) in past]
    if names and sets:
        raise UserError(f"--set {sets[0]}: changes job files; {names[0]} is the name of an earlier job")
    files = [one for one in given if str(one) not in names]
    return [past[name].job.job_file for name in names] + [one.spec for one in load(files, sets=sets)]


def _seconds_until(text: str) -> float:
    """From now to a duration's end, a weekday's, or a local time's. Raises UserError."""
    from coach.core.spec import quantities

    now = datetime.now()
    days = [(now + timedelta(days=each)).date() for each in range(1, 8)]
    try:
        weekday = next((day for day in days if day.strftime("%A").lower() == text.lower()), None)
        if weekday is not None:
            seconds = (datetime.combine(weekday, datetime.max.time()) - now).total_seconds()
        elif text[:1].isdigit() and "-" not in text:
            seconds = quantities.seconds(text)
        else:
            seconds = datetime.fromisoformat(text).timestamp() - now.timestamp()
    except ValueError:
        seconds = 0.0
    if seconds <= 0.0:
        raise UserError(
            f"--deadline {text!r}: must be in the future: 8h, friday (its end), or 2026-12-04T18:00 (local time)"
        )
    return seconds


def _by(plan: Plan, seconds: float, when: str) -> str:
    """What it costs to be done by then."""
    from coach.report.plan import cheapest_by

    row = cheapest_by(plan, seconds)
    by = f"by {when} ({formatting.duration(seconds)} from now)"
    if row is not None:
        cost = formatting.bounded(row.job_cost, row.job_cost_low, row.job_cost_high, formatting.amount)
        time = formatting.bounded(row.job_seconds, row.job_seconds_low, row.job_seconds_high, formatting.duration)
        at = Allocation(row.workers, row.servers).cell
        return f"{by} with a chance of 90 % at least: {cost} {plan.currency} with {at}, done in {time}"
    times = [one.job_seconds_high for one in plan.rows if one.fits and one.job_seconds_high is not None]
    if not times:
        return f"{by}: no speed is known; run it once, or give coach plan the nodes that it ran on"
    return f"{by}: none of these is done then with 90 %; the earliest is after {formatting.duration(min(times))}"


def _probe(
    home: StateDirectory,
    specs: Sequence[TrainingJob],
    amount: float,
    nodes: str,
    output: Format,
) -> None:
    """Train the jobs for at most `amount` each, to know their speed and learning curve. Raises CoachError."""
    from coach.cli.clusters import local_cluster
    from coach.cli.display.display_loop import Showing
    from coach.cli.jobs.run import run_here
    from coach.handler.endpoint import find
    from coach.handler.policies import chosen_policy
    from coach.report.budget_plan import probe_of

    if not 0 < amount <= 1e9:
        raise UserError(f"--probe {amount:g}: must be an amount above 0, such as 0.01")
    if find(home):
        raise UserError("--probe: a service runs the jobs here; coach submit the job with a small budget, then plan it")
    policy, probes = chosen_policy("", [probe_of(spec, amount) for spec in specs])
    cluster = partial(local_cluster, nodes, "", probes)
    code = run_here(home, Showing(output, True, result=False), probes, policy, cluster)
    if code not in (0, 3):
        raise typer.Exit(code)


def _printed(plans: Sequence[Plan | BudgetPlan], output: Format) -> bool:
    """Print for programs; False where a person reads."""
    rows = [{"job": one.name, **fields(row)} for one in plans for row in one.rows]
    return printed(output, rows, list(rows[0]) if rows else (), [fields(one) for one in plans])


def _amounts(text: str) -> tuple[list[float], str]:
    """The amounts of `1,2,5`, and the currency that is behind the last of them; "" for none. Raises UserError."""
    from coach.core.money import currency

    found = re.fullmatch(r"(.*?)([A-Za-z]*)\s*", text, re.DOTALL)
    assert found is not None
    try:
        amounts = [float(part) for part in found[1].split(",")]
    except ValueError:
        amounts = []
    if not amounts or not all(0 < amount <= 1e9 for amount in amounts) or len(set(amounts)) < len(amounts):
        raise UserError(
            f"--budget {text!r}: must be amounts above 0 with commas between them, such as 1,2,5 or 5,10gpuh"
        )
    return amounts, currency(found[2])


def _billed_in(unit: str, spec: TrainingJob, prices: str) -> TrainingJob:
    """The job as it is billed in this currency: in hours by the book of these. Raises UserError where it is in none."""
    from coach.core.money import HOURS
    from coach.core.spec.job import TrainingJob

    billed = spec.spec.price_book.currency
    if unit in ("", billed):
        return spec
    if unit not in HOURS or prices:
        hours = ", ".join(HOURS)
        raise UserError(
            f"--budget: {unit}, but {spec.name} is billed in {billed} ({spec.spec.price_book.name}); amounts in "
            f"{billed} or in hours ({hours}), or other prices: --prices OFFER"
        )
    if unit == "gpuh" and not spec.spec.resources.worker.gpu:
        raise UserError(f"--budget: hours of GPUs, but {spec.name} asks for none; resources.worker.gpu, or coreh")
    document = spec.to_json()
    document["spec"] |= {"prices": HOURS[unit], "budget": {"unlimited": True}}
    return TrainingJob.from_json(document)


def _show_budgets(screen: Console, plan: BudgetPlan) -> None:
    from rich.padding import Padding

    bounded, metric = formatting.bounded, plan.metric.upper()
    values = [bounded(row.value, row.value_low, row.value_high, formatting.score) for row in plan.rows]
    columns: dict[Header, list[str]] = {
        ("BUDGET", "right"): [formatting.plain_amount(row.budget) for row in plan.rows],
        ("EPOCHS", "right"): [str(row.epochs) for row in plan.rows],
        ("WITH", "right"): [Allocation(row.workers, row.servers).cell for row in plan.rows],
        ("TIME", "right"): [formatting.duration(row.seconds) for row in plan.rows],
        (f"{metric} (80 %)", "right"): values,
        (f"{metric} PER {plan.currency} MORE", "right"): [formatting.number(row.gain) for row in plan.rows],
    }
    if plan.chances:
        columns["TARGET IN (80 %)", "right"] = [
            f"{bounded(row.target_seconds, row.target_seconds_low, row.target_seconds_high, formatting.duration)} "
            f"{row.target_at}"
            for row in plan.rows
        ]
    low, high = formatting.score(plan.level_low), formatting.score(plan.level_high)
    screen.print(f"{plan.name}: from a learning curve of {plan.points} points that an earlier run measured")
    for text in plan.known:
        screen.print(f"  {text}", soft_wrap=True)
    screen.print(f"  whatever is paid, its {plan.metric} levels off between {low} and {high} (80 %)", soft_wrap=True)
    for chance, money in plan.chances:
        wanted = "no amount" if money is None else f"{formatting.amount(money)} {plan.currency}"
        screen.print(f"  reaches its target with a chance of {chance:.0%}: {wanted}")
    screen.print()
    screen.print(Padding(table(columns), (0, 0, 1, 2), expand=False))


def _show(screen: Console, plan: Plan) -> None:
    from rich.padding import Padding

    from coach.cli.display.output import WIDE
    from coach.cli.display.tables import size_header

    def line(name: str, text: str) -> None:
        screen.print(f"  {name:<10}{text}", soft_wrap=True)

    spread = f" ({plan.epochs_low:.0f}-{plan.epochs_high:.0f})"
    line("epochs", f"{plan.epochs:.0f}{spread}{'' if plan.epochs_known else ', a guess'}")
    if plan.chance_of_running_out is not None:
        kept = f"; {plan.epochs_provided_for} epochs are provided for" if plan.epochs_provided_for else ""
        line("money", f"may run out with a chance of {formatting.percent(plan.chance_of_running_out)}{kept}")
    if plan.enough:
        line("budget", plan.enough)
    line("prices", plan.prices)
    for text in plan.known:
        line("known", text)
    for text in plan.unknown:
        line("unknown", text)
    if plan.probes:
        line("measures", f"{', '.join(plan.probes)} first, in mini-epochs that train too")
    if plan.refusal:
        line("refused", plan.refusal)
    screen.print()
    known = any(row.seconds is not None for row in plan.rows)
    wide = screen.width >= WIDE
    rows, bounded, amount, duration = plan.rows, formatting.bounded, formatting.amount, formatting.duration
    sizes = [Allocation(row.workers, row.servers).cell for row in rows]
    columns: dict[Header, list[str]] = {size_header(any(row.servers for row in rows)): sizes}
    if wide or not known:
        columns[f"{plan.currency}/HOUR", "right"] = [amount(row.cost_per_hour) for row in rows]
    if plan.budget is not None and not known:
        hours = [row.hours_within_budget for row in rows]
        columns["BUDGET LASTS", "right"] = [duration(None if each is None else each * 3600) for each in hours]
    if known and wide:
        seconds = [bounded(row.seconds, row.seconds_low, row.seconds_high, duration) for row in rows]
        columns["EPOCH (80 %)", "right"] = seconds
    elif known:
        columns["EPOCH", "right"] = [duration(row.seconds) for row in rows]
    if known:
        times = [bounded(row.job_seconds, row.job_seconds_low, row.job_seconds_high, duration) for row in rows]
        costs = [bounded(row.job_cost, row.job_cost_low, row.job_cost_high, amount) for row in rows]
        columns["EPOCH COST" if wide else "COST", "right"] = [amount(row.cost) for row in rows]
        columns |= {("JOB (80 %)", "right"): times, ("JOB COST (80 %)", "right"): costs}
    columns["", "wrap"] = [_notes(row) for row in rows]
    screen.print(Padding(table(columns), (0, 0, 0, 2), expand=False))
    if known and not wide:
        screen.print(f"  from {WIDE} columns on also {plan.currency}/HOUR and the bounds of EPOCH", soft_wrap=True)
    screen.print()


def _notes(row: PlanRow) -> str:
    found = ["measured"] if row.measured else []
    if not row.fits:
        found.append("more than the cluster has")
    if row.within_budget is False:
        found.append("more than the budget")
    return ", ".join(found)
