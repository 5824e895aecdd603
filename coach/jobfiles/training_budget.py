"""A TrainingBudget: a budget over jobs as a resource of a cluster, and its status."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from coach.core.periods import EVER, MONTH, WEEK
from coach.core.spec.quantities import DURATION_PATTERN
from coach.core.spec.types import Currency, JobName, LabelKey, LabelValue, SpecModel
from coach.jobfiles.resource_status import Condition, Time, conditions_shown, shown

PERIOD_PATTERN = f"^({EVER}|{MONTH}|{WEEK}|{DURATION_PATTERN[1:-1]})$"


class Selector(SpecModel):
    """Which jobs it pays in addition to those that name it."""

    match_labels: dict[LabelKey, LabelValue] = Field(
        min_length=1, max_length=8, description="Labels; it pays all TrainingJobs that have all of them."
    )


class TrainingBudgetSpec(SpecModel):
    """What jobs may spend together."""

    amount: float = Field(ge=0, le=1e9, description="The most that may be spent in each period, in `currency`.")
    currency: Currency = Field(description="ISO 4217 code; the jobs' price books must have the same.")
    period: Annotated[str, StringConstraints(max_length=20, pattern=PERIOD_PATTERN)] = Field(
        default=EVER,
        description="month, week (from Monday), ever, or the length of a rolling window such as 30d.",
    )
    time_zone: Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")] = Field(
        default="UTC", description="Where months and weeks begin at midnight, such as Europe/Berlin."
    )
    parent: JobName | None = Field(
        default=None, description="The TrainingBudget, or account, that it is in, which pays too."
    )
    selector: Selector | None = Field(
        default=None,
        description="Jobs that it pays, whether they name it or not; without it only those that do.",
    )


class Forecast(SpecModel):
    """What will be spent at the period's end, as if the amount did not end it: an 80 % interval."""

    low: str = Field(description="The lower bound, with its currency.")
    expected: str = Field(description="What is expected.")
    high: str = Field(description="The upper bound.")


class TrainingBudgetStatus(SpecModel):
    """What its jobs have spent; written by Coach alone."""

    observed_generation: int | None = shown("The generation of the budget that Coach has acted on.", ge=0)
    budget: str | None = shown("The terms that Coach obeys now: `50 USD/month`.")
    spent: str | None = shown("Money spent in the period, with its currency.")
    reserved: str | None = shown("Money reserved for running epochs.")
    left: str | None = shown("What is neither spent nor reserved.")
    forecast: Forecast | None = shown("What will be spent at the period's end; absent where nothing is known.")
    runs_out: Time | None = shown("When the amount is expected to be spent; absent if not in this period.")
    period_start: Time | None = shown("The period's first instant.")
    period_end: Time | None = shown("When the next period begins.")
    noticed: int | None = shown("The highest of 50, 80 and 100 percent noticed in this period.", ge=0, le=100)
    jobs: int | None = shown("Jobs that it pays and that have not ended.", ge=0)
    waiting: int | None = shown("Of these, how many wait for money.", ge=0)
    conditions: list[Condition] | None = conditions_shown(
        "Ready: its terms are in force. Exhausted: it covers no further epoch of some job."
    )
