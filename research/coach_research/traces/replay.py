"""Traces by their names, as `coach simulate --trace` takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path

from coach.core.errors import UserError
from coach_research.traces.draft import Draft, Trace
from coach_research.traces.kubernetes import read_kubernetes, read_kueue
from coach_research.traces.own import read_own
from coach_research.traces.philly import read_philly
from coach_research.traces.slurm import read_sacct
from coach_research.traces.swf import read_swf
from coach_research.traces.tables import read_helios, read_pai
from coach_research.traces.thesis import read_thesis

#: What reads each kind of trace, by its prefix. In published ones a job that cannot be simulated is left out, with the
#: reason; in Coach's own it is a mistake.
READERS: Mapping[str, Callable[[Draft], None]] = {
    "": read_own, "philly": read_philly, "helios": read_helios, "pai": read_pai, "swf": read_swf,
    "sacct": read_sacct, "kueue": read_kueue, "kubernetes": read_kubernetes, "thesis": read_thesis,
}  # fmt: skip


def read_trace(trace: str) -> Trace:
    """The jobs of `[KIND:]FILE`, plain or compressed by gzip; without KIND the file's ending counts.

    Raises UserError, with the file, line and column, for whatever is wrong in the file.
    """
    kind, path = _resolve(trace)
    draft = Draft(path)
    with draft.opened:
        READERS[kind](draft)
    return draft.finish()


def _resolve(trace: str) -> tuple[str, Path]:
    """The kind of a trace, and its file. Raises UserError."""
    prefix, colon, name = trace.partition(":")
    if not colon or Path(trace).is_file():
        prefix, name = "", trace
    if prefix not in READERS:
        close = get_close_matches(prefix, READERS, 1)
        known = ", ".join(f"{kind}:" for kind in READERS if kind)
        hint = f"did you mean {close[0]}:{name}?" if close else f"use {known} or none"
        raise UserError(f"--trace {trace}: there is no kind {prefix!r}; {hint}")
    path = Path(name)
    if not path.is_file():
        raise UserError(f"--trace {trace}: there is no file {name or '(no name)'}")
    if prefix:
        return prefix, path
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending == "json":
        raise UserError(f"--trace {trace}: did you mean philly:{name}? A file without a kind is Coach's CSV")
    return ("swf" if ending == "swf" else ""), path
