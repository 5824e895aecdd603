"""What would happen to these job files on that cluster, under this policy? One run for each policy and seed.

All policies of a comparison run at one fidelity. `system`: in the reducer (`reducer_simulation`), with probes, fits,
budgets and gangs as on a real cluster. `trace`: in the engine (`event_engine`), on the same jobs with the epochs that
each job's curve needs; policies know the true speeds, and there is no budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from coach import plugins
from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.errors import UserError
from coach.core.gang.kube_scheduler import parse_placement
from coach.core.jobs.actions import Action
from coach.core.jobs.events import AccountSet, Event
from coach.core.jobs.reasons import Reason, State
from coach.core.policies.api.policy import Policy
from coach.core.policies.api.scheduling import Plan, totals
from coach.core.policies.kinds.scheduling_policy import SchedulingPolicy
from coach.core.policies.static import StaticPolicy
from coach.core.spec.job import PolicyName, TrainingJob
from coach.handler.policies import allowed
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.engine.cluster import Cluster
from coach.simulation.engine.event_engine import Engine
from coach.simulation.engine.recorder import Record, Row
from coach.simulation.faults import Faults
from coach.simulation.metrics import OWN, Result
from coach.simulation.outcome import Ended
from coach.simulation.parallel import advance, advancing
from coach.simulation.reducer_simulation import Driver
from coach.simulation.workload import Work

#: A job whose curve never reaches its target trains this many epochs if its file has no `maxEpochs`.
MAX_EPOCHS = 1000


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
    record = Record(Cluster.of(question.nodes))
    run = _system if fidelity is Fidelity.SYSTEM else _trace
    reasons, events = run(question, policy, seed, record, placement)
    result = Result.of(record, policy, seed, events, time.perf_counter() - began, placement=placement)
    return replace(result, reasons=reasons)


def placements(policy: str, asked: Sequence[str], fidelity: Fidelity = Fidelity.SYSTEM) -> list[str]:
    """The placements that a policy is run under, of those `asked` for: `OWN` for one that chooses nodes.

    Raises UserError for an unknown placement, and for a policy or a placement that this fidelity cannot simulate.
    """
    for placement in asked:
        parse_placement(placement)
    if fidelity is Fidelity.TRACE:
        if list(asked) != ["gang"]:
            raise UserError(
                f"--placement {','.join(asked)}: at trace fidelity pods are placed as gangs; leave it out, or use "
                "job files or a --journal at --fidelity system"
            )
        return [OWN] if isinstance(plugins.policy(policy), SchedulingPolicy) else ["gang"]
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

    def use(at: float, more: Resources) -> None:
        record.took(at, (more.cpu, more.memory, more.gpu))
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
    record.end(driver.now, ())
    return reasons, driver.events


def records_of(
    question: Question, policy: str, seed: int, placement: str, begin: float
) -> list[Action | Event]:
    """What a journal would have of one run at `system` fidelity that begins at `begin`, in seconds since 1970."""
    records: list[Action | Event] = []
    _driver(question, policy, seed, placement, journal=records.append, begin=begin).run()
    return records


def _driver(
    question: Question, spec: str, seed: int, placement: str, *, begin: float = 0.0, **heard: Any
) -> Driver:
    """The run with all jobs submitted. `heard`: Driver's `usage` and `journal`."""
    policy = plugins.policy(spec, np.random.default_rng([seed, 1]))
    faults = Faults.of(seed, question.node_lost, question.function_lost)
    default = None if placement == OWN else parse_placement(placement)
    driver = Driver(question.nodes, policy, seed=seed, faults=faults, default=default, begin=begin, **heard)
    for account in question.accounts:
        driver.send(account.at_time(begin))
    for job, dynamics, at in zip(question.jobs, question.dynamics, question.arrivals, strict=True):
        driver.submit_at(begin + at, job.name, _with_policy(job, policy).to_json(), dynamics)
    return driver


def _row(number: int, ended: Ended) -> Row:
    # In a simulation only a deadlock's timeout cancels jobs.
    killed = ended.reason is Reason.CANCELLED_BY_USER
    unfinished = killed or ended.reason is Reason.NEVER_FITS
    return Row(
        job=number, kind=0, arrived=ended.submitted, started=ended.started,
        finished=math.nan if unfinished else ended.ended, executed=ended.trained or math.nan, work=ended.epochs_trained,
        preemptions=0, migrations=0, resizes=ended.changes, killed=killed, cpu_seconds=ended.held.cpu,
        memory_seconds=ended.held.memory, gpu_seconds=ended.held.gpu, money=ended.spent,
        reached=ended.state is State.SUCCEEDED,
    )  # fmt: skip


