"""`coach simulate`."""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, Header, console, fields, printed, table
from coach.cli.options import Output
from coach.core.cluster import Node, Resources
from coach.core.errors import UserError
from coach.core.money import to_amount
from coach.report import formatting

if TYPE_CHECKING:
    from rich.console import Console

    from coach.core.jobs.events import AccountSet
    from coach.core.spec.job import TrainingJob
    from coach.simulation.metrics import Result
    from coach.studies.simulation_inputs import SimulatedJobs
    from coach.studies.study import Fidelity, Question

#: Options that mean something only where jobs are given in another way, and what the jobs have instead.
UNUSED = {
    "trace": (
        ("arrivals", "speeds", "epoch_seconds", "epochs", "assume"),
        "jobs of a --trace arrive, and take as long, as its file says",
    ),
    "journal": (
        ("arrivals", "speeds", "epoch_seconds", "epochs", "assume"),
        "jobs of a --journal arrive, and train, as they did",
    ),
}

#: Panels of the help, behind the options that most people need.
NEVER_RAN, RUNS, FILES = "Of jobs that never ran", "How it is simulated", "Other files"
#: A function of a run, which `coach.simulation.parallel.gather` calls, and its arguments.
Task = tuple[Any, tuple[Any, ...]]

Files = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Job files; each may have several jobs.")]
Nodes = Annotated[
    str,
    typer.Option(
        metavar="COUNTxCORES[xGIB[xGPUS]]|FILE|trace[+N]",
        help="Nodes such as 10x32 or 84x32x256x8 (default: 4 GiB a core, no GPU), or a cluster file. With --trace also "
        "several, comma-separated; trace: the nodes that the file has, trace+4: four more of its largest kind.",
    ),
]
Policies = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAMES",
        help="Policies to compare, comma-separated; see docs/advanced/policies.md.",
    ),
]
Placements = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="NAMES",
        help="Who places pods on nodes where the policy does not, comma-separated: gang (all pods of a job "
        "together), default (one by one, as the stock kube-scheduler does), thesis (one by one, by the thesis's three "
        "rules). The last two take deadlock_timeout, backoff and creation, seconds: default:backoff=10.",
        rich_help_panel=RUNS,
    ),
]
FidelityOption = Annotated[
    str | None,
    typer.Option(
        "--fidelity",
        metavar="system|trace",
        help="system: Coach's own decisions, with probes, fits and budgets (default). trace: policies know the true "
        "speeds and remaining epochs; no probes, no budgets (always with --trace).",
        rich_help_panel=RUNS,
    ),
]
Rescale = Annotated[
    str,
    typer.Option(
        metavar="restart|elastic[:MILLIONS]",
        help="What a change of workers or servers costs: a new group, as measured or assumed of the job, or what was "
        "measured of elastic servers with so many million weights (10: 0.09 s). Not with --trace.",
        rich_help_panel=RUNS,
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each policy, each with other noise and faults.")]
Seed = Annotated[int, typer.Option(help="Seed of the first run, and of the arrivals.", rich_help_panel=RUNS)]
Arrivals = Annotated[
    str,
    typer.Option(metavar="HOW", help="When jobs arrive: 0 (all at once), every:60, poisson:120 (mean seconds)."),
]
Trace = Annotated[
    str,
    typer.Option(
        metavar="[KIND:]FILE",
        help="A queue's history instead of job files: sacct: (of sacct -P), kubernetes: and kueue: (of kubectl get -o "
        "yaml), our CSV, philly:, helios:, pai:, swf:, thesis:. FILE.swf needs no KIND.",
    ),
]
JournalFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The jobs of real runs instead of job files, at their real arrival times: a journal.db, or a COACH_HOME.",
    ),
]
Speeds = Annotated[
    str,
    typer.Option(
        metavar="MODEL|FILE:MODEL",
        help="Measured speeds for jobs that never ran: a model of the table that comes with Coach, or of your own.",
        rich_help_panel=NEVER_RAN,
    ),
]
EpochSeconds = Annotated[
    float,
    typer.Option(
        min=0.001,
        help="Seconds of an epoch with one worker and one server, for jobs that never ran.",
        rich_help_panel=NEVER_RAN,
    ),
]
Epochs = Annotated[
    float, typer.Option(min=1, help="Epochs to the target, for jobs that never ran.", rich_help_panel=NEVER_RAN)
]
Assume = Annotated[
    bool,
    typer.Option("--assume", help="Treat all jobs as if they never ran: read no journal.", rich_help_panel=NEVER_RAN),
]
FunctionLost = Annotated[
    float,
    typer.Option(min=0, help="Mean seconds of training until a function fails; 0: none fails.", rich_help_panel=RUNS),
]
NodeLost = Annotated[
    float,
    typer.Option(
        min=0, help="Mean seconds until a node fails, for ten minutes on average; 0: none fails.", rich_help_panel=RUNS
    ),
]
Processes = Annotated[
    int, typer.Option(min=0, help="Runs at the same time; 0: as many as there are cores.", rich_help_panel=RUNS)
]
Figure = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Draw a figure into this file (png, svg, pdf). Without it, or with the word none, none is drawn.",
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Also write the answer as one HTML page that needs nothing else."),
]
JobsFile = Annotated[
    Path | None,
    typer.Option(
        "--jobs",
        metavar="FILE",
        help="Also write a row for each job and run (csv, parquet): arrival, start, end, wait, allocation, cost.",
        rich_help_panel=FILES,
    ),
]
TimelineFile = Annotated[
    Path | None,
    typer.Option(
        "--timeline",
        metavar="FILE",
        help="Also write what each run uses, is asked for and lets wait over time (csv, parquet).",
        rich_help_panel=FILES,
    ),
]
HomeFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Also write the first policy's first run there, as a COACH_HOME for coach ui, show, why and plot.",
        rich_help_panel=FILES,
    ),
]


