"""Jobs and clusters for the tests of policies: plain callables where the driver has fitted models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.policies import ClusterView, Objective, Policy

ONE_CPU = {role: Resources(1.0, 1.0) for role in Role}

#: The scheduler of a parameter-server group hardly computes: here it takes nothing, so that sums are easy to read.
SMALLEST, LARGEST = Allocation(1, 1), Allocation(4, 4)
FREE_SCHEDULER = {**ONE_CPU, Role.SCHEDULER: Resources(0.0, 0.0)}


@dataclass(frozen=True)
class Epochs:
    low: float
    expected: float
    high: float


def server_speed(work: float, fixed: float = 0.0, traffic: float = 0.0, worker: float = 0.0, server: float = 0.0):
    """Epochs/s of a parameter-server group: 1/v = work/w + fixed + traffic w/s + worker w + server s (design 5)."""

    def speed(a: Allocation) -> float:
        w, s = a[0], max(a[1], 1)
        return 1.0 / (work / w + fixed + traffic * w / s + worker * w + server * s)

    return speed


@dataclass(frozen=True)
class Job:
    """A `JobView` of plain values; an epoch costs `price` currency units per pod and second."""

    id: str
    speed_of: Callable[[Allocation], float] = field(default_factory=lambda: server_speed(100.0))
    created: float = 0.0
    priority: int = 0
    minimum: Allocation = SMALLEST
    maximum: Allocation = LARGEST
    current: Allocation | None = None
    fixed: Allocation | None = None
    busy: bool = False
    requests: Mapping[Role, Resources] = field(default_factory=lambda: FREE_SCHEDULER)
    remaining_epochs: Epochs | None = Epochs(8.0, 10.0, 14.0)
    budget: float | None = None
    deadline: float | None = None
    restart_seconds: float = 0.0
    objective: Objective = Objective.SOONEST
    price: float = 1.0
    money: float = float("inf")
    trial: bool = False
    measured: tuple[Allocation, ...] = ()
    begun: bool = True
    grace: float = 0.0
    done: float = 0.0
    loss: float = float("nan")
    policy_state: Mapping[str, bool] = field(default_factory=dict)
    standing: Mapping[str, Allocation] = field(default_factory=dict)

    def speed(self, allocation: Allocation, kind: str | None = None) -> float:
        return self.speed_of(allocation)

    def epoch_cost(self, allocation: Allocation) -> float:
        return self.price * sum(allocation) / self.speed_of(allocation)

    def epoch_budget(self, allocation: Allocation) -> float | None:
        return self.budget

    def affordable(self, allocation: Allocation) -> bool:
        return self.epoch_cost(allocation) <= self.money


def cluster(*cores: float, memory: float = 1000.0) -> ClusterView:
    """Nodes n0, n1, ... with so many cores each."""
    return ClusterView(tuple(Node(f"n{i}", Resources(cpu, memory)) for i, cpu in enumerate(cores)))


def allocation(text: str | None) -> Allocation | None:
    """`2x1` is 2 workers and 1 server; None and `-` are none."""
    return None if text in (None, "-") else Allocation(*map(int, text.split("x")))


def decided(policy: Policy, jobs: Sequence[Job], nodes: ClusterView) -> dict[str, str]:
    """What `policy` decides, as short texts; `-` where a job waits."""
    return {job: str(a) if a else "-" for job, a in policy.allocate(jobs, nodes).allocations.items()}
