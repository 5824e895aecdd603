"""`coach simulate` at trace fidelity: jobs of files, or of a trace, in the event engine.

Policies know the true speeds and the remaining epochs; there are no probes and no budgets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from coach import plugins
from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.errors import UserError
from coach.core.policies.fifo import FifoPolicy
from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.faults import Faults
from coach.simulation.metrics import OWN, Result
from coach.simulation.parallel import advancing
from coach.studies.study import Question, with_policy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.engine.record import EngineRecord
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.traces.draft import shown
from coach_research.traces.replay import read_trace
from coach_research.traces.summary import document, summary
from coach_research.workload import Plan, Work, totals

#: A job whose curve never reaches its target trains this many epochs if its file has no `maxEpochs`.
MAX_EPOCHS = 1000


def placement(policy: str) -> str:
    """How the pods of this policy get their nodes: the policy chooses them (`OWN`), or as gangs. Raises UserError."""
    return OWN if isinstance(plugins.policy(policy), SchedulingPolicy | FifoPolicy) else "gang"


def answer(question: Question, policy: str, seed: int) -> Result:
    """One run of a what-if. Raises UserError for an unknown policy."""
    began = time.perf_counter()
    made = plugins.policy(policy, np.random.default_rng([seed, 1]))
    works = [
        as_work(with_policy(job, made), dynamics, at, question.pause_seconds)
        for job, dynamics, at in zip(question.jobs, question.dynamics, question.arrivals, strict=True)
    ]
    order = sorted(range(len(works)), key=lambda number: works[number].arrival)
    book = question.jobs[0].spec.price_book
    cluster = Cluster.of(question.nodes)
    engine = Engine(
        cluster,
        advancing([works[number] for number in order]),
        made,
        record=EngineRecord(cluster, prices=(book.vcpu_second, book.gib_second, book.gpu_second)),
        seed=seed,
        faults=Faults.of(seed, question.node_lost, question.function_lost),
    )
    record = engine.run()
    record.renumber(order)
    return Result.of(record, policy, seed, engine.events, time.perf_counter() - began, placement=placement(policy))


def look(trace: str) -> tuple[list[str], dict[str, Any], tuple[Node, ...]]:
    """What is in a trace, in lines and as JSON, and its nodes.

    Raises UserError, with the place, for whatever is wrong in the file.
    """
    read = read_trace(trace)
    return summary(read), document(read), read.nodes


def replay(  # noqa: PLR0917 - a task for another process
    trace: str,
    nodes: tuple[Node, ...],
    policy: str,
    seed: int = 1,
    lost: tuple[float, float] = (math.inf, math.inf),
    label: str = "",
) -> Result:
    """One run of a trace under a policy, called `label`.

    `lost`: mean seconds until a node is lost, a function. Raises UserError.
    """
    began = time.perf_counter()
    made = plugins.policy(policy, np.random.default_rng([seed, 1]))
    faults = Faults.of(seed, *lost)
    record, events, first = EngineRecord(Cluster.of(nodes)), 0, 0
    for own, works in partitions(nodes, read_trace(trace).works):
        engine = Engine(
            Cluster.of(own), advancing(works), made, record=record, seed=seed, faults=faults, first_job=first
        )
        engine.run()
        events, first = events + engine.events, first + len(works)
        made = plugins.policy(policy, np.random.default_rng([seed, 1]))
    seconds = time.perf_counter() - began
    return Result.of(record, label or policy, seed, events, seconds, placement=placement(policy))


def partitions(nodes: Sequence[Node], works: Sequence[Work]) -> list[tuple[list[Node], list[Work]]]:
    """The nodes and jobs of each partition: nodes called PARTITION/NAME have the jobs of that queue or partition.

    The other nodes have all other jobs. Raises UserError where there are none.
    """
    found: dict[str, tuple[list[Node], list[Work]]] = {}
    for node in nodes:
        found.setdefault(_partition(node), ([], []))[0].append(node)
    rest = found.get("")
    for work in works:
        partition = work.partition or work.kind
        if (part := found.get(partition, rest)) is None:
            raise UserError(
                f"--nodes: no nodes for the jobs of {shown(partition) or 'no partition'}, such as {shown(work.name)}; "
                f"add {shown(partition)}=COUNTxCORES, or COUNTxCORES for all other jobs; nothing was simulated"
            )
        part[1].append(work)
    return [(own, jobs) for own, jobs in found.values() if jobs]


def _partition(node: Node) -> str:
    """The partition of a node: what is before the slash in its name; empty without one."""
    name, slash, _ = node.name.rpartition("/")
    return name if slash else ""


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
        kinds=job.spec.speed_by_kind,
        loss=dynamics.loss,
        loss_noise=dynamics.loss_noise,
        grace=job.spec.grace_period,
        rescale_seconds=dynamics.pod_seconds + dynamics.new_group_seconds
        if dynamics.rescale_seconds is None
        else dynamics.rescale_seconds,
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