def command(  # noqa: PLR0917 - they are options
    context: typer.Context,
    files: Files = None,
    nodes: Nodes = "4x8",
    policy: Policies = "coach",
    fidelity: FidelityOption = None,
    placement: Placements = "gang",
    seeds: Seeds = 1,
    seed: Seed = 1,
    arrivals: Arrivals = "0",
    trace: Trace = "",
    journal: JournalFile = None,
    speeds: Speeds = "resnet-50",
    epoch_seconds: EpochSeconds = 10.0,
    epochs: Epochs = 20.0,
    assume: Assume = False,
    function_lost: FunctionLost = 0.0,
    node_lost: NodeLost = 0.0,
    rescale: Rescale = "restart",
    processes: Processes = 0,
    figure: Figure = None,
    report: Report = None,
    jobs: JobsFile = None,
    timeline: TimelineFile = None,
    home: HomeFolder = None,
    output: Output = Format.TABLE,
) -> None:
    """Compare policies on any cluster, in virtual time.

    Speeds and learning curves are those that the journals have of the same model and data; for jobs that never ran,
    those of --speeds, --epoch-seconds and --epochs. Of a --trace it says how many jobs were read, left out and assumed
    something of, and why. The answer is a table, with --figure also a figure. Ctrl-C keeps the runs that are done.
    All policies run at one fidelity, which is printed.

    \b
    Examples:
      coach simulate jobs/*.yaml --nodes 10x32 --policy coach,drf,static:2x2
      coach simulate jobs/*.yaml --nodes 3x8 --placement gang,default
      coach simulate jobs/*.yaml --nodes 9x32 --policy coach,kod2 --fidelity trace
      coach simulate --trace jobs.csv --nodes 84x32x256x8 --policy fifo,fitgpp
      coach simulate --trace kubernetes:all.yaml --nodes trace+4 --report a.html
      coach simulate --journal ~/.local/share/coach --nodes 1x4 --policy coach,drf
      coach simulate jobs/*.yaml --home what-if && COACH_HOME=what-if coach ui
    """
    from coach.cli.display.progress_bar import progress_bar
    from coach.simulation.parallel import gather
    from coach.studies.simulation_inputs import on_elastic_servers, recorded
    from coach.studies.study import Question, answer
    from coach.studies.study import placements as placements_of

    policies, placements = _names(policy), _names(placement)
    if not policies or sum(map(bool, (files, trace, journal))) != 1:
        raise UserError(
            "simulate needs job files, a --trace or a --journal, and at least one --policy; nothing was simulated"
        )
    _check_used(context, "trace" if trace else "journal" if journal else "")
    if not placements:
        raise UserError("--placement needs a name: gang, default, thesis, or several with commas between")
    rescaling = _rescaling(rescale, trace)
    faults = node_lost or math.inf, function_lost or math.inf
    each = range(seed, seed + seeds)
    screen = console(stderr=True)
    at = _fidelity(fidelity, trace)
    drawn = _figure_file(figure)
    tables = _table_files(jobs, timeline)
    if home is not None:
        _check_home(home, at)
    pairs = [(name, kind) for name in policies for kind in placements_of(name, placements, at)]
    budgets, of_trace, notes = 0, dict[str, Any](), list[str]()
    if trace:
        tasks: list[Task]
        tasks, clusters, of_trace, notes = _of_a_trace(trace, _names(nodes), [name for name, _ in pairs], each, faults)
        screen.print("\n".join(notes), soft_wrap=True)
    else:
        clusters = {nodes: parse_cluster(nodes)}
        past = (
            recorded(journal)
            if journal is not None
            else _of_files(files or [], (speeds, epoch_seconds, epochs, assume), (arrivals, seed))
        )
        _say_origins(past, _given(context, ("speeds", "epoch_seconds", "epochs")), screen)
        question = Question(
            tuple(job if rescaling is None else on_elastic_servers(job) for job in past.jobs),
            tuple(replace(each, rescale_seconds=rescaling) for each in past.dynamics),
            past.arrivals,
            clusters[nodes],
            node_lost=faults[0],
            function_lost=faults[1],
            accounts=_accounts(past.jobs, at, screen),
        )
        tasks = [(answer, (question, name, number, kind, at)) for name, kind in pairs for number in each]
        budgets = sum(job.spec.budget_money is not None for job in past.jobs)
        if home is not None:
            screen.print(_record(question, pairs[0], seed, home), soft_wrap=True)
    notes.append(f"fidelity {at}: {_assumed(at, budgets)}")
    screen.print(notes[-1], soft_wrap=True)
    with progress_bar(len(tasks)) as show:
        results, interrupted = gather(tasks, processes=processes or None, progress=show)
    by_label: dict[str, list[Result]] = {}
    for result in results:
        if result is not None:
            by_label.setdefault(result.label, []).append(result)
    _show(by_label, at, output, of_trace)
    if by_label:
        write = partial(_page, results=by_label, clusters=clusters, notes=notes)
        for line in _files(by_label, drawn, tables, report, write):
            screen.print(line, soft_wrap=True)
    if interrupted:
        raise KeyboardInterrupt


