"""The parts of a job file on budget, prices, resources and policy."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from coach.core.cluster import NOTHING, Allocation, Instance, Resources, Role
from coach.core.money import PRICE_BOOKS, PriceBook
from coach.core.spec import quantities
from coach.core.spec.types import (
    Cpu,
    CrossFieldError,
    Currency,
    Duration,
    GpuResource,
    Identifier,
    Memory,
    Number,
    ObjectName,
    OnlyTrue,
    Price,
    SpecModel,
    StrictBool,
    StrictInt,
    conflict,
)

#: Largest number of workers or servers; a larger one is taken for a typing mistake.
MAX_INSTANCES = 1024


class PolicyName(StrEnum):
    """Policy that chooses the job's workers and servers."""

    COACH = "coach"
    STATIC = "static"


class JobObjective(StrEnum):
    """What the job optimises, within its limits."""

    SOONEST = "soonest"
    CHEAPEST = "cheapest"
    BEST_LOSS = "best-loss"
    BEST_ACCURACY = "best-accuracy"

    @property
    def is_best(self) -> bool:
        """Whether the job trains for the best model within its bounds, and has no target."""
        return self in (JobObjective.BEST_LOSS, JobObjective.BEST_ACCURACY)


#: A budget's `chanceOfRunningOut` where it says none.
CHANCE_OF_RUNNING_OUT = 0.05


class Budget(SpecModel):
    """The most that the job may spend."""

    amount: Number | None = Field(default=None, ge=1e-6, le=1e9, examples=[5.00])
    """The most that may be spent, in `currency`."""
    currency: Currency | None = Field(default=None, examples=["USD"])
    """With an amount: an ISO 4217 code, that of the price book; or hours, `gpuh` of each GPU, `coreh` of each core, `h`
    of the job, which need no prices.
    """
    unlimited: OnlyTrue | None = None
    """True, in place of an amount: nothing limits what the job spends."""
    account: Identifier | None = Field(default=None, examples=["team-a"])
    """The budget over jobs that pays, as `coach budget set` made it; with an amount or in place of it. An epoch starts
    when both cover it; where the account does not, the job waits.
    """
    chance_of_running_out: Number | None = Field(default=None, gt=0.0, le=0.5, examples=[0.05])
    """With an amount or account, of a job with a target: the probability that is accepted, for being faster, that the
    money ends before the target is reached; without it 0.05. The smaller it is, the more money is kept for epochs that
    may remain.
    """
    must_suffice: StrictBool = False
    """With an amount, of a job with a target: whether the job is refused, or ended, where earlier runs or its own start
    show with 95 % that the amount cannot reach the target (`BudgetTooSmall`). Without it that is a warning.
    """

    def _conflicts(self) -> Iterator[CrossFieldError]:
        either = "amount and currency, an account, or unlimited: true alone"
        given = [key for key in ("amount", "currency", "account") if getattr(self, key) is not None]
        if self.unlimited and given:
            yield conflict("", f"both unlimited and {given[0]}", either)
        elif self.unlimited and self.chance_of_running_out is not None:
            yield conflict("chanceOfRunningOut", "has no meaning for an unlimited budget", either, "unlimited")
        elif self.must_suffice and self.amount is None:
            yield conflict("mustSuffice", "there is no amount", "an amount, or without it")
        elif not self.unlimited and not given:
            yield conflict("", "no amount", either)
        elif (self.amount is None) != (self.currency is None):
            missing = "currency" if given[0] == "amount" else "amount"
            yield conflict(missing, "required", either, given[0])

    @property
    def chance(self) -> float:
        """The accepted probability that the money ends before the target is reached."""
        return CHANCE_OF_RUNNING_OUT if self.chance_of_running_out is None else self.chance_of_running_out


class Spot(SpecModel):
    """Spot nodes are used while they are there, and others where the deadline needs them."""

    deadline: Annotated[Duration, Field(gt=0)] = Field(examples=["52h"])
    """From submission until the job should have ended, with its waits; a duration, or seconds. Where this and the
    budget cannot both be kept, the budget is.
    """


