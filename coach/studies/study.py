"""What would happen to these job files on that cluster, under this policy? One run for each policy and seed.

All policies of a comparison run at one fidelity. `system`: in the reducer (`reducer_simulation`), with probes, fits,
budgets and gangs as on a real cluster. `trace`: in the event engine of the research package (`TRACE`), on the same jobs
with the epochs that each job's curve needs; policies know the true speeds, and there is no budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from coach import plugins
from coach.core.cluster import Allocation, Node, Resources
from coach.core.errors import UserError
from coach.core.jobs.actions import Action
from coach.core.jobs.events import AccountSet, Event
from coach.core.jobs.reasons import Reason, State
from coach.core.policies.api.policy import Policy
from coach.core.policies.static import StaticPolicy
from coach.core.spec.job import TrainingJob
from coach.handler.policies import chosen_policy
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.faults import Faults
from coach.simulation.metrics import OWN, Result
from coach.simulation.outcome import Ended
from coach.simulation.parallel import advance
from coach.simulation.recorder import Record, Row
from coach.simulation.reducer_simulation import Driver

#: The extension that simulates at `trace` fidelity, and the options that need it.
TRACE = ("trace-simulation", "--fidelity trace, --trace")


@dataclass(frozen=True)
class Question:
    """The inputs of a run except policy and seed. It is sent to worker processes."""

    jobs: tuple[TrainingJob, ...]
    dynamics: tuple[JobDynamics, ...]
    #: Seconds, one for each job; a run's seed does not change them.
    arrivals: tuple[float, ...]
    nodes: tuple[Node, ...]
    #: Mean seconds of training until a function is lost, and mean seconds until a node is lost.
    function_lost: float = math.inf
    node_lost: float = math.inf
    pause_seconds: float = 5.0
    #: Budgets over jobs, those that others are in first; at trace fidelity they count for nothing.
    accounts: tuple[AccountSet, ...] = ()


class Fidelity(StrEnum):
    """What a simulation leaves out."""

    SYSTEM = "system"  #: nothing that Coach decides: probes, fits, budgets, gangs
    TRACE = "trace"  #: probes, fits and budgets: policies know the true speeds and the remaining epochs


#: What each fidelity assumes, for the user.
ASSUMPTIONS = {
    Fidelity.SYSTEM: "probes yes, budgets and time limits yes; policies know speeds and remaining epochs as measured",
    Fidelity.TRACE: "probes no, budgets and time limits no; policies know the true speeds and remaining epochs",
}


def answer(
    question: Question, policy: str, seed: int, placement: str = "gang", fidelity: Fidelity = Fidelity.SYSTEM
) -> Result:
    """One run. Raises UserError for an unknown policy or placement, and for a pair that `placements` refuses.

    `placement`: one of `placements`.
    """
    began = time.perf_counter()
    if fidelity is Fidelity.TRACE:
        result: Result = plugins.extension(*TRACE).answer(question, policy, seed)
        return result
    rows = [(node.capacity.cpu, node.capacity.memory, node.capacity.gpu) for node in question.nodes]
    record = Record(np.array(rows, float).reshape(-1, 3), kinds=[node.kind for node in question.nodes])
    reasons, events = _system(question, policy, seed, record, placement)
    return replace(
        Result.of(record, policy, seed, events, time.perf_counter() - began, placement=placement),
        reasons=reasons,
    )


def placements(policy: str, asked: Sequence[str], fidelity: Fidelity = Fidelity.SYSTEM) -> list[str]:
    """The placements that a policy is run under, of those `asked` for: `OWN` for one that chooses nodes.

    Raises UserError for an unknown placement, and for a policy or a placement that this fidelity cannot simulate.
    """
    for placement in asked:
        plugins.placement(placement)
    if fidelity is Fidelity.TRACE:
        if list(asked) != ["gang"]:
            raise UserError(
                f"--placement {','.join(asked)}: at trace fidelity pods are placed as gangs; leave it out, or use "
                "job files or a --journal at --fidelity system"
            )
        return [plugins.extension(*TRACE).placement(policy)]
    made = plugins.policy(policy)
    if made.places_waiting_pods:
        raise UserError(
            f"--policy {policy} places pods of jobs that do not run yet, which live jobs do not have; nothing was "
            "simulated: use --fidelity trace, or compare static allocations with --placement default"
        )
    return [OWN] if made.chooses_nodes else list(asked)


def _system(
    question: Question, spec: str, seed: int, record: Record, placement: str
) -> tuple[dict[int, str] | None, int]:
    """Run in the reducer. Returns the jobs' reasons by number, and the number of events."""

    kinds = {node.name: node.kind for node in question.nodes}

    def use(at: float, more: Resources, node: str) -> None:
        by_kind = (more.gpu * (kind == kinds[node]) for kind in record.gpu_kinds)
        record.took(at, (more.cpu, more.memory, more.gpu, *by_kind))
        advance(len(driver.ended) / len(question.jobs))

    driver = _driver(question, spec, seed, placement, usage=use)
    names = {job.name: number for number, job in enumerate(question.jobs)}
    driver.run()
    for name, ended in driver.ended.items():
        record.add(_row(names[name], ended), name)
        if ended.reason is Reason.NEVER_FITS:
            record.never_fits[names[name]] = ended.final.message
    reasons = {names[name]: ended.reason.value for name, ended in driver.ended.items()}
    for name, left in driver.left.items():
        record.add(_row(names[name], left), name)
        reasons[names[name]] = f"not finished ({left.reason.value})"
    record.nodes_lost = driver.nodes_lost
    record.ended = driver.now
    return reasons, driver.events


