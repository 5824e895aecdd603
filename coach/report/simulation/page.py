"""The answer of a simulation as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl

from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.report.export import write
from coach.report.figures.simulation import simulated
from coach.report.figures.style import STYLE, rendered
from coach.report.formatting import duration, number, percent
from coach.simulation.metrics import Result

CSS = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}table{border-collapse:collapse}
th,td{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}
svg{max-width:100%;height:auto}code{background:#f3f3f3;padding:.1rem .3rem}li{margin:.2rem 0}"""


def write_page(  # noqa: PLR0917
    path: Path,
    rows: Mapping[str, Mapping[str, Any]],
    results: Mapping[str, Sequence[Result]],
    clusters: Mapping[str, Sequence[Node]],
    notes: Sequence[str],
    command: str,
) -> Path:
    """Write the page. `rows`: the measures of each policy, the first to compare with. Raises UserError."""
    with mpl.rc_context(cast(Any, STYLE)):
        figure = rendered(simulated(results), "svg").decode()
    svg = figure[figure.index("<svg") :]
    first = next(iter(rows))
    shown = {words: text for words, text in MEASURES.items() if any(text(row) != "-" for row in rows.values())}
    table = [
        "<table><tr><th></th>" + "".join(f"<th>{words}</th>" for words in shown) + "</tr>",
        *(
            f"<tr><td>{escape(label)}</td>" + "".join(f"<td>{escape(of(row))}</td>" for of in shown.values()) + "</tr>"
            for label, row in rows.items()
        ),
        "</table>",
    ]
    page = "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Coach: a simulated cluster</title>',
            f"<style>{CSS}</style></head><body>",
            "<h1>What these jobs would take</h1>",
            "<ul>",
            *(f"<li>{sentence}</li>" for sentence in _sentences(rows, first)),
            "</ul>",
            *table,
            "<h2>When jobs end, and how full the cluster is</h2>",
            svg,
            "<h2>The cluster</h2><ul>",
            *(f"<li>{escape(text)}: {escape(_cluster(nodes))}</li>" for text, nodes in clusters.items()),
            "</ul><h2>What was read, and what is assumed</h2><ul>",
            *(f"<li>{escape(note)}</li>" for note in notes),
            "</ul><h2>The same again</h2>",
            f"<p><code>{escape(command)}</code></p></body></html>\n",
        ]
    )
    try:
        return write(path, page.encode())
    except OSError as error:
        raise UserError(f"--report {path}: cannot be written: {error.strerror or error}") from error


def _seconds(name: str) -> Any:
    return lambda row: "-" if row[name] is None else duration(row[name])


def _share(name: str) -> Any:
    return lambda row: "-" if row[name] is None else percent(row[name])


MEASURES: dict[str, Any] = {
    "jobs that end": lambda row: f"{number(row['reached'])} of {number(row['jobs'])}",
    "wait, mean": _seconds("waiting_mean"),
    "from arrival to end, mean": _seconds("completion_mean"),
    "half of the jobs end within": _seconds("completion_p50"),
    "95 % of the jobs end within": _seconds("completion_p95"),
    "until all have ended": _seconds("makespan"),
    "cores held": _share("cpu_used"),
    "GPUs held": _share("gpu_used"),
    "preemptions": lambda row: number(row["preemptions"]),
}


def _sentences(rows: Mapping[str, Mapping[str, Any]], first: str) -> list[str]:
    """One sentence for each policy: how much sooner or later its jobs end than under the first."""
    base = rows[first]["completion_mean"]
    said = [
        f"Under <b>{escape(first)}</b> a job takes {MEASURES['from arrival to end, mean'](rows[first])} on average."
    ]
    for label, row in rows.items():
        if label != first and base and row["completion_mean"] is not None:
            change = row["completion_mean"] / base - 1.0
            way = "as long" if abs(change) < 0.005 else f"{percent(abs(change))} {'longer' if change > 0 else 'less'}"
            said.append(
                f"Under <b>{escape(label)}</b> it takes {way}; {number(row['jobs_better'])} jobs end sooner and "
                f"{number(row['jobs_worse'])} later."
            )
    return said


def _cluster(nodes: Sequence[Node]) -> str:
    kinds: dict[tuple[float, float, float], int] = {}
    for node in nodes:
        has = node.capacity.cpu, node.capacity.memory, node.capacity.gpu
        kinds[has] = kinds.get(has, 0) + 1
    return ", ".join(
        f"{count} x {number(cpu, 4)} cores, {number(memory, 4)} GiB" + (f", {number(gpu)} GPUs" if gpu else "")
        for (cpu, memory, gpu), count in kinds.items()
    )
