"""Why a job has its allocation: the steps of a decision as data. The journal keeps them; people read their text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from coach.core.cluster import Allocation


class StepKind(StrEnum):
    """What a step did with `before` and `after`."""

    PROBE = "probe"  #: measures `after`, which is expected to save `gain` and costs `cost`, both in `unit`
    TAKEN = "taken"  #: the policy changed `before` to `after`, because of `reason`
    REFUSED = "refused"  #: the policy considered `after` in place of `before`, and refused it because of `reason`
    FIXED = "fixed"  #: the job file fixes `after`; or a program keeps it, because of `reason`
    ALONE = "alone"  #: the policy gave nothing, but no other job holds pods: `after`
    DEGRADED = "degraded"  #: not all pods of `before` started, because of `reason`: `after`
    UNCOVERED = "uncovered"  #: the budget does not cover `before` any more: `after`


@dataclass(frozen=True, slots=True)
class DecisionStep:
    """One step. `before` and `after`: an allocation, or None for no pods.

    `reason`: a policy's reason (`Reason` of `coach.core.policies`), or a sentence. `gain`: what the step gains, in
    `unit`. `cost`: predicted currency units of an epoch after it; of a probe, in `unit`. `restart`: what a restart for
    the change costs, in `unit`. `fraction`: the share of the data that a probe trains at most. Numbers that are not
    finite, which JSON does not have, become None.
    """

    kind: StepKind
    before: Allocation | None = None
    after: Allocation | None = None
    reason: str = ""
    gain: float | None = None
    unit: str = ""
    cost: float | None = None
    restart: float | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        for name in ("gain", "cost", "restart", "fraction"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                object.__setattr__(self, name, None)

    def text(self, job: str) -> str:
        """The step as a line about `job`: `job a 2x1 -> 3x1: speed, 0.004 epochs/s, an epoch costs 0.012`."""
        match self.kind:
            case StepKind.PROBE:
                return f"probe {self.after}: {self.detail}"
            case StepKind.TAKEN:
                return f"job {job} {self.before or 'nothing'} -> {self.after or 'waits'}: {self.detail}"
            case StepKind.REFUSED:
                return f"job {job} {self.before or 'nothing'}, not {self.after or 'waits'}: {self.detail}"
            case StepKind.FIXED:
                return self.reason or "as its file says"
            case StepKind.ALONE:
                return f"no other job holds pods: {self.after}"
            case StepKind.DEGRADED:
                return f"{self.reason}; {self.after} instead of {self.before}"
            case StepKind.UNCOVERED:
                return f"{self.before} is not covered by the budget any more: {self.after} instead"

    @property
    def detail(self) -> str:
        """The reason and the numbers of a probe or of a policy's step."""
        if self.kind is StepKind.PROBE:
            detail = self.reason or "no speed is known yet"
            if self.gain is not None and self.cost is not None:
                saves, takes = (f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in (self.gain, self.cost))
                detail = f"expected to save {saves} {self.unit}, takes {takes} {self.unit}"
            return detail if self.fraction is None else f"{detail}; at most {self.fraction:.1%} of the data"
        detail = self.reason
        if self.unit and self.gain is not None:
            detail += f", {self.gain:.4g} {self.unit}"
        if self.restart is not None:
            detail += f" by changing, and a restart costs {self.restart:.4g}"
        if self.cost is not None:
            detail += f", an epoch costs {self.cost:.4g}"
        return detail
