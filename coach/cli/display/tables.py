"""Tables of jobs and of epochs, as `ps`, `show` and the end of `run` print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from coach.cli.display.output import Header, table
from coach.core.cluster import Allocation
from coach.core.estimation.interval import CURVE_EPOCHS, Interval
from coach.core.jobs.reasons import Reason, State, doubt
from coach.core.money import to_money
from coach.report import formatting
from coach.report.row_types import EpochRow, ForecastRow, JobRow

#: States of a job that trains.
TRAINS = (State.PROBING, State.TRAINING)
#: Colours of states, in addition to their words.
STATE_STYLE = {
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.BUDGET_EXHAUSTED: "yellow",
    State.TARGET_UNREACHABLE: "yellow",
    State.CANCELLED: "yellow",
    State.TRAINING: "cyan",
    State.PROBING: "cyan",
}


def job_columns(rows: Sequence[JobRow], *, interval: bool = False) -> dict[str, list[str]]:
    """What `ps` and the live display show of each job, by header; `interval`: bounds of the remaining time too."""
    return {
        "NAME": [row.name for row in rows],
        "STATE": [row.state for row in rows],
        "EPOCH": [str(row.epoch) for row in rows],
        metric_header(rows): [progress(row, rows) for row in rows],
        "W×S": [size(row) for row in rows],
        "SPENT / BUDGET": [money(row) for row in rows],
        "ETA": [eta(row, interval=interval) for row in rows],
    }


def jobs_table(rows: Sequence[JobRow]) -> Table:
    """One row a job: what `ps` shows, with the reason for its state."""
    columns: dict[Header, Iterable[str | Text]] = {
        (head, "right") if head in {"EPOCH", "ETA"} else head: map(state, rows) if head == "STATE" else cells
        for head, cells in job_columns(rows).items()
    }
    return table({**columns, ("REASON", "wrap"): map(reason, rows)})


def state(row: JobRow) -> Text:
    """Its state, coloured."""
    return Text(row.state, STATE_STYLE.get(State(row.state), ""))


def metric_header(rows: Sequence[JobRow]) -> str:
    """`LOSS → TARGET`, or the metrics of the jobs' targets."""
    metrics = {row.metric for row in rows} or {"loss"}
    return f"{metrics.pop().upper() if len(metrics) == 1 else 'METRIC'} → TARGET"


def progress(row: JobRow, rows: Sequence[JobRow]) -> str:
    """`0.2131 → 0.2`; with the metric's name where the jobs have different ones."""
    now = formatting.score(row.value)
    name = f"{row.metric} " if len({other.metric for other in rows}) > 1 else ""
    return f"{name}{now} → {'best' if row.target is None else f'{row.target:g}'}"


def size(row: JobRow) -> str:
    """Workers x servers, as `2x1`; `2` without servers."""
    return formatting.UNKNOWN if row.workers is None else Allocation(row.workers, row.servers or 0).cell


def size_header(servers: bool) -> str:
    """The header of a column of allocations of one job, with servers or without."""
    return "W×S" if servers else "WORKERS"


def money(row: JobRow) -> str:
    """Money spent, of the budget."""
    return formatting.spent_of(
        to_money(row.spent),
        None if row.budget is None else to_money(row.budget),
        row.currency,
        row.account,
    )


def eta(row: JobRow, *, interval: bool = False) -> str:
    """The remaining time, with its bounds; before a curve says anything of it, that it is too early."""
    if row.eta is None or row.eta_low is None or row.eta_high is None:
        young = row.target is not None and row.epoch < CURVE_EPOCHS and State(row.state) in TRAINS
        if not young:
            return formatting.UNKNOWN
        return f"too early: after {CURVE_EPOCHS} epochs" if interval else "too early"
    if interval:
        return formatting.duration_interval(Interval(row.eta_low, row.eta, row.eta_high))
    return formatting.duration(row.eta)


def reason(row: JobRow) -> str:
    """The reason for its state, with the numbers where something is wrong or waits."""
    found = Reason(row.reason)
    if words := doubt(row.message):
        return words
    if found is Reason.STARTING_FUNCTIONS:
        return f"{found.words}: {row.message}"
    plain = State(row.state) in (State.SUCCEEDED, State.TRAINING, State.PROBING) or not row.message
    return found.words if plain else row.message


def epochs_table(rows: Sequence[EpochRow], currency: str, metric: str, *, wide: bool) -> Table:
    """One row an epoch: what `show` shows; predictions with their bounds where it is `wide`."""
    own = metric not in ("loss", "accuracy")
    measured = [row.value if own else row.accuracy for row in rows]
    gpu: dict[Header, list[str]] = {}
    if any(row.gpu_busy is not None for row in rows):
        busy = [formatting.UNKNOWN if row.gpu_busy is None else formatting.percent(row.gpu_busy) for row in rows]
        gpu = {("GPU", "right"): busy}
    return table(
        {
            ("EPOCH", "right"): [str(row.epoch) for row in rows],
            "KIND": [row.kind for row in rows],
            size_header(any(row.servers for row in rows)): [Allocation(row.workers, row.servers).cell for row in rows],
            ("LOSS", "right"): [formatting.score(row.loss) for row in rows],
            (metric.upper() if own else "ACCURACY", "right"): map(formatting.score, measured),
            ("SECONDS", "right"): [f"{row.seconds:.2f}" for row in rows],
            ("PREDICTED", "right"): [predicted(row, bounds=wide) for row in rows],
            ("OVERHEAD", "right"): [f"{row.outside_seconds:.2f}" for row in rows],
            **gpu,
            (f"COST {currency}", "right"): [formatting.amount(row.cost) for row in rows],
        }
    )


def forecasts_table(rows: Sequence[ForecastRow], currency: str) -> Table:
    """One row a forecast of a whole job, then what it took: what `show` and the end of `run` show."""
    times = [formatting.bounded(r.seconds, r.seconds_low, r.seconds_high, formatting.duration) for r in rows]
    costs = [formatting.bounded(r.cost, r.cost_low, r.cost_high, formatting.amount) for r in rows]
    early = [row.seconds is None and row.epoch <= CURVE_EPOCHS for row in rows]
    times = ["too early" if so else time for so, time in zip(early, times, strict=True)]
    shares = [formatting.percent(row.share) for row in rows]
    made = table(
        {("AT", "right"): shares, ("TIME (80 %)", "right"): times, (f"COST {currency} (80 %)", "right"): costs}
    )
    made.add_row("real", formatting.duration(rows[-1].actual_seconds), formatting.amount(rows[-1].actual_cost))
    return made


def predicted(row: EpochRow, *, bounds: bool) -> str:
    """Predicted seconds, with their bounds."""
    if row.predicted_seconds is None:
        return formatting.UNKNOWN
    spread = f" ({row.predicted_seconds_low:.2f}-{row.predicted_seconds_high:.2f})" if bounds else ""
    return f"{row.predicted_seconds:.2f}{spread}"