def _given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of these options that the command's line has."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        f"--{name.replace('_', '-')}" for name, of in sources.items() if of is not None and of.name == "COMMANDLINE"
    ]


def _say_origins(past: SimulatedJobs, given: list[str], screen: Console) -> None:
    """Say where speeds and curves come from, and if the `given` assumptions are not needed."""
    for words, called in past.origins.items():
        screen.print(f"{', '.join(called)}: {words}", soft_wrap=True)
    if given and not past.assumed:
        unused = (
            f"{', '.join(given)}: not used, as all jobs ran before; to treat them as if they never ran, add --assume"
        )
        screen.print(unused, soft_wrap=True)


def _check_used(context: typer.Context, source: str) -> None:
    """Raises UserError for an option that would change nothing with jobs of this source."""
    names, instead = UNUSED.get(source, ((), ""))
    if unused := _given(context, names):
        raise UserError(f"{', '.join(unused)}: {instead}; leave {'it' if len(unused) == 1 else 'them'} out")


def _of_a_trace(
    trace: str, nodes: list[str], policies: list[str], seeds: range, faults: tuple[float, float]
) -> tuple[list[Task], dict[str, tuple[Node, ...]], dict[str, Any], list[str]]:
    """The runs of a trace; its clusters by their texts; what json and people are shown of it. Raises UserError."""
    from coach.plugins import extension
    from coach.studies.study import TRACE

    engine = extension(*TRACE)
    lines, document, has = engine.look(trace)
    clusters = {text: _of_trace(text, has) for text in nodes}
    tasks: list[Task] = [
        (engine.replay, (trace, cluster, name, seed, faults, f"{name}, {text}" if len(clusters) > 1 else ""))
        for text, cluster in clusters.items()
        for name in policies
        for seed in seeds
    ]
    return tasks, clusters, document, lines


