"""The allocations that a decision considered for a job in addition to the chosen one, and why each was refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

from coach.core.cluster import Allocation
from coach.core.estimation.speed import MIN_EFFICIENCY
from coach.core.jobs import actions as act
from coach.core.jobs.decision import DecisionStep, StepKind
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.lifecycle import forecast
from coach.core.lifecycle.job_view import ReducerJobView
from coach.core.policies.api.allocation import Objective
from coach.core.policies.api.allocation import Reason as StepReason
from coach.core.policies.sharing.hill_climbing import ROUNDING, late, within_epoch_budget
from coach.handler.state.journal import take_in
from coach.report import formatting
from coach.report.row_types import ChoiceRow

#: Reasons for which a decision takes workers and servers back.
_NO_ROOM = {
    StepReason.CPU: "no cores left",
    StepReason.MEMORY: "no memory left",
    StepReason.GPU: "no devices left",
    StepReason.FRAGMENTATION: "no node has the capacity",
    StepReason.HELD: "other jobs hold the capacity",
}


#: Allocations that are named for each reason.
MAX_NAMED = 8


class Verdict(StrEnum):
    """The result for an allocation that was considered."""

    CHOSEN = "chosen"
    NO_GAIN = "no gain"
    TOO_DEAR = "too dear"
    TOO_LATE = "too late"
    NO_ROOM = "no room"
    NOT_REACHED = "not reached"  #: better by itself, but the policy stopped before it


@dataclass(frozen=True, slots=True)
class Choice:
    """An allocation that was considered. `pace`: its speed relative to the chosen one (0.1: 10 % faster).

    `cost`: predicted currency units of an epoch. `reason`: more about the verdict.
    """

    allocation: Allocation
    verdict: Verdict
    pace: float = 0.0
    cost: float = 0.0
    reason: str = ""

    @property
    def faster(self) -> str:
        """`38 % slower`."""
        return f"{formatting.percent(abs(self.pace))} {'faster' if self.pace >= 0 else 'slower'}"

    @property
    def refusal(self) -> str:
        """`no gain`, or `no room: no cores left`."""
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict.value

    @property
    def row(self) -> ChoiceRow:
        """The same as a row."""
        at = self.allocation
        return ChoiceRow(at.workers, at.servers, self.verdict.value, self.reason, self.pace, self.cost)


@dataclass(frozen=True, slots=True)
class Decision:
    """The last decision on a whole epoch: the job as it was then, what was chosen, and the recorded steps."""

    job: Job
    chosen: Allocation
    steps: tuple[DecisionStep, ...]

    def choices(self) -> list[Choice]:
        """See `considered`."""
        return considered(self.job, self.chosen, self.steps)


def last_decision(records: Iterable[Any], name: str) -> Decision | None:
    """The last decision on a whole epoch of job `name`, from its journal; None before there was one."""
    own = [record for record in records if record.job in ("", name)]
    at = max(
        (index for index, record in enumerate(own) if is_decision(record, name)),
        default=None,
    )
    if at is None:
        return None
    known: dict[str, Job] = {}
    for record in own[:at]:
        take_in(known, record)
    return Decision(known[name], own[at].allocation, own[at].why)


def is_decision(record: Any, name: str) -> TypeGuard[act.SetAllocation]:
    """Whether a record is a decision on a whole epoch of job `name`."""
    return isinstance(record, act.SetAllocation) and record.job == name and record.kind is EpochKind.FULL


def considered(job: Job, chosen: Allocation, steps: Sequence[DecisionStep] = ()) -> list[Choice]:
    """Each allocation within the job's limits (a sample of wide ones), and why it was refused; `chosen` first.

    From what is known about `job` now, and from the `steps` of the decision, which say what did not fit on the cluster.
    Only `chosen` where no speed is known, or the job file leaves no choice.
    """
    first = [Choice(chosen, Verdict.CHOSEN)]
    if job.speed is None or job.spec.policy.allocation is not None:
        return first
    changes = [(step.before, step) for step in steps if step.kind is StepKind.TAKEN and step.before]
    taken_back = {at: StepReason(step.reason) for at, step in changes if step.reason in _NO_ROOM}
    restarts = {at for at, step in changes if step.reason == StepReason.RESTART}
    view = ReducerJobView(job)
    others = [at for at in dict.fromkeys([*forecast.allocations(job), *taken_back]) if at != chosen]
    return first + [_judged(view, at, chosen, _short_of(job, at, taken_back), at in restarts) for at in others]


def _short_of(job: Job, at: Allocation, taken_back: dict[Allocation, StepReason]) -> StepReason | None:
    """Why `at` does not fit on the cluster, given that the decision took back `taken_back`; None: unknown."""
    if at in taken_back:
        return taken_back[at]
    total = job.spec.resources.total
    for other, reason in taken_back.items():
        if reason in (StepReason.CPU, StepReason.MEMORY, StepReason.GPU):
            if getattr(total(at), reason) >= getattr(total(other), reason):
                return reason
        elif at.workers >= other.workers and at.servers >= other.servers:
            return reason
    return None


def _judged(
    view: ReducerJobView, at: Allocation, chosen: Allocation, short_of: StepReason | None, restart: bool
) -> Choice:
    """`restart`: it was not chosen because of what a change would cost."""
    cost, before = view.epoch_cost(at), view.epoch_cost(chosen)
    pace = view.speed(at) / view.speed(chosen) - 1
    cheapest = view.objective is Objective.CHEAPEST
    reason = ""
    if not view.affordable(at):
        verdict, reason = Verdict.TOO_DEAR, "the money left does not cover it"
    elif cheapest and late(view, view.speed(at)):
        verdict, reason = Verdict.TOO_LATE, "it would end after its time limit"
    elif cheapest and cost >= before * (1 - ROUNDING):
        verdict, reason = Verdict.NO_GAIN, "an epoch costs no less"
    elif not cheapest and pace <= 0:
        verdict = Verdict.NO_GAIN
    elif not cheapest and not within_epoch_budget(view, at):
        verdict, reason = Verdict.TOO_DEAR, f"an epoch may cost {formatting.amount(view.epoch_budget(at))}"
    elif short_of is not None:
        verdict, reason = Verdict.NO_ROOM, _NO_ROOM[short_of]
    elif restart:
        verdict, reason = Verdict.NO_GAIN, "it does not pay for a restart"
    elif not cheapest and pace <= MIN_EFFICIENCY * max(0, sum(at) - sum(chosen)) / sum(chosen):
        verdict, reason = Verdict.NO_GAIN, "too little for its functions"
    else:
        verdict = Verdict.NOT_REACHED
    return Choice(at, verdict, pace, cost, reason)


def refused_words(choices: Sequence[Choice]) -> list[str]:
    """The refused allocations, a line for each reason: `no gain: 1x1 (37 % slower), 1x2 (35 % slower)`."""
    lines: dict[str, list[str]] = {}
    for one in choices:
        if one.verdict is not Verdict.CHOSEN:
            lines.setdefault(one.refusal, []).append(f"{one.allocation} ({one.faster})")
    return [
        f"{refusal}: {', '.join(named[:MAX_NAMED])}"
        + (f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else "")
        for refusal, named in lines.items()
    ]
