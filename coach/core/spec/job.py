"""The job file as a type: `TrainingJob` is the YAML, the journal's JSON and the CRD's schema at once.

`coach.jobfiles` reads files and reports mistakes with their lines; this module has only meanings and bounds. The
journal stores a job as `job.to_json()`; `TrainingJob.from_json(...)` reads it back, equal in every field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from coach.core.cluster import Allocation
from coach.core.money import HOURS, PRICE_BOOKS, Money, PriceBook, to_money
from coach.core.spec.metric_source import EPOCH
from coach.core.spec.program import Curve, Goal, Program, at_most_one, usual_goal
from coach.core.spec.resources import (
    Budget,
    InlinePrices,
    JobObjective,
    Policy,
    PolicyName,
    PriceBookRef,
    Range,
    RolesResources,
    ServerRange,
    Spot,
)
from coach.core.spec.slurm import Slurm
from coach.core.spec.training import (
    Checkpoint,
    Clip,
    Data,
    EpochSize,
    ErrorFactors,
    ExperimentOverrides,
    Framework,
    Init,
    JobClass,
    Metadata,
    MiniEpoch,
    Mode,
    Model,
    Optimizer,
    ParameterServer,
    Target,
)
from coach.core.spec.types import (
    CrossFieldError,
    Duration,
    Image,
    LabelValue,
    Number,
    SpecModel,
    StrictBool,
    StrictInt,
    conflict,
    no_default,
)

API_VERSION = "coach.dev/v1alpha1"


class Limits(NamedTuple):
    """Allocations that a job may have: from `smallest` to `largest`, both included."""

    smallest: Allocation
    largest: Allocation


#: Optimizers that run on elastic parameter servers.
SERVED_OPTIMIZERS = ("sgd", "nag", "adam", "adamw")


class JobSpec(SpecModel):
    """Description of a job."""

    framework: Framework = Field(default=Framework.MXNET, examples=["pytorch"])
    """Framework of the model file. Where a job file leaves it out and its local model file imports torch, and not
    mxnet, it is `pytorch`.
    """
    model: Model | None = None
    """The model file: what is trained. A job has a model or a program."""
    data: Data | None = None
    """The data set a model is trained on."""
    program: Program | None = Field(default=None, examples=[{"command": ["python", "train.py"]}])
    """A program with a loop of its own, in place of a model: any command that prints a metric."""
    target: Target | None = None
    """When the job is done. Without it, the job trains the best model that its budget, `timeLimit` or `maxEpochs`
    allows: one of these must be there.
    """
    budget: Budget = Field(examples=[{"amount": 5.00, "currency": "USD"}, {"account": "team-a"}, {"unlimited": True}])
    """The most that the job may spend: an amount, what an account has, or `unlimited: true`."""
    suspend: StrictBool = False
    """Only on a cluster: true stops the job at the end of its epoch, or keeps it from starting; false lets it continue.
    """
    image: Image | None = Field(default=None, examples=["registry.example.com/coach-functions:0.1.0"])
    """Container image of the functions, on Kubernetes. Without it, the one the platform was set up with. A program on a
    cluster runs in an image of its own.
    """
    time_limit: Annotated[Duration, Field(gt=0)] | None = Field(default=None, examples=["2h", 90])
    """Longest training time, without waiting; an epoch under way is finished. A duration, or seconds."""
    max_epochs: StrictInt | None = Field(default=None, ge=1, le=10**6, examples=[50])
    """Largest number of full epochs; after them the job ends, with or without its target."""
    priority: StrictInt = Field(default=0, ge=-(10**9), le=10**9)
    """Jobs with a higher priority are placed first."""
    workers: Range = Range()
    """Limits of the number of workers. A program's default is 1 and 1, or both what `min` is."""
    servers: ServerRange = Field(default=ServerRange(), json_schema_extra=no_default)
    """Limits of the number of parameter servers; without it 1 to 4. Without it, or with `max: 0`, PyTorch jobs train by
    all-reduce; with `min: 0` Coach measures both, and chooses.
    """
    resources: RolesResources = RolesResources()
    """Resources that one instance of each role requests."""
    speed_by_kind: dict[LabelValue, Annotated[Number, Field(ge=0.001, le=1000)]] = Field(
        default={}, max_length=64, examples=[{"Tesla-T4": 0.4, "NVIDIA-A100-SXM4-80GB": 2.6}]
    )
    """How fast the job trains on nodes of a kind; those of a kind that is not named have 1. A gang is as fast as the
    slowest of its nodes. On Kubernetes a node's kind is its label nvidia.com/gpu.product or amd.com/gpu.product-name,
    without them its instance type; in a cluster file it is `kind`.
    """
    batch_size: StrictInt = Field(default=64, ge=1, le=10**6)
    """Samples a step, divided among the workers: the result is the same for any number of workers."""
    micro_batch: StrictInt | None = Field(default=None, ge=1, le=10**6, examples=[16])
    """Most samples that a worker computes at once: it adds up the gradients of its share of a batch in such parts,
    which takes less memory and gives the same result. Without it, the share at once.
    """
    evaluation_batch: StrictInt | None = Field(default=None, ge=1, le=10**6, examples=[32])
    """Samples that a worker evaluates at once; without it 256."""
    epoch: EpochSize | None = Field(default=None, examples=[{"time": "5m"}, {"samples": 100_000}])
    """Where a pass over the data takes long: how often it is cut. What an epoch is in this file, and in all that Coach
    shows, is then such a part: it is evaluated, stored, paid and predicted by itself.
    """
    clip: Clip | None = Field(default=None, examples=[{"norm": 1.0}])
    """How gradients are clipped."""
    optimizer: Optimizer | None = Field(default=None, examples=[{"name": "sgd", "learningRate": 0.05, "momentum": 0.9}])
    """The optimizer. Without it, the model file's `optimizer()`; without that, SGD at rate 0.01."""
    seed: StrictInt = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the weights and of the order of the samples."""
    mode: Mode = Mode.SYNC
    """Whether workers step together or independently."""
    parameter_server: ParameterServer = Field(
        default=ParameterServer.PS_LITE,
        description="Of an MXNet job: `ps-lite`, MXNet's own, whose group is formed anew for each allocation; or "
        "`elastic`, Coach's: workers and servers come, go and die while it trains. "
        f"On these run: {', '.join(SERVED_OPTIMIZERS)}.",
    )
    deterministic: StrictBool = False
    """Of a PyTorch job: whether gradients are added in the order of the workers' ranks, so that the same run gives the
    same weights to the last bit. Slower with three workers or more.
    """
    autocast: Literal["bfloat16"] | None = None
    """Of a PyTorch job: the number type in which `torch.autocast` runs forward passes. Weights, gradients and
    checkpoints keep theirs.
    """
    job_class: JobClass = Field(default=JobClass.BEST_EFFORT, alias="class")
    """Best-effort jobs may be preempted by policies that preempt."""
    grace_period: Duration = 30.0
    """Time in which a preempted job writes its checkpoint; a duration, or seconds."""
    start_timeout: Annotated[Duration, Field(gt=0)] = Field(default=600.0, examples=["10m"])
    """Longest time that a function of the job may take to start once it has a node, pulling its image included; on
    Kubernetes. A duration, or seconds.
    """
    mini_epoch: MiniEpoch = MiniEpoch()
    """How long a probe may take."""
    checkpoint: Checkpoint = Checkpoint()
    """Where checkpoints go."""
    init: Init | None = Field(default=None, examples=[{"job": "lenet-digits"}])
    """Weights to begin with, such as those of an earlier job, for fine-tuning."""
    slurm: Slurm | None = Field(default=None, examples=[{"partition": "gpu", "account": "lab"}])
    """Of a program on Slurm: what `sbatch` gets."""
    prices: PriceBookRef = Field(default="cloud-functions", examples=["flat"], json_schema_extra=no_default)
    """Prices that the job is billed by: the name of a shipped price book, an offer of `coach prices` such as
    `nebius/gpu-h100-sxm_1gpu-16vcpu-200gb:spot`, or your own prices. `nodes`: those of the nodes that it is on.
    """
    spot: Spot | None = Field(default=None, examples=[{"deadline": "52h"}])
    """With `prices: nodes`: the job trains on spot nodes, waits for them where there are none, and takes on-demand ones
    when its deadline comes near. On Kubernetes a node is spot by its labels.
    """
    objective: JobObjective = Field(default=JobObjective.SOONEST, json_schema_extra=no_default)
    """`soonest`: the target as soon as the budget allows; `cheapest`: the target at the lowest cost, within `timeLimit`
    where there is one. Of a job without a target: `best-loss` (the default then), the lowest test loss, or
    `best-accuracy`.
    """
    stop_early: StrictBool = True
    """Whether the job ends when its target is not to be reached, or, without a target, when no further improvement is
    to be expected. Without it true; of a program that has no target, or that would lose all by it as it cannot resume,
    false.
    """
    policy: Policy = Policy()
    """Policy that chooses the numbers of workers and servers of each epoch."""
    testing: ExperimentOverrides | None = None
    """For experiments only."""

    @model_validator(mode="before")
    @classmethod
    def _fills_in(cls, value: Any) -> Any:
        """The defaults that depend on other fields: of a job without a target, with a program, or without servers."""
        if not isinstance(value, dict):
            return value
        value, program = dict(value), isinstance(value.get("program"), dict)
        budget = value.get("budget")
        if isinstance(budget, dict) and isinstance(unit := budget.get("currency"), str) and unit in HOURS:
            value.setdefault("prices", HOURS[unit])
        aimless, served = value.get("target") is None, not program
        if aimless:
            value.setdefault("objective", JobObjective.BEST_LOSS.value)
        if program:  # a fixed number of workers, and nothing else
            value = {"framework": Framework.ANY.value, "servers": {"min": 0, "max": 0}} | value
            if aimless or value["program"].get("resumes") is not True:
                value.setdefault("stopEarly", False)
            if isinstance(workers := value.get("workers", {}), dict):
                fixed = workers.get("min", 1)
                value["workers"] = {"min": fixed, "max": fixed} | workers
            if isinstance(resources := value.get("resources", {}), dict):
                value["resources"] = {"scheduler": None, **resources}
        servers, policy = value.get("servers", {"max": 0}), value.get("policy")
        if value.get("framework") == Framework.PYTORCH and isinstance(servers, dict) and servers.get("max") == 0:
            value["servers"], served = {"min": 0, **servers}, False
        if not served and isinstance(policy, dict) and policy.get("name") == PolicyName.STATIC:
            value["policy"] = {"servers": 0, **policy}
        return value

    def _conflicts(self) -> Iterator[CrossFieldError]:
        yield from self._model_conflicts() if self.program is None else self._program_conflicts(self.program)
        yield from self._target_conflicts()
        book = self.price_book
        if self.budget.currency not in (None, book.currency):
            problem = f"not the currency of the price book {book.name}, which is {book.currency}"
            yield conflict("budget.currency", problem, f"{book.currency}, or other prices", "prices")
        yield from self._instance_conflicts()
        if self.spot is not None and self.prices != "nodes":
            yield conflict("spot", "its prices are not those of nodes", "prices: nodes", "prices")
        if self.spot is not None and self.program is not None and not self.program.resumes:
            problem = "the program would begin anew when a spot node goes"
            yield conflict("spot", problem, "program.resumes: true", "program.resumes")
        fixed = self.policy.allocation
        if fixed is not None:
            for key, count, limits in zip(("workers", "servers"), fixed, (self.workers, self.servers), strict=True):
                if not limits.min <= count <= limits.max and (key == "workers" or self.has_servers):
                    right = f"{limits.min} to {limits.max}, or other limits in spec.{key}"
                    yield conflict(f"policy.{key}", "outside the job's limits", right, key)

    def _instance_conflicts(self) -> Iterator[CrossFieldError]:
        """One function fits into the machine that it is billed by."""
        machine = self.price_book.instance
        if machine is None:
            return
        for role in ("worker", "server", "scheduler"):
            asked = getattr(self.resources, role)
            for key in ("cpu", "memory", "gpu"):
                if asked is not None and getattr(asked.resources, key) > (has := getattr(machine, key)):
                    problem = f"more than the machine of {self.price_book.name} has"
                    right = f"at most {has:g}, or prices of a larger machine"
                    yield conflict(f"resources.{role}.{key}", problem, right, "prices")

    def _program_conflicts(self, program: Program) -> Iterator[CrossFieldError]:
        of_models = ("clip", "micro_batch", "evaluation_batch", "epoch", "init")
        for key in ("model", "data", "optimizer", "autocast", "deterministic", *of_models):
            if getattr(self, key):
                name = to_camel(key)
                yield conflict(name, "a program has its own", f"leave `{name}` out", "program")
        if self.servers.max > 0 or self.policy.servers:
            at = "servers" if self.servers.max > 0 else "policy.servers"
            yield conflict(at, "programs have no parameter servers of Coach", "leave it out", "program")
        if self.resources.scheduler is not None:
            yield conflict("resources.scheduler", "programs have no scheduler", "leave it out", "program")
        yield from self._image_conflicts(program)
        if self.workers.min != self.workers.max and not program.resumes:
            problem = "a change of workers starts the program again"
            right = f"{self.workers.max}; or resumes: true, of a program that goes on from its newest checkpoint"
            yield conflict("workers.min", problem, right, "program.resumes")

    def _image_conflicts(self, program: Program) -> Iterator[CrossFieldError]:
        """A program with an image runs on a cluster, and sees the image's files and its volumes alone."""
        if self.image is None:
            for key in ("secrets", "volumes", "code"):
                if getattr(program, key):
                    right = "an image, for a cluster; on this machine a program has your environment and files"
                    yield conflict(f"program.{key}", "only with an image", right, "image")
            return
        if program.directory is not None and not program.directory.startswith("/"):
            right = "a folder of the image, such as /workspace"
            yield conflict("program.directory", "not a whole path", right, "image")
        folder = self.checkpoint.uri
        if folder is not None and not any(_is_inside(folder, path) for path in program.volumes):
            right = "a folder of one of program.volumes, such as /data/checkpoints; or leave it out"
            yield conflict("checkpoint.uri", "on no volume of the program", right, "image")

    def _target_conflicts(self) -> Iterator[CrossFieldError]:
        if self.target is not None:
            if self.objective.is_best:
                right = "soonest or cheapest; or leave `target` out"
                yield conflict("objective", "has no meaning for a job with a target", right, "target")
            return
        bounded = self.budget.amount is not None or self.time_limit is not None or self.max_epochs is not None
        if not self.objective.is_best:
            yield conflict("objective", "needs a target", "best-loss or best-accuracy; or a target")
        elif not bounded and self.program is None:
            right = "a target, an amount as budget, timeLimit or maxEpochs"
            yield conflict("target", "required where nothing else ends the job", right)

    def _model_conflicts(self) -> Iterator[CrossFieldError]:
        if self.model is None:
            yield conflict("model", "required", "a model file; or a program")
        elif self.data is None:
            yield conflict("data", "required", "the data set, and its format")
        if self.framework is Framework.ANY:
            right = f"{Framework.MXNET.value} or {Framework.PYTORCH.value}"
            yield conflict("framework", "only a program has any", right, "model")
        if self.workers.max > (size := self.batch_size):
            yield conflict(
                "workers.max", f"more than batchSize, which is {size}", "at most one worker a sample", "batchSize"
            )
        yield from self._mxnet_conflicts() if self.framework is Framework.MXNET else self._pytorch_conflicts()

    def _mxnet_conflicts(self) -> Iterator[CrossFieldError]:
        nothing = "has no meaning for an MXNet job"
        if self.servers.min == 0:
            right = "1 or more; only PyTorch jobs train without parameter servers"
            yield conflict("servers.min", "too small", right, "framework")
        if self.optimizer is not None and self.optimizer.schedule is not None:
            yield conflict("optimizer.schedule", nothing, "no schedule; only PyTorch jobs have them", "framework")
        for field in ("deterministic", "autocast"):
            if getattr(self, field):
                yield conflict(field, nothing, f"leave `{field}` out; only PyTorch jobs have it", "framework")
        if self.data is not None and self.data.readers:
            right = "leave it out: the arrays of an MXNet job are in memory"
            yield conflict("data.readers", nothing, right, "framework")
        if self.mode is Mode.ASYNC and self.clip is not None:
            right = "leave `clip` out: servers apply each worker's gradients by themselves"
            yield conflict("clip", "not in asynchronous mode", right, "mode")
        if self.mode is Mode.ASYNC and self.elastic:
            right = "sync; or parameterServer: ps-lite"
            yield conflict("mode", "elastic servers are synchronous", right, "parameterServer")
        yield from self._served_conflicts("parameterServer: ps-lite", "parameterServer")

    def _pytorch_conflicts(self) -> Iterator[CrossFieldError]:
        yield from self._served_conflicts("servers: {max: 0}, which is all-reduce", "servers")
        if not self.has_servers and self.policy.servers:
            problem, right = "a PyTorch job without `servers` trains by all-reduce", "leave it out, or say spec.servers"
            yield conflict("policy.servers", problem, right, "framework")
        if self.mode is not Mode.SYNC:
            yield conflict("mode", "workers of a PyTorch job step together", "sync; or leave `mode` out", "framework")
        if self.parameter_server is ParameterServer.ELASTIC:
            problem = "the servers of a PyTorch job are always elastic"
            yield conflict("parameterServer", problem, "leave `parameterServer` out", "framework")

    def _served_conflicts(self, instead: str, because: str) -> Iterator[CrossFieldError]:
        """Of elastic servers with the optimizer, where the job names it or has MXNet's default."""
        named = "sgd" if self.optimizer is None else self.optimizer.name
        if self.elastic and self.has_servers and named.lower() not in SERVED_OPTIMIZERS:
            right = f"{', '.join(SERVED_OPTIMIZERS)}; or {instead}"
            yield conflict("optimizer.name", "does not run on elastic servers", right, because)

    @property
    def metric(self) -> str:
        """The measure of its target, or of the best model: `loss`, `accuracy`, or any other by its name."""
        if self.target is not None:
            return self.target.name
        if self.program is not None and (named := [name for name in self.program.metrics if name != EPOCH]):
            return named[0]
        return "accuracy" if self.objective is JobObjective.BEST_ACCURACY else "loss"

    @property
    def has_own_metric(self) -> bool:
        """Whether its metric is a program's, or another one of a model file than loss and accuracy."""
        return self.program is not None or self.metric not in ("loss", "accuracy")

    @property
    def goal(self) -> Goal:
        """Whether a smaller or a larger value of the metric is better."""
        if self.target is not None:
            return self.target.direction
        return usual_goal(self.metric) or Goal.MINIMIZE

    @property
    def curve(self) -> Curve:
        """How the metric's learning curve runs."""
        if self.goal is Goal.MINIMIZE:
            return "loss"
        largest = 1.0 if self.target is None else self.target.number
        return "accuracy" if at_most_one(self.metric) and largest <= 1.0 else "score"

    @property
    def target_value(self) -> float | None:
        """The value of the metric to reach; None where the job trains the best model within its bounds."""
        return None if self.target is None else self.target.number

    @property
    def sha256(self) -> str | None:
        """The hash of its model file, or of its program's files; None where it is not known."""
        work = self.program or self.model
        return None if work is None else work.sha256

    @property
    def has_servers(self) -> bool:
        """Whether it trains with parameter servers."""
        return self.servers.max > 0

    @property
    def chooses_servers(self) -> bool:
        """Whether it may train with servers or, by all-reduce, without: they are measured, and Coach chooses."""
        return self.servers.min == 0 < self.servers.max

    @property
    def elastic(self) -> bool:
        """Whether the group goes on when a worker is lost in mid-epoch."""
        return self.framework is Framework.PYTORCH or self.parameter_server is ParameterServer.ELASTIC

    @property
    def limits(self) -> Limits:
        """The smallest and the largest allocation; both are the fixed one where the policy is static."""
        if self.policy.allocation is not None:
            return Limits(self.policy.allocation, self.policy.allocation)
        return Limits(Allocation(self.workers.min, self.servers.min), Allocation(self.workers.max, self.servers.max))

    @cached_property
    def price_book(self) -> PriceBook:
        """The price book that the job is billed by."""
        return self.billed_by(self.prices.book() if isinstance(self.prices, InlinePrices) else PRICE_BOOKS[self.prices])

    def billed_by(self, book: PriceBook) -> PriceBook:
        """The same prices without what the job has not: nothing calls a program."""
        return book if self.program is None else replace(book, invocation=0.0)

    def with_prices(self, prices: InlinePrices) -> JobSpec:
        """The job with other prices."""
        changed = self.model_copy(update={"prices": prices})
        changed.__dict__.pop("price_book", None)  # it was computed from the others
        return changed

    @property
    def budget_money(self) -> Money | None:
        """The budget in nano-units of the price book's currency; None where it is unlimited."""
        return None if self.budget.amount is None else to_money(self.budget.amount)

    @property
    def error_factors(self) -> ErrorFactors:
        """Factors on predictions; all are 1 unless the job is an experiment."""
        return self.testing.error_factors if self.testing else ErrorFactors()


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


class TrainingJob(SpecModel):
    """One job file's document."""

    api_version: Literal["coach.dev/v1alpha1"] = Field(examples=[API_VERSION])
    """Version of this format."""
    kind: Literal["TrainingJob"] = Field(examples=["TrainingJob"])
    """Kind of this document."""
    metadata: Metadata
    """Name and labels of the job."""
    spec: JobSpec
    """The job."""

    @property
    def name(self) -> str:
        """The job's name, a DNS label."""
        return self.metadata.name

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with the keys of the YAML file, with defaults, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def from_json(cls, data: Any) -> TrainingJob:
        """The job that `to_json` wrote. Raises pydantic.ValidationError if `data` is not a job."""
        return cls.model_validate(data, by_alias=True, by_name=False)
