"""Traces by their names, as `coach simulate --trace` takes them, and their jobs in the event engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from coach import plugins
from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.core.policies.kinds.scheduling_policy import SchedulingPolicy
from coach.simulation.engine.cluster import Cluster
from coach.simulation.engine.event_engine import Engine
from coach.simulation.faults import Faults
from coach.simulation.metrics import OWN, Result
from coach.simulation.parallel import advancing
from coach.simulation.traces.draft import Draft, Trace
from coach.simulation.traces.kubernetes import read_kubernetes, read_kueue
from coach.simulation.traces.own import read_own
from coach.simulation.traces.philly import read_philly
from coach.simulation.traces.slurm import read_sacct
from coach.simulation.traces.swf import read_swf
from coach.simulation.traces.tables import read_helios, read_pai
from coach.simulation.traces.thesis import read_thesis

#: What reads each kind of trace, by its prefix. In published ones a job that cannot be simulated is left out, with the
#: reason; in Coach's own it is a mistake.
READERS: Mapping[str, Callable[[Draft], None]] = {
    "": read_own, "philly": read_philly, "helios": read_helios, "pai": read_pai, "swf": read_swf,
    "sacct": read_sacct, "kueue": read_kueue, "kubernetes": read_kubernetes, "thesis": read_thesis,
}  # fmt: skip


def replay(  # noqa: PLR0917 - a task for another process
    trace: str, nodes: tuple[Node, ...], policy: str, seed: int, lost: tuple[float, float], label: str = ""
) -> Result:
    """One run of a trace under a policy, called `label`.

    `lost`: mean seconds until a node is lost, a function. Raises UserError.
    """
    began = time.perf_counter()
    made = plugins.policy(policy, np.random.default_rng([seed, 1]))
    faults = Faults.of(seed, *lost)
    engine = Engine(Cluster.of(nodes), advancing(read_trace(trace).works), made, seed=seed, faults=faults)
    record = engine.run()
    placement = OWN if isinstance(made, SchedulingPolicy) else "gang"
    return Result.of(
        record, label or policy, seed, engine.events, time.perf_counter() - began, placement=placement
    )


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
