"""The parts of a job file on a training step: the optimizer, its schedule, and how gradients are clipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import AliasChoices, ConfigDict, Field

from coach.core.spec.types import (
    Argument,
    ArgumentName,
    CrossFieldError,
    Number,
    OptimizerName,
    ScheduleArgument,
    ScheduleArgumentName,
    ScheduleName,
    SpecModel,
    conflict,
)


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
    schedule: Schedule | None = Field(None, examples=[{"name": "StepLR", "step_size": 2000, "gamma": 0.1}])
    """PyTorch only: schedule of the learning rate."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        extra = self.__pydantic_extra__ or {}
        if len(extra) > 32:
            yield conflict("", f"{len(extra)} further arguments", "at most 32")
        for key in extra.keys() & {"learning_rate", "lr"}:
            yield conflict(key, "said twice", "learningRate alone")

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the optimizer, including `learning_rate`."""
        return {"learning_rate": self.learning_rate, **(self.__pydantic_extra__ or {})}


class Clip(SpecModel):
    """How gradients are clipped, after those of all workers are averaged."""

    norm: Number | None = Field(None, gt=0, le=1e9, examples=[1.0])
    """Largest norm of all gradients together, as `torch.nn.utils.clip_grad_norm_` has it."""
    value: Number | None = Field(None, gt=0, le=1e9, examples=[0.5])
    """Largest absolute value of each gradient, as `torch.nn.utils.clip_grad_value_` has it."""

    def _conflicts(self) -> Iterator[CrossFieldError]:
        if self.norm is None and self.value is None:
            yield conflict("", "clips nothing", "a norm, or a value")
