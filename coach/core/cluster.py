"""What a cluster is made of: roles, resources, nodes, pods and where pods stand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    """The three roles of a parameter-server group (thesis section 3.2)."""

    SCHEDULER = "scheduler"
    SERVER = "server"
    WORKER = "worker"


class Placement(StrEnum):
    """How pods come to nodes."""

    #: A job's pods together, on nodes that Coach plans (`coach.core.gang`), or none of them.
    GANG = "gang"
    #: Pod by pod, by the cluster's own scheduler, which knows nothing of jobs: that of Kubernetes, as it comes.
    DEFAULT = "default"


class Allocation(NamedTuple):
    """How many workers and servers a job has for an epoch: the (w, s) of the thesis."""

    workers: int
    servers: int

    @property
    def pods(self) -> int:
        """How many pods that is, the parameter servers' scheduler included."""
        return self.workers + self.servers + 1

    def __str__(self) -> str:
        return f"{self.workers}x{self.servers}"


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

    def fits(self, room: Resources) -> bool:
        """Whether this amount fits into `room`; a billionth is forgiven, for sums of decimal fractions."""
        return (
            self.cpu <= room.cpu + 1e-9 and self.memory <= room.memory + 1e-9 and self.gpu <= room.gpu + 1e-9
        )


NOTHING = Resources(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, real or virtual, with what it can give to pods."""

    name: str
    capacity: Resources


@dataclass(frozen=True, slots=True, order=True)
class PodId:
    """One function instance of a job: the `index`-th of its role. Its name is stable over epochs."""

    job: str
    role: Role
    index: int

    @property
    def name(self) -> str:
        """A DNS label: `<job>-<role>-<index>`."""
        return f"{self.job}-{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that holds resources on a node (bound there, whether it is ready yet or not).

    `node` is empty while the cluster's own scheduler has it in hand (`Placement.DEFAULT`): then it holds nothing yet.
    """

    id: PodId
    node: str
    requests: Resources
