"""The rows of simulated runs: the same names in files and JSON."""

from __future__ import annotations

from typing_extensions import TypedDict


class SimulatedJobRow(TypedDict):
    """A job of a simulated run. Seconds, resource-seconds, currency units; None: it has none."""

    policy: str
    placement: str  #: who chose nodes: `own` the policy, `gang` or `default` the scheduler
    seed: int
    job: str
    kind: str  #: the sort of job of a trace
    arrival: float | None
    start: float | None  #: its first
    end: float | None
    wait: float | None  #: between arrival and end: the time in which it was not executed at its speed
    slowdown: float | None  #: 1 + wait / execution
    executed: float | None
    cpu_seconds: float | None  #: what it held
    memory_seconds: float | None
    gpu_seconds: float | None
    cost: float | None
    preemptions: int
    migrations: int
    resizes: int
    workers: int  #: its last allocation
    servers: int
    reached: bool  #: its target; a task its end
    killed: bool
    why: str  #: the reason it ended with, or why it never fits


class SimulatedTimeRow(TypedDict):
    """What is used, asked for and waiting in a simulated run from `time` on, as means until the next row's."""

    policy: str
    placement: str
    seed: int
    time: float  #: seconds
    cpu_used: float  #: cores, GiB and devices that jobs hold
    memory_used: float
    gpu_used: float
    cpu_asked: float  #: those of the smallest allocations of all jobs that are there
    memory_asked: float
    gpu_asked: float
    jobs: float  #: how many are there
    waiting: float  #: those of them that have not started yet
    gpu_used_by_kind: dict[str, float]  #: {} where all nodes with devices are of one kind
