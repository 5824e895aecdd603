"""The status of a TrainingJob on a cluster: what `kubectl get` and `kubectl describe` show of a job.

Conditions and `trainerStatus` have the names and meanings that Kubernetes's Job and Kubeflow's TrainJob give them, so
tools that wait for a condition or show progress understand both. docs/reference/kubernetes.md says which is set when.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from coach.core.jobs.reasons import State
from coach.core.spec.types import SpecModel


class ConditionType(StrEnum):
    """The conditions that Coach sets."""

    SUSPENDED = "Suspended"
    PODS_READY = "PodsReady"
    COMPLETE = "Complete"
    FAILED = "Failed"
    #: Of a TrainingBudget; READY and COMPLETE also of a TrainingSearch.
    READY = "Ready"
    EXHAUSTED = "Exhausted"


Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def shown(description: str, **bounds: Any) -> Any:
    """A field of a status, absent where it is not known."""
    return Field(default=None, description=description, **bounds)


def conditions_shown(description: str) -> Any:
    """The field of a status with its conditions, at most one of each type."""
    by_type = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return shown(description, max_length=16, json_schema_extra=by_type)


class Condition(SpecModel):
    """One condition, as Kubernetes's API conventions have it."""

    type: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z]{0,62}$")] = Field(
        description="Its name, such as Failed."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: int | None = shown("The generation of the object that it was set for.", ge=0)
    last_transition_time: Time = Field(description="When its status last changed.")
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z]{0,126}$")] = Field(
        description="Why, in one word, such as BudgetExhausted."
    )
    message: str = Field(max_length=32768, description="Why, in a sentence with numbers.")


class Metric(SpecModel):
    """A measured value."""

    name: str = Field(description="Its name: loss, accuracy, or that of a program's own metric.")
    value: str = Field(description="Its value, a number.")


class TrainerStatus(SpecModel):
    """Progress, in the shape of Kubeflow's TrainJob."""

    progress_percentage: int | None = shown("Share of the predicted training that is done, in percent.", ge=0, le=100)
    estimated_remaining_seconds: int | None = shown("Predicted seconds until the target.", ge=0)
    metrics: list[Metric] | None = shown("Values of the last evaluated epoch.", max_length=16)
    last_updated_time: Time | None = shown("When this was last changed.")


class ExpectedStart(SpecModel):
    """When a job that waits for room is expected to start: the expected time, and an 80 % interval."""

    earliest: Time = Field(description="It starts later in 9 of 10 cases.")
    expected: Time = Field(description="As many cases are earlier as later.")
    latest: Time = Field(description="It starts earlier in 9 of 10 cases.")


class TrainingJobStatus(SpecModel):
    """What became of the job; written by Coach alone."""

    observed_generation: int | None = shown("The generation of the job that Coach has acted on.", ge=0)
    state: State | None = shown("What the job does, or how it ended.")
    reason: str | None = shown("Why it is in that state, in one word.")
    message: str | None = shown("Why, in a sentence with numbers.")
    target: str | None = shown("What it trains to, such as `loss 0.13`.")
    progress: str | None = shown("Share of the predicted training that is done, such as `37%`.")
    epochs: int | None = shown("Full epochs that counted.", ge=0)
    loss: float | None = shown("Mean test loss after the last evaluated epoch.")
    accuracy: float | None = shown("Fraction of correct answers on the test split, after that epoch.")
    workers: int | None = shown("Workers that it has; at its end, had.", ge=0)
    servers: int | None = shown("Parameter servers that it has; at its end, had.", ge=0)
    spent: str | None = shown("Money spent, with its currency, such as `0.0026 USD`.")
    reserved: str | None = shown("Money reserved for the running epoch, with its currency.")
    budget: str | None = shown(
        "Money that it may spend, with its currency, or `unlimited`: the budget that Coach obeys now."
    )
    eta: Time | None = shown("When it is predicted to reach its target.")
    expected_start: ExpectedStart | None = shown(
        "When it is expected to start, while it waits for room and that can be predicted."
    )
    start_time: Time | None = shown("When its first epoch began.")
    completion_time: Time | None = shown("When it ended.")
    trainer_status: TrainerStatus | None = shown("Progress, in the shape of Kubeflow's TrainJob.")
    conditions: list[Condition] | None = conditions_shown("Suspended, PodsReady, Complete, Failed.")