class InstancePrices(SpecModel):
    """A machine that is rented as one. A gang pays the largest of its shares of cores, memory and GPUs."""

    hour: Price = Field(examples=[2.95])
    """Price of one machine for one hour."""
    cpu: Cpu = Field(examples=["16"])
    """Its cores."""
    memory: Memory = Field(examples=["200Gi"])
    """Its memory."""
    gpu: StrictInt = Field(default=0, ge=0, le=64)
    """Its GPUs."""
    whole: StrictBool = False
    """Whether whole machines are paid, as many as the gang takes."""
    by_hour: StrictBool = False
    """Whether an hour begun is paid, of whole machines; without it, each second."""

    @property
    def instance(self) -> Instance:
        """The same as the core's type."""
        cpu, memory = quantities.cores(self.cpu), quantities.gib(self.memory)
        return Instance(self.hour, cpu, memory, float(self.gpu), self.whole, self.by_hour)

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if not self.instance.cpu or not self.instance.memory:
            yield conflict("", "a machine without cores or memory", "more than 0 of both")
        elif self.by_hour and not self.whole:
            yield conflict("byHour", "a part of a machine, by the hour", "together with whole: true", "whole")


class InlinePrices(SpecModel):
    """A user's own price book, in currency units."""

    name: Identifier = Field(examples=["our-cluster"])
    """Name in reports; not that of a shipped book."""
    currency: Currency = Field(examples=["EUR"])
    """ISO 4217 code."""
    vcpu_second: Price = Field(examples=[0.00001])
    """Price of one core for one second."""
    gib_second: Price = Field(examples=[0.000001])
    """Price of one GiB of memory for one second."""
    gpu_second: Price = 0.0
    """Price of one GPU for one second."""
    invocation: Price = Field(examples=[0.0])
    """Price of one call of a function."""
    instance: InstancePrices | None = None
    """A machine that the job's functions rent, in addition to the prices above."""
    offer: str | None = Field(default=None, max_length=200)
    """The offer of `coach prices` that these are of: where its price changes, the next epoch has the new one."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if self.name in PRICE_BOOKS:
            yield conflict("name", "the name of a shipped price book", "another name")

    def book(self) -> PriceBook:
        """The same prices as the core's type."""
        return PriceBook(
            self.name,
            self.currency,
            self.vcpu_second,
            self.gib_second,
            self.invocation,
            self.gpu_second,
            None if self.instance is None else self.instance.instance,
        )


def _branch(value: Any) -> str:
    return "<word>" if isinstance(value, str) else "<object>"


PriceBookRef = Annotated[
    Annotated[InlinePrices, Tag("<object>")]
    | Annotated[Literal["cloud-functions", "flat", "nodes", "gpu-hours", "core-hours", "hours"], Tag("<word>")],
    Discriminator(_branch),
]


class Range(SpecModel):
    """Limits of the number of instances of a role."""

    min: StrictInt = Field(default=1, ge=1, le=MAX_INSTANCES)
    """Smallest number in an epoch."""
    max: StrictInt = Field(default=4, ge=1, le=MAX_INSTANCES)
    """Largest number in an epoch."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if self.min > self.max:
            yield conflict("min", f"more than max, which is {self.max}", "at most max", "max")


class ServerRange(Range):
    """Limits of the number of parameter servers; 0 is all-reduce, which PyTorch jobs have."""

    min: StrictInt = Field(default=1, ge=0, le=MAX_INSTANCES)
    """Smallest number in an epoch."""
    max: StrictInt = Field(default=4, ge=0, le=MAX_INSTANCES)
    """Largest number in an epoch."""


class RoleResources(SpecModel):
    """Resources that one instance of a role requests and is billed for."""

    cpu: Cpu = Field(examples=["500m"])
    """Cores, as Kubernetes writes them: `500m` is half a core."""
    memory: Memory = Field(examples=["1Gi"])
    """Memory, as Kubernetes writes it."""
    gpu: StrictInt = Field(default=0, ge=0, le=64)
    """Whole GPU devices."""
    gpu_resource: GpuResource | None = Field(default=None, examples=["amd.com/gpu", "nvidia.com/mig-1g.10gb"])
    """On Kubernetes: the extended resource of its GPUs; without it nvidia.com/gpu."""
    claims: tuple[Annotated[ObjectName, Field(description="The name of one.")], ...] = Field(
        default=(), max_length=8, examples=[["single-gpu"]]
    )
    """On Kubernetes: ResourceClaimTemplates, of each of which a pod gets a claim. Their devices are not counted."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if self.gpu_resource is not None and not self.gpu:
            yield conflict("gpuResource", "no GPU is asked for", "together with gpu: 1 or more", "gpu")

    @property
    def resources(self) -> Resources:
        """The same as the core's type, in cores, GiB and devices."""
        return Resources(quantities.cores(self.cpu), quantities.gib(self.memory), float(self.gpu))