def _page(
    file: Path, results: dict[str, list[Result]], clusters: dict[str, tuple[Node, ...]], notes: list[str]
) -> Path:
    """Write the answer as one page. Raises UserError."""
    from coach.report.simulation.page import write_page

    rows = dict(zip(results, _rows(results), strict=True))
    return write_page(file, rows, results, clusters, notes, f"coach {shlex.join(sys.argv[1:])}")


def _of_trace(text: str, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The simulated nodes where a trace may have some: `trace`, `trace+4`. Raises UserError."""
    found = re.fullmatch(r"trace(?:\+([1-9][0-9]{0,3}))?", text)
    if not found:
        return parse_cluster(text)
    if not nodes:
        raise UserError(f"--nodes {text}: the trace has no nodes; say how many, such as 10x32x128x4")
    more, largest = int(found[1] or 0), max(nodes, key=lambda node: (node.capacity.gpu, node.capacity.cpu))
    partition = largest.name[: largest.name.rfind("/") + 1]
    return (*nodes, *(replace(largest, name=f"{partition}more-{number}") for number in range(more)))


def _accounts(jobs: Sequence[TrainingJob], fidelity: Fidelity, screen: Console) -> tuple[AccountSet, ...]:
    """The accounts of jobs as they are set, where this fidelity has money; what is taken of each is said."""
    from coach.core.periods import EVER
    from coach.handler.accounts import to_simulate
    from coach.handler.state.state_directory import StateDirectory
    from coach.studies.study import Fidelity

    named = {job.spec.budget.account for job in jobs if job.spec.budget.account}
    settings = []
    if named and fidelity is Fidelity.SYSTEM:
        settings = to_simulate(StateDirectory.default(), sorted(named))
    for one in settings:
        per = "" if one.period == EVER else f" in any {one.period}"
        amount = f"{to_amount(one.amount):g} {one.currency}{per}"
        screen.print(f"the account {one.account} has {amount}, and nothing is spent at the start", soft_wrap=True)
    for account in sorted(named - {one.account for one in settings}):
        screen.print(f"the account {account} is not simulated: it is taken to have all the money", soft_wrap=True)
    return tuple(settings)


def _figure_file(asked: str | None) -> Path | None:
    """Where a figure is asked for; None: nowhere. Raises UserError for a name that is none of a figure."""
    if asked in {None, "none"}:
        return None
    from coach.report.figures.style import kind_of

    file = Path(str(asked))
    kind_of(file)
    return file


def _table_files(jobs: Path | None, timeline: Path | None) -> dict[str, Path]:
    """The files of tables that are asked for, by their options. Raises UserError for one that cannot be written."""
    from coach.report.simulation.tables import check_ending

    asked = {option: path for option, path in (("--jobs", jobs), ("--timeline", timeline)) if path is not None}
    for option, path in asked.items():
        check_ending(path, option)
    return asked


def _files(
    results: dict[str, list[Result]],
    figure: Path | None,
    tables: dict[str, Path],
    report: Path | None,
    write_page: Callable[[Path], Path],
) -> Iterator[str]:
    """Write the files that are asked for; a line for each. Raises UserError."""
    from coach.report.simulation.tables import job_rows, timeline_rows, write_rows

    if figure is not None:
        from coach.report.figures.simulation import plot_simulated

        yield f"figure: {plot_simulated(results, figure)}"
    of = {"--jobs": job_rows, "--timeline": timeline_rows}
    runs = [run for each in results.values() for run in each]
    for option, path in tables.items():
        yield f"{option.removeprefix('--')}: {write_rows(path, (row for run in runs for row in of[option](run)))}"
    if report is not None:
        yield f"report: {write_page(report)}"


def _of_files(files: list[Path], assumed: tuple[str, float, float, bool], arrivals: tuple[str, int]) -> SimulatedJobs:
    """The jobs of job files. `assumed`: of `of_specs`; `arrivals`: when they arrive, and the seed."""
    from coach.cli.job_files import load
    from coach.studies.simulation_inputs import of_specs
    from coach.studies.study import arrival_times

    past = of_specs([one.spec for one in load(files, check_files=False)], *assumed)
    return replace(past, arrivals=arrival_times(arrivals[0], len(past.jobs), arrivals[1]))


def _check_home(home: Path, fidelity: Fidelity) -> None:
    """Raises UserError where no run can be written there."""
    from coach.handler.state.state_directory import StateDirectory
    from coach.studies.study import Fidelity

    if fidelity is not Fidelity.SYSTEM:
        raise UserError("--home needs --fidelity system: at trace fidelity there is no journal; nothing was simulated")
    if StateDirectory(home).journals():
        raise UserError(f"--home {home}: jobs are there already; name a new folder. Nothing was simulated")


def _record(question: Question, run: tuple[str, str], seed: int, home: Path) -> str:
    """Write the run of a policy under a placement as a journal; how to look at it."""
    from coach.handler.state.journal import Journal
    from coach.handler.state.state_directory import StateDirectory
    from coach.studies.study import records_of

    policy, placement = run
    records = records_of(question, policy, seed, placement, begin=math.floor(time.time()))
    journal = Journal.write(StateDirectory(home).journal(1))
    journal.append(records)
    journal.close()
    return f"the run of {policy} with seed {seed}: COACH_HOME={home} coach ui"


def _names(text: str) -> list[str]:
    """The names between commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _fidelity(asked: str | None, trace: str) -> Fidelity:
    """The fidelity of the table. Raises UserError."""
    from coach.studies.study import Fidelity

    if asked is None:
        return Fidelity.TRACE if trace else Fidelity.SYSTEM
    if asked not in {*Fidelity}:
        raise UserError(f"--fidelity {asked}: use system or trace; nothing was simulated")
    if trace and asked == Fidelity.SYSTEM:
        raise UserError(
            "--fidelity system needs job files or a --journal: a --trace has no learning curves and no budgets; "
            "leave --fidelity out, or use --fidelity trace"
        )
    return Fidelity(asked)


def _rescaling(asked: str, trace: str) -> float | None:
    """Seconds that a change costs; None: a new group. Raises UserError."""
    from coach.studies.simulation_inputs import elastic_rescale

    if asked == "restart":
        return None
    kind, _, millions = asked.partition(":")
    if trace or kind != "elastic" or not re.fullmatch(r"\d{0,6}([.]\d+)?", millions):
        right = "restart, or, with job files or a --journal, elastic or elastic:MILLIONS of weights, such as elastic:25"
        raise UserError(f"--rescale {asked}: use {right}; nothing was simulated")
    return elastic_rescale(float(millions)) if millions else elastic_rescale()


def _assumed(fidelity: Fidelity, budgets: int) -> str:
    """What a run at this fidelity assumes, with `budgets` jobs that have a budget."""
    from coach.studies.study import ASSUMPTIONS, Fidelity

    ignored = f"; the budgets of {budgets} job{'s' * (budgets > 1)} are ignored"
    return ASSUMPTIONS[fidelity] + (ignored if budgets and fidelity is Fidelity.TRACE else "")


def parse_cluster(text: str) -> tuple[Node, ...]:
    """The simulated nodes. Raises UserError."""
    from coach.jobfiles.prices import instance_of
    from coach.platforms.local.cluster import parse_nodes

    if "=" in text:  # partitions: NAME=COUNTxCORES+NAME=COUNTxCORES
        parts = [part.partition("=") for part in text.split("+")]
        if not all(name and (nodes or not equals) for name, equals, nodes in parts):
            raise UserError(
                f"--nodes {text}: use NAME=COUNTxCORES for each partition, such as gpu=4x64x512x8+cpu=10x64"
            )
        return tuple(
            replace(node, name=f"{name}/{node.name}" if equals else node.name)
            for name, equals, nodes in parts
            for node in parse_cluster(nodes if equals else name)
        )
    found = re.fullmatch(r"([1-9][0-9]*)x([0-9]+(?:\.[0-9]+)?)(?:x([0-9]+(?:\.[0-9]+)?))?(?:x([0-9]+))?", text)
    if not found:
        if "x" in text and not Path(text).exists():
            raise UserError(f"--nodes {text}: use COUNTxCORES, COUNTxCORESxGIB, COUNTxCORESxGIBxGPUS or a cluster file")
        return parse_nodes(text, instance_of)
    count, cores = int(found[1]), float(found[2])
    if not (count <= 10_000 and cores > 0):
        raise UserError(f"--nodes {text}: 1 to 10000 nodes with more than no core each, such as 10x32")
    each = Resources(cores, float(found[3] or 4 * cores), float(found[4] or 0))
    return tuple(Node(f"node-{n:04d}", each) for n in range(count))


def _show(results: dict[str, list[Result]], fidelity: Fidelity, output: Format, more: dict[str, Any]) -> None:
    """The metrics of each policy and placement: means over its runs; better and worse against the first one.

    `more`: what json says of the trace; csv has its numbers.
    """
    from coach.simulation.metrics import FINISHED
    from coach.studies.never_fit import never_fit, never_fit_lines

    rows = [
        {
            "fidelity": str(fidelity),
            **row,
            **more,
            "never_fit": [{"job": job, "why": why} for job, why in never_fit(runs).items()],
        }
        for row, runs in zip(_rows(results), results.values(), strict=True)
    ]
    never = never_fit_lines(never_fit(run for runs in results.values() for run in runs))
    numbers = [{k: len(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    if printed(output, numbers, list(rows[0]) if rows else ["fidelity", "policy", "placement"], rows):
        for line in never if output is Format.CSV else ():
            console(stderr=True).print(line, soft_wrap=True)
    elif rows:
        screen = console()
        _compare(screen, dict(zip(results, rows, strict=True)))
        for label, runs in results.items():
            ends = sum((run.ends for run in runs), Counter[str]())
            if ends.keys() - {"TargetReached", FINISHED}:
                counts = ", ".join(f"{count} {reason}" for reason, count in ends.most_common())
                screen.print(f"{label}: of {ends.total()} jobs in all runs: {counts}", soft_wrap=True)
        for line in never:
            screen.print(line, soft_wrap=True)


def _rows(results: dict[str, list[Result]]) -> list[dict[str, Any]]:
    from coach.simulation.metrics import compare, mean_of, measure

    rows: list[dict[str, Any]] = []
    first = next(iter(results.values()), [])
    for runs in results.values():
        measured = [measure(run) for run in runs]
        means = {name: mean_of(measured, name) for name in fields(measured[0])}
        pairs = [compare(run, base) for run in runs for base in first if base.seed == run.seed]
        rows.append(
            {
                "policy": runs[0].policy,
                "placement": runs[0].placement,
                "runs": len(runs),
                **{name: None if math.isnan(value) else value for name, value in means.items()},
                "jobs_better": sum(pair.better for pair in pairs) / len(pairs) if pairs else None,
                "jobs_worse": sum(pair.worse for pair in pairs) / len(pairs) if pairs else None,
            }
        )
    return rows


def _compare(screen: Console, rows: dict[str, dict[str, Any]]) -> None:
    """A line for each measure and a column for each policy.

    Jobs are counted as sooner or later in comparison with the first policy.
    """
    columns = {label: _cells(row) for label, row in rows.items()}
    hidden = set() if any(row["migrations"] for row in rows.values()) else {"migrations"}
    if all(row["gpu_used"] is None for row in rows.values()):
        hidden.add("GPU used")
    shown = [measure for measure in next(iter(columns.values())) if measure not in hidden]
    made: dict[Header, list[str]] = {"POLICY": shown}
    for label, cells in columns.items():
        made[label, "right"] = [cells[measure] for measure in shown]
    screen.print(table(made))


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """The measures' labels and values."""
    return {
        "jobs succeeded": f"{formatting.number(row['reached'])} of {formatting.number(row['jobs'])}",
        "completion time, mean s": formatting.number(row["completion_mean"], 4),
        "  median s": formatting.number(row["completion_p50"], 4),
        "  95th percentile s": formatting.number(row["completion_p95"], 4),
        "wait, mean s": formatting.number(row["waiting_mean"], 4),
        "makespan s": formatting.number(row["makespan"], 4),
        "slowdown, mean": formatting.number(row["slowdown_mean"]),
        "CPU used": formatting.percent(row["cpu_used"] or 0.0),
        "GPU used": "-" if row["gpu_used"] is None else formatting.percent(row["gpu_used"]),
        "resizes": formatting.number(row["resizes"]),
        "preemptions": formatting.number(row["preemptions"]),
        "migrations": formatting.number(row["migrations"]),
        "cost": formatting.amount(row["money"]),
        "jobs sooner than first": formatting.number(row["jobs_better"]),
        "jobs later than first": formatting.number(row["jobs_worse"]),
    }
