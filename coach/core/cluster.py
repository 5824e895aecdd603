"""Basic types of a cluster: roles, resources, nodes and pods."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    """The three roles of a job's group (thesis section 3.2); jobs that train by all-reduce have no servers."""

    SCHEDULER = "scheduler"
    SERVER = "server"
    WORKER = "worker"


class Placement(StrEnum):
    """How pods are placed on nodes."""

    #: All pods of a job together or none, on nodes that Coach plans (`coach.core.gang`).
    GANG = "gang"
    #: By the cluster's own scheduler: pods name no node, and report theirs when they are ready.
    DEFAULT = "default"


class CapacityType(StrEnum):
    """What a job with `spec.spot` takes for its next epoch."""

    NOTHING = "nothing"
    SPOT = "spot"  #: nodes that are cheap, and may go away
    ON_DEMAND = "on-demand"


class Allocation(NamedTuple):
    """Numbers of workers and servers that a job has for an epoch: the (w, s) of the thesis."""

    workers: int
    servers: int

    @property
    def pods(self) -> int:
        """Number of pods, including the group's scheduler."""
        return self.workers + self.servers + 1

    @property
    def cell(self) -> str:
        """As a table's column has it: `2x1`, workers x servers; `2` without servers."""
        return f"{self.workers}x{self.servers}" if self.servers else str(self.workers)

    @classmethod
    def of(cls, pods: Iterable[PodId]) -> Allocation:
        """The workers and servers among these pods."""
        roles = [pod.role for pod in pods]
        return cls(roles.count(Role.WORKER), roles.count(Role.SERVER))

    def within(self, low: Allocation, high: Allocation) -> bool:
        """Whether it is from `low` to `high`, in workers and in servers."""
        return low.workers <= self.workers <= high.workers and low.servers <= self.servers <= high.servers

    def __str__(self) -> str:
        if self.servers:
            return self.cell
        return f"{self.workers} worker" if self.workers == 1 else f"{self.workers} workers"


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of resources: `cpu` in cores, `memory` in GiB, `gpu` in devices."""

    cpu: float
    memory: float
    gpu: float = 0.0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpu + other.cpu, self.memory + other.memory, self.gpu + other.gpu)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.cpu - other.cpu, self.memory - other.memory, self.gpu - other.gpu)

    def __mul__(self, count: float) -> Resources:
        return Resources(self.cpu * count, self.memory * count, self.gpu * count)

    def fits(self, free: Resources) -> bool:
        """Whether this amount fits into `free`, with a tolerance of 1e-9 for sums of decimal fractions."""
        return self.cpu <= free.cpu + 1e-9 and self.memory <= free.memory + 1e-9 and self.gpu <= free.gpu + 1e-9


NOTHING = Resources(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine that is rented as one: its cores, GiB and GPUs, and its price an hour in currency units.

    A gang pays its part of such machines: the largest of its shares of their cores, memory and GPUs; or, `whole`, as
    many machines as that takes. With `by_hour`, which is `whole`, an hour begun is paid.
    """

    hour: float
    cpu: float
    memory: float
    gpu: float = 0.0
    whole: bool = False
    by_hour: bool = False

    def machines(self, requests: Resources) -> float:
        """How many of them `requests` pay."""
        share = max(requests.cpu / self.cpu, requests.memory / self.memory)
        if self.gpu:
            share = max(share, requests.gpu / self.gpu)
        return math.ceil(share - 1e-9) if self.whole else share


#: So many cores, or GiB, that a part of them costs less than the smallest amount of money.
_FREE = 1e24


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, real or virtual, with the resources it has for pods. `price`: None where it is not known.

    `spot`: it is cheap, and may go away.
    Jobs may train faster on one `kind` of nodes than on another: its GPUs' product, or its instance type.
    `gpu_factor`: for how many an hour of one of its GPUs counts where hours of GPUs are the currency.
    """

    name: str
    capacity: Resources
    price: Instance | None = field(default=None, compare=False)
    spot: bool = False
    kind: str = field(default="", compare=False)
    gpu_factor: float = field(default=1.0, compare=False)

    @property
    def gpu_hours(self) -> Instance | None:
        """Its price in hours of GPUs; None without a GPU. Its cores and its memory cost nothing."""
        gpus = self.capacity.gpu
        return Instance(self.gpu_factor * gpus, _FREE, _FREE, gpus) if gpus else None


class Taken(NamedTuple):
    """What others than Coach's jobs hold on a node; `why`: who, in words, where that is known."""

    node: str
    amount: Resources
    why: str = ""


def without(nodes: Iterable[Node], taken: Iterable[Taken]) -> tuple[Node, ...]:
    """The nodes with the capacity that others leave."""
    held = {one.node: one.amount for one in taken}
    left = {node.name: node.capacity - held[node.name] for node in nodes if node.name in held}
    return tuple(
        replace(node, capacity=Resources(max(0.0, free.cpu), max(0.0, free.memory), max(0.0, free.gpu)))
        if (free := left.get(node.name)) is not None
        else node
        for node in nodes
    )


@dataclass(frozen=True, slots=True, order=True)
class PodId:
    """One function instance of a job: the `index`-th of its role. Its name stays the same over epochs."""

    job: str
    role: Role
    index: int

    @property
    def name(self) -> str:
        """A DNS label: `<job>-<role>-<index>`."""
        return f"{self.job}-{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that is bound to a node and holds resources there, ready or not.

    `node` is empty until the cluster's own scheduler has placed the pod (`Placement.DEFAULT`); it holds nothing then.
    `capacity`: the nodes which that scheduler may choose, of a job with `spec.spot`; None: any.
    """

    id: PodId
    node: str
    requests: Resources
    capacity: CapacityType | None = None


def by_node(pods: Iterable[Pod]) -> dict[str, Resources]:
    """What `pods` hold on each node."""
    held: dict[str, Resources] = {}
    for pod in pods:
        held[pod.node] = held.get(pod.node, NOTHING) + pod.requests
    return held
