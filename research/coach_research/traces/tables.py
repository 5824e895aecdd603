"""Published traces that are CSV tables: those of Helios, and of Alibaba's GPU cluster (PAI)."""

from __future__ import annotations

from coach_research.traces.clock import UTC, seconds_of
from coach_research.traces.draft import MAX_PODS, Draft, task, vector
from coach_research.traces.text import AMOUNT, ANY, Number, Row, rows

TASKS = Number(f"a number up to {MAX_PODS}", least=-1, most=MAX_PODS)


def read_helios(draft: Draft) -> None:
    """`cluster_log.csv` of the Helios traces: requests are of all of a job's nodes together."""
    for row in rows(draft, "helios"):
        nodes = row.number("node_num", TASKS, 0)
        each = max(1, int(nodes))
        _keep(
            draft,
            row,
            row.cells["state"],
            seconds_of(draft, row.line, "submit_time", row.cells["submit_time"], UTC),
            nodes,
            (row.number("cpu_num", AMOUNT, 0) / each, row.number("gpu_num", AMOUNT, 0) / each),
        )


def read_pai(draft: Draft) -> None:
    """The job table of the simulator published with Alibaba's GPU trace of 2020; requests are of each instance."""
    for row in rows(draft, "pai"):
        _keep(
            draft,
            row,
            row.cells.get("user", ""),
            row.number("submit_time", ANY) if row.cells["submit_time"] else None,
            row.number("num_inst", TASKS, 0),
            (row.number("num_cpu", AMOUNT, 0), row.number("num_gpu", AMOUNT, 0)),
        )


def _keep(  # noqa: PLR0917
    draft: Draft, row: Row, kind: str, arrival: float | None, tasks: float, each: tuple[float, float]
) -> None:
    """The job of a row, or why it is left out."""
    name = row.cells["job_id"] or f"row-{row.line}"
    seconds = row.number("duration", ANY, 0)
    reasons = []
    if name in draft.lines:
        reasons.append("a job before it has its number")
    if arrival is None:
        reasons.append("its submit time is not known")
    if seconds <= 0:
        empty = not row.cells["duration"]
        reasons.append("its duration is " + ("not known" if empty else "negative" if seconds < 0 else "0"))
    if arrival is None or reasons:
        draft.leave_out(name, row.line, reasons)
        return
    assumed = [] if tasks >= 1 else ["one task, as their number is not known"]
    if not any(each):
        assumed.append("it requests nothing, as the trace says")
    draft.keep(task(name, kind, arrival, seconds, max(1, int(tasks)), vector(each[0], 0, each[1])), row.line, assumed)