def _with_policy(job: TrainingJob, policy: Policy) -> TrainingJob:
    """The job, with the allocation of a static policy as its own. Raises UserError where its limits forbid that."""
    if not isinstance(policy, StaticPolicy):
        return job
    workers, servers = policy.allocation
    limits = job.spec
    if not limits.framework.has_servers:
        servers = 0  # such a job takes the workers alone
    if not (
        limits.workers.min <= workers <= limits.workers.max
        and limits.servers.min <= servers <= limits.servers.max
    ):
        raise UserError(
            f"{policy.name} is outside the limits of job {job.name}, which allow {allowed(limits)}; nothing was "
            "simulated: give others, or change the job file"
        )
    document = job.to_json()
    document["spec"]["policy"] = {"name": PolicyName.STATIC.value, "workers": workers, "servers": servers}
    return TrainingJob.from_json(document)


def _trace(
    question: Question, spec: str, seed: int, record: Record, _placement: str
) -> tuple[dict[int, str] | None, int]:
    """Run in the engine. Returns no reasons, and the number of events."""
    policy = plugins.policy(spec, np.random.default_rng([seed, 1]))
    works = [
        as_work(_with_policy(job, policy), dynamics, at, question.pause_seconds)
        for job, dynamics, at in zip(question.jobs, question.dynamics, question.arrivals, strict=True)
    ]
    order = sorted(range(len(works)), key=lambda number: works[number].arrival)
    book = question.jobs[0].spec.price_book
    record.prices = (book.vcpu_second, book.gib_second, book.gpu_second)
    engine = Engine(
        Cluster.of(question.nodes),
        advancing([works[number] for number in order]),
        policy,
        record=record,
        seed=seed,
        faults=Faults.of(seed, question.node_lost, question.function_lost),
    )
    engine.run()
    record.renumber(order)
    return None, engine.events


def as_work(job: TrainingJob, dynamics: JobDynamics, arrival: float, pause: float) -> Work:
    """The job for the engine: the whole epochs that its curve needs to reach the target."""
    of, limits = job.spec.resources.of, job.spec.limits

    def speed(plan: Plan) -> float:
        at = totals(plan)
        rate = dynamics.speed(*at)
        if rate <= 0:
            return 0.0
        return 1.0 / (1.0 / rate + dynamics.same_group_seconds + dynamics.evaluating(*at))

    return Work(
        arrival=arrival,
        work=float(epochs_needed(job, dynamics)),
        worker=_vector(of(Role.WORKER)),
        server=_vector(of(Role.SERVER)),
        scheduler=_vector(of(Role.SCHEDULER)),
        name=job.name,
        kind=job.spec.job_class.value,
        priority=job.spec.priority,
        minimum=Allocation(*limits.smallest),
        maximum=Allocation(*limits.largest),
        speed=speed,
        loss=dynamics.loss,
        loss_noise=dynamics.loss_noise,
        grace=job.spec.grace_period,
        rescale_seconds=dynamics.pod_seconds + dynamics.new_group_seconds,
        migration_seconds=pause,
        checkpoint=1.0,
    )


def _vector(resources: Resources) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([resources.cpu, resources.memory, resources.gpu])


def epochs_needed(job: TrainingJob, dynamics: JobDynamics) -> int:
    """Whole epochs until the target has held for `epochsInARow`, without noise; at most `maxEpochs`.

    `maxEpochs` or MAX_EPOCHS without a target: nothing costs money here.
    """
    target = job.spec.target
    max_epochs = job.spec.max_epochs or MAX_EPOCHS
    if target is None:
        return max_epochs
    hits = 0
    for epoch in range(1, max_epochs + 1):
        accuracy = dynamics.accuracy(epoch) if dynamics.accuracy is not None else None
        value = accuracy if target.name == "accuracy" else dynamics.loss(epoch)
        hits = hits + 1 if target.reached(value) else 0
        if hits >= target.epochs_in_a_row:
            return epoch
    return max_epochs


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
