"""A run as tables: a row a job, and what is used, asked for and waiting over time. For files, and for pandas:

pandas.DataFrame(job_rows(result))
"""

from __future__ import annotations

import csv
import importlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coach.core.errors import UserError
from coach.report.export import write
from coach.report.simulation.rows import SimulatedJobRow, SimulatedTimeRow
from coach.simulation.metrics import Result
from coach.simulation.recorder import FloatArray

#: The kinds of files.
ENDINGS = (".csv", ".parquet")

RESOURCES = ("cpu", "memory", "gpu")

#: Columns of a row of a job that are whole numbers, or true or false.
WHOLE, FLAGS = ("preemptions", "migrations", "resizes", "workers", "servers"), ("reached", "killed")


def job_rows(result: Result) -> Iterator[SimulatedJobRow]:
    """A row for each job of a run, in the order of its numbers. Seconds, resource-seconds; None: it has none.

    `start` is its first, `end` its last; `wait` is the time between arrival and end in which it was not executed at its
    speed, `slowdown` 1 + wait / execution. `workers` and `servers` are its last allocation.
    """
    of = result.columns
    kinds = {number: kind for kind, number in result.kinds.items()}
    seconds = {
        "arrival": of["arrived"], "start": of["started"], "end": of["finished"], "wait": result.waiting,
        "slowdown": result.slowdown, "executed": of["executed"],
        **{f"{each}_seconds": of[f"{each}_seconds"] for each in RESOURCES}, "cost": of["money"],
    }  # fmt: skip
    columns = {
        **{
            name: [value if math.isfinite(value) else None for value in each.tolist()] for name, each in seconds.items()
        },
        **{name: of[name].astype(int).tolist() for name in WHOLE},
        **{name: of[name].astype(bool).tolist() for name in FLAGS},
    }
    for place, number in enumerate(of["job"].astype(int).tolist()):
        why = result.never_fits.get(number, "") if result.reasons is None else result.reasons.get(number, "")
        row: Any = {
            "policy": result.policy,
            "placement": result.placement,
            "seed": result.seed,
            "job": result.names.get(number, str(number)),
            "kind": kinds.get(int(of["kind"][place]), ""),
            **{name: values[place] for name, values in columns.items()},
            "why": why,
        }
        yield row


def timeline_rows(result: Result) -> Iterator[SimulatedTimeRow]:
    """What is used, asked for and waiting from `time` on, as means until the next row's `time`.

    `cpu_used`, ...: cores, GiB and devices that jobs hold. `cpu_asked`, ...: of the smallest allocations of all jobs
    that are there, from their arrival to their end. `jobs`: how many those are; `waiting`: how many of them have not
    started yet. `gpu_used_by_kind`: the devices of each kind that jobs hold, where nodes have several; in a file each
    kind has a column, such as `gpu_used_A100`.
    """
    of, times = result.columns, result.times
    edges = np.append(times, max(result.ended, times[-1] if len(times) else 0.0))
    there = ~np.isin(of["job"], list(result.never_fits))
    until = np.where(np.isnan(of["finished"]), result.ended, of["finished"])
    begun = np.where(np.isnan(of["started"]), until, of["started"])
    one = np.ones(len(until))
    columns = {
        **{
            f"{each}_used": share * have
            for each, share, have in zip(RESOURCES, result.used.T, result.capacity, strict=False)
        },
        **{f"{each}_asked": _mean(edges, of["arrived"], until, of[f"{each}_asked"] * there) for each in RESOURCES},
        "jobs": _mean(edges, of["arrived"], until, one * there),
        "waiting": _mean(edges, of["arrived"], begun, one * there),
    }
    values = {name: np.nan_to_num(each).tolist() for name, each in columns.items()}
    by_kind = (result.used * result.capacity)[:, len(RESOURCES) :].tolist()
    for place, at in enumerate(times.tolist()):
        row: Any = {
            "policy": result.policy,
            "placement": result.placement,
            "seed": result.seed,
            "time": at,
            **{name: each[place] for name, each in values.items()},
            "gpu_used_by_kind": dict(zip(result.gpu_kinds, by_kind[place], strict=True)),
        }
        yield row


def _mean(edges: FloatArray, start: FloatArray, end: FloatArray, amount: FloatArray) -> FloatArray:
    """The mean between each two `edges` of what is there: each `amount` from its `start` to its `end`."""
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(np.concatenate([amount, -amount])[order])
    if not len(at):
        return np.zeros(len(edges) - 1)
    so_far = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    widths = np.diff(edges)
    mean: FloatArray = np.divide(
        np.diff(np.interp(edges, at, so_far)), widths, out=np.zeros(len(widths)), where=widths > 0
    )
    return mean


def check_ending(path: Path, option: str) -> None:
    """Raises UserError for a file that `write_rows` cannot write."""
    if path.suffix not in ENDINGS:
        raise UserError(f"{option} {path}: use a name that ends in .csv or .parquet; nothing was simulated")
    if path.suffix == ".parquet":
        _arrow(path, option)
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}; nothing was simulated")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a table as CSV, or Parquet, as the file's name ends. Raises UserError."""
    found = [_flat(row) for row in rows]
    try:
        return write(path, _csv(found) if path.suffix == ".csv" else _parquet(path, found))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A column for each kind of GPUs."""
    by_kind = {f"gpu_used_{kind or 'other'}": count for kind, count in row.get("gpu_used_by_kind", {}).items()}
    return {name: value for name, value in row.items() if name != "gpu_used_by_kind"} | by_kind


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    out = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    return text.getvalue().encode()


def _parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> bytes:
    arrow, parquet = _arrow(path, "")
    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(list(rows)), file)
    return file.getvalue()


def _arrow(path: Path, option: str) -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        wanted = f"{option} {path}".strip()
        raise UserError(
            f"{wanted}: Parquet needs pyarrow: pip install pyarrow; or name a file that ends in .csv"
        ) from error
