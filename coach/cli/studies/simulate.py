"""`coach simulate`."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, Output, console, fields, print_csv, print_json, table

if TYPE_CHECKING:
    from coach.core.cluster import Node
    from coach.simulation.metrics import Result

Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="Job files; each may have several jobs.")
]
Nodes = Annotated[
    str,
    typer.Option(
        metavar="COUNTxCORES[xGIB[xGPUS]]|FILE",
        help="Nodes such as 10x32 or 84x32x256x8 (4 GiB a core, no GPU if not said), or a cluster file.",
    ),
]
Policies = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAMES",
        help="Policies to compare, a comma between; see docs/reference/policies.md",
    ),
]
Placements = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="NAMES",
        help="How pods come to nodes where the policy does not say it, a comma between: gang (a job's together), "
        "default (one by one, as the stock kube-scheduler does), default:deadlock_timeout=SECONDS.",
    ),
]
Arrivals = Annotated[
    str, typer.Option(metavar="HOW", help="When jobs come: 0 (all at once), every:60, poisson:120 (seconds).")
]
Speeds = Annotated[
    str,
    typer.Option(
        metavar="MODEL|FILE:MODEL",
        help="Measured speeds for jobs that no journal knows: a model of the table that comes with Coach, or of yours.",
    ),
]
Figure = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Where the figure goes (png, svg, pdf), or the word none. If not said: simulation.png here, "
        "beside a table; none beside json and csv.",
    ),
]


def command(  # noqa: PLR0917 - they are options
    files: Files = None,
    nodes: Nodes = "4x8",
    policy: Policies = "coach",
    placement: Placements = "gang",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy, with other noise and faults.")] = 1,
    seed: Annotated[int, typer.Option(help="The first of them; arrivals are drawn from it.")] = 1,
    arrivals: Arrivals = "0",
    trace: Annotated[
        str,
        typer.Option(
            metavar="[KIND:]FILE",
            help="A CSV of jobs instead of job files: ours, philly:, helios:, pai:, thesis:.",
        ),
    ] = "",
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The jobs of real runs instead of job files: a journal.db, or a COACH_HOME; each comes when it came.",
        ),
    ] = None,
    speeds: Speeds = "resnet-50",
    epoch_seconds: Annotated[
        float,
        typer.Option(
            min=0.001, help="An epoch with one worker and one server, for jobs that no journal knows."
        ),
    ] = 10.0,
    epochs: Annotated[
        float, typer.Option(min=1, help="Epochs to the target, for jobs that no journal knows.")
    ] = 20.0,
    assume: Annotated[
        bool, typer.Option("--assume", help="Do not look into the journals of real runs.")
    ] = False,
    function_lost: Annotated[
        float, typer.Option(min=0, help="Mean seconds of training until a function dies; 0: none dies.")
    ] = 0.0,
    node_lost: Annotated[
        float,
        typer.Option(
            min=0, help="Mean seconds until a node is lost, for ten minutes on average; 0: none is lost."
        ),
    ] = 0.0,
    processes: Annotated[
        int, typer.Option(min=0, help="Runs at the same time; 0: as many as there are cores.")
    ] = 0,
    figure: Figure = None,
    output: Output = Format.TABLE,
) -> None:
    """Ask what would happen on any cluster, in virtual time.

    Speeds and learning curves are those that the journals have of the same model and data; for jobs that never ran,
    those of --speeds, --epoch-seconds and --epochs. The answer is a table, and a figure in simulation.png.
    Ctrl-C keeps the runs that are done.

    \b
    Examples:
      coach simulate jobs/*.yaml --nodes 10x32 --policy coach,drf,static:2x2
      coach simulate jobs/*.yaml --nodes 3x8 --policy coach --placement gang,default
      coach simulate --trace jobs.csv --nodes 84x32x256x8 --policy fifo,fitgpp --seeds 4
      coach simulate --journal ~/.local/share/coach --nodes 1x4 --policy coach,drf
    """
    from coach.core.errors import UserError
    from coach.simulation.parallel import gather

    names = [name.strip() for name in policy.split(",") if name.strip()]
    asked = list(dict.fromkeys(name.strip() for name in placement.split(",") if name.strip()))
    if not asked:
        raise UserError("--placement needs a name: gang, default, or both with a comma between")
    if not names or sum(map(bool, (files, trace, journal))) != 1:
        raise UserError(
            "simulate needs job files, a --trace or a --journal, and at least one --policy; nothing was simulated"
        )
    cluster = parse_cluster(nodes)
    until_node, until_function = node_lost or float("inf"), function_lost or float("inf")
    screen = console(stderr=True)
    if trace:
        from coach.simulation.traces import replay

        if asked != ["gang"]:
            raise UserError(
                f"--placement {placement} is for job files and --journal; a --trace is simulated with gang alone"
            )
        kinds = [(name, "gang") for name in names]

        tasks: list[tuple[Any, tuple[Any, ...]]] = [
            (replay, (trace, cluster, name, seed + number, (until_node, until_function)))
            for name, _ in kinds
            for number in range(seeds)
        ]
    else:
        from coach.studies.simulation_inputs import distinct, lived, truths_of
        from coach.studies.study import Question, answer, arrival_times, placements

        kinds = [(name, one) for name in names for one in placements(name, asked)]

        if journal is not None:
            past = lived(journal)
            jobs, truths, came, origins = past.jobs, past.truths, past.arrivals, past.origins
        else:
            from coach.jobfiles.load import load_jobs

            jobs = distinct([one.spec for one in load_jobs(files or [], check_files=False)])
            truths, origins = truths_of(jobs, speeds, epoch_seconds, epochs, assume)
            came = arrival_times(arrivals, len(jobs), seed)
        for words, called in origins.items():
            screen.print(f"{', '.join(called)}: {words}", soft_wrap=True)
        question = Question(
            tuple(jobs), tuple(truths), came, cluster, node_lost=until_node, function_lost=until_function
        )
        tasks = [
            (answer, (question, name, seed + number, kind)) for name, kind in kinds for number in range(seeds)
        ]
    with progress(len(tasks)) as advance:
        results, interrupted = gather(tasks, processes=processes or None, done=lambda *_: advance())
    by_label: dict[str, list[Result]] = {}
    for result in results:
        if result is not None:
            by_label.setdefault(result.label, []).append(result)
    _show(by_label, output)
    if figure is None:
        figure = "simulation.png" if output is Format.TABLE else "none"
    if by_label and figure != "none":
        from coach.report.simulation_figure import plot_simulated

        screen.print(f"figure: {plot_simulated(by_label, Path(figure))}", soft_wrap=True)
    if interrupted:
        raise KeyboardInterrupt


def parse_cluster(text: str) -> tuple[Node, ...]:
    """Nodes that need not exist. Raises UserError."""
    import re

    from coach.core.cluster import Node, Resources
    from coach.core.errors import UserError
    from coach.platforms.local.cluster import parse_nodes

    found = re.fullmatch(
        r"([1-9][0-9]*)x([0-9]+(?:\.[0-9]+)?)(?:x([0-9]+(?:\.[0-9]+)?))?(?:x([0-9]+))?", text
    )
    if not found:
        if "x" in text and not Path(text).exists():
            raise UserError(
                f"--nodes {text}: right would be COUNTxCORES, COUNTxCORESxGIB, COUNTxCORESxGIBxGPUS or a cluster file"
            )
        return parse_nodes(text)
    count, cores = int(found[1]), float(found[2])
    if not (count <= 10_000 and cores > 0):
        raise UserError(f"--nodes {text}: 1 to 10000 nodes with more than no core each, such as 10x32")
    each = Resources(cores, float(found[3] or 4 * cores), float(found[4] or 0))
    return tuple(Node(f"node-{n:04d}", each) for n in range(count))


def progress(total: int, words: str = "simulating") -> Any:
    """A bar on the terminal, if there is one: a context that gives what advances it."""
    import contextlib

    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    @contextlib.contextmanager
    def bar() -> Any:
        screen = console(stderr=True)
        with Progress(*Progress.get_default_columns()[:3], MofNCompleteColumn(), TimeRemainingColumn(),
                      console=screen, transient=True, disable=not screen.is_terminal) as live:  # fmt: skip
            task = live.add_task(words, total=total)
            yield lambda: live.advance(task)

    return bar()


def _show(results: dict[str, list[Result]], output: Format) -> None:
    """The metrics of each policy and placement: means over its runs; better and worse against the first row."""
    from coach.report import formatting
    from coach.simulation.metrics import beside, mean_of, measure

    rows: list[dict[str, Any]] = []
    first = next(iter(results.values()), [])
    for runs in results.values():
        measured = [measure(run) for run in runs]
        row: dict[str, Any] = {
            "policy": runs[0].policy,
            "placement": runs[0].placement,
            "runs": len(runs),
        }
        for name in fields(measured[0]):
            value = mean_of(measured, name)
            row[name] = None if math.isnan(value) else value
        pairs = [beside(run, base) for run in runs for base in first if base.seed == run.seed]
        row["jobs_better"] = sum(pair.better for pair in pairs) / len(pairs) if pairs else None
        row["jobs_worse"] = sum(pair.worse for pair in pairs) / len(pairs) if pairs else None
        rows.append(row)
    if output is Format.JSON:
        print_json(rows)
    elif output is Format.CSV:
        print_csv(list(rows[0]) if rows else ["policy", "placement"], rows)
    else:
        moved = any(row["migrations"] for row in rows)
        placed = any(row["placement"].startswith("default") for row in rows)
        right = "right"
        made = table(
            "POLICY", *([("PLACEMENT", "wrap")] if placed else []),
            ("REACHED", right), ("MEAN S", right), ("P50 S", right), ("P95 S", right), ("ALL S", right),
            ("SLOWED", right), ("CPU", right), ("CHANGED", right), ("TAKEN OFF", right),
            *([("MOVED", right)] if moved else []), ("COST", right), ("BETTER/WORSE", right),
        )  # fmt: skip
        for row in rows:
            made.add_row(
                row["policy"], *([row["placement"]] if placed else []),
                f"{formatting.number(row['reached'])}/{formatting.number(row['jobs'])}",
                *(formatting.number(row[name], 4) for name in
                  ("completion_mean", "completion_p50", "completion_p95", "makespan")),
                formatting.number(row["slowdown_mean"]), formatting.percent(row["cpu_used"] or 0.0),
                formatting.number(row["resizes"]), formatting.number(row["preemptions"]),
                *([formatting.number(row["migrations"])] if moved else []), formatting.amount(row["money"]),
                f"{formatting.number(row['jobs_better'])}/{formatting.number(row['jobs_worse'])}",
            )  # fmt: skip
        screen = console()
        screen.print(made)
        for label, runs in results.items():
            ends = Counter(reason for run in runs for reason in (run.reasons or {}).values())
            if ends.keys() - {"TargetReached"}:
                told = ", ".join(f"{count} {reason}" for reason, count in ends.most_common())
                screen.print(f"{label}: of {ends.total()} jobs in all runs: {told}", soft_wrap=True)