def records_of(question: Question, policy: str, seed: int, placement: str, begin: float) -> list[Action | Event]:
    """What a journal would have of one run at `system` fidelity that begins at `begin`, in seconds since 1970."""
    records: list[Action | Event] = []
    _driver(question, policy, seed, placement, journal=records.append, begin=begin).run()
    return records


def _driver(question: Question, spec: str, seed: int, placement: str, *, begin: float = 0.0, **heard: Any) -> Driver:
    """The run with all jobs submitted. `heard`: Driver's `usage` and `journal`."""
    policy = plugins.policy(spec, np.random.default_rng([seed, 1]))
    faults = Faults.of(seed, question.node_lost, question.function_lost)
    make: Callable[..., Driver] = Driver
    default = None if placement == OWN else plugins.placement(placement)
    if default is not None:
        make = partial(plugins.extension("pod-by-pod", "--placement").PodByPodDriver, default=default)
    driver = make(question.nodes, policy, seed=seed, faults=faults, begin=begin, **heard)
    for account in question.accounts:
        driver.send(replace(account, at=begin))
    for job, dynamics, at in zip(question.jobs, question.dynamics, question.arrivals, strict=True):
        driver.submit_at(begin + at, job.name, with_policy(job, policy).to_json(), dynamics)
    return driver


def _row(number: int, ended: Ended) -> Row:
    # In a simulation only a deadlock's timeout cancels jobs.
    killed = ended.reason is Reason.CANCELLED_BY_USER
    unfinished = killed or ended.reason is Reason.NEVER_FITS
    job = ended.final
    last = job.epochs[-1].allocation if job.epochs else Allocation(0, 0)
    asked = job.spec.resources.total(job.minimum)
    return Row(
        job=number, kind=0, arrived=ended.submitted, started=ended.started,
        finished=math.nan if unfinished else ended.ended, executed=ended.trained or math.nan, work=ended.epochs_trained,
        preemptions=0, migrations=0, resizes=ended.changes, killed=killed, cpu_seconds=ended.held.cpu,
        memory_seconds=ended.held.memory, gpu_seconds=ended.held.gpu, money=ended.spent,
        reached=ended.state is State.SUCCEEDED, workers=last.workers, servers=last.servers, cpu_asked=asked.cpu,
        memory_asked=asked.memory, gpu_asked=asked.gpu,
    )  # fmt: skip


def with_policy(job: TrainingJob, policy: Policy) -> TrainingJob:
    """The job, with the allocation of a static policy as its own. Raises UserError where its limits forbid that."""
    return chosen_policy(policy.name, [job])[1][0] if isinstance(policy, StaticPolicy) else job


def arrival_times(text: str, jobs: int, seed: int) -> tuple[float, ...]:
    """`0` (all at once), `every:60` or `poisson:60` seconds. Raises UserError."""
    kind, _, number = text.partition(":")
    try:
        gap = float(number or (kind if kind.replace(".", "").isdigit() else "nan"))
    except ValueError:
        gap = math.nan
    if kind == "poisson" and gap > 0:
        gaps = np.random.default_rng([seed, 0]).exponential(gap, jobs)
        return tuple((np.cumsum(gaps) - gaps[0]).tolist()) if jobs else ()
    if gap >= 0 and kind != "poisson":
        return tuple(gap * number for number in range(jobs))
    raise UserError(f"--arrivals {text!r} is not understood; use every:60, poisson:120 (seconds) or 0")
