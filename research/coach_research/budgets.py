"""The rules by which others keep a budget, each a pure function of a job that nothing stops.

None of them chooses workers and servers: the user has chosen, and the run is known to its end. So each rule says where
it would have ended the run. The unit that is checked is an epoch, the smallest piece after which a job can be stopped
without losing work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coach.core.estimation.forms import FloatArray


@dataclass(frozen=True, slots=True)
class FixedRun:
    """A job with a fixed choice: seconds and currency units at the end of each epoch [n], both cumulative.

    The last epoch reaches the target.
    """

    seconds: FloatArray
    costs: FloatArray


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job had when it ended: seconds, currency units, and whether it reached its target."""

    seconds: float
    spent: float
    reached: bool


def after_the_fact(run: FixedRun, budget: float) -> Outcome:
    """Usage is added up when it is over; what exceeds the budget is completed, what comes later is refused.

    Source: MLflow, "Budget Alerts & Limits" of its AI gateway: "The request that causes the spend to exceed the budget
    is allowed to complete; rejection applies to requests that arrive after the threshold has been exceeded". Budgets
    of metered usage (Modal's, cloud providers') have the same order, and a delay that is left out here.
    """
    last = min(int(np.searchsorted(run.costs, budget)), len(run.costs) - 1)
    return _at(run, last)


def hourly_cap(run: FixedRun, budget: float) -> Outcome:
    """A cap of the price of an hour admits the job, and nothing ends it: `budget` is not known to it.

    Source: SkyPilot's `max_hourly_cost` of a task's resources. The user's cap is the price of the choice.
    """
    return _at(run, len(run.costs) - 1)


def time_limit(run: FixedRun, budget: float, limit: float) -> Outcome:
    """Credit for the whole time limit is held at the start; at `limit` seconds, or what the credit pays, it is killed.

    Source: Slurm, `AccountingStorageEnforce=safe` (Resource Limits): a job starts only if its association's
    `GrpTRESMins` cover it to its time limit.
    """
    limit = min(limit, float(np.interp(budget, _from_zero(run.costs), _from_zero(run.seconds))))
    if limit >= run.seconds[-1]:
        return _at(run, len(run.costs) - 1)
    return Outcome(limit, float(np.interp(limit, _from_zero(run.seconds), _from_zero(run.costs))), False)


def oracle(runs: list[FixedRun], budget: float) -> Outcome:
    """The fastest of all fixed choices that reaches its target within the budget; where none does it spends nothing."""
    within = [one for one in runs if one.costs[-1] <= budget]
    best = min(within, key=lambda one: float(one.seconds[-1]), default=None)
    return Outcome(0.0, 0.0, False) if best is None else _at(best, len(best.costs) - 1)


def _at(run: FixedRun, epoch: int) -> Outcome:
    return Outcome(float(run.seconds[epoch]), float(run.costs[epoch]), epoch == len(run.costs) - 1)


def _from_zero(values: FloatArray) -> FloatArray:
    return np.concatenate([[0.0], values])