@lru_cache(maxsize=1 << 16)
def _total(allocation: Allocation, worker: Resources, server: Resources, scheduler: Resources) -> Resources:
    """Cached for all jobs whose roles request the same."""
    return scheduler + server * allocation.servers + worker * allocation.workers


class RolesResources(SpecModel):
    """Resources that each role requests."""

    scheduler: RoleResources | None = RoleResources(cpu="100m", memory="512Mi")
    """Rendezvous of the parameter-server group; needs little. Programs have none."""
    server: RoleResources = RoleResources(cpu="200m", memory="512Mi")
    """Holds and averages the weights."""
    worker: RoleResources = RoleResources(cpu="500m", memory="1Gi")
    """Computes the gradients."""

    @cached_property
    def each(self) -> tuple[Resources, Resources, Resources]:
        """Resources of one worker, one server and the scheduler; nothing where there is none."""
        scheduler = NOTHING if self.scheduler is None else self.scheduler.resources
        return self.worker.resources, self.server.resources, scheduler

    @property
    def schedulers(self) -> int:
        """How many schedulers a gang has: one, of a program none."""
        return 0 if self.scheduler is None else 1

    def asked(self, role: Role) -> RoleResources:
        """What the job file says of one instance of `role`, which the job has."""
        found: RoleResources | None = getattr(self, role.value)
        assert found is not None, f"{role.value}s of a job that has none"
        return found

    def of(self, role: Role) -> Resources:
        """Resources of one instance of `role`."""
        worker, server, scheduler = self.each
        return worker if role is Role.WORKER else server if role is Role.SERVER else scheduler

    def total(self, allocation: Allocation) -> Resources:
        """Resources of a whole gang of `allocation`: one scheduler, its servers and its workers."""
        return _total(allocation, *self.each)


class Policy(SpecModel):
    """Policy that chooses the numbers of workers and servers of each epoch."""

    name: PolicyName = PolicyName.COACH
    """`coach` chooses epoch by epoch; `static` always uses `workers` and `servers`."""
    workers: StrictInt | None = Field(default=None, ge=1, le=MAX_INSTANCES, examples=[2])
    """Workers of every epoch, for `static` only."""
    servers: StrictInt | None = Field(default=None, ge=0, le=MAX_INSTANCES, examples=[2])
    """Servers of every epoch, for `static` only; without it 0 for PyTorch jobs without servers."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        for key, count in (("workers", self.workers), ("servers", self.servers)):
            if self.name is PolicyName.STATIC and count is None:
                yield conflict(key, "required", "a count, for the policy static", "name")
            if self.name is not PolicyName.STATIC and count is not None:
                right = "together with name: static, or spec.workers and spec.servers for limits"
                yield conflict(key, f"has no meaning for the policy {self.name.value}", right, "name")

    @property
    def allocation(self) -> Allocation | None:
        """The fixed allocation; None if Coach chooses."""
        if self.workers is None or self.servers is None:
            return None
        return Allocation(self.workers, self.servers)
