"""Allocation policies, one file a system, and the one place that knows their names."""

from __future__ import annotations

import re
from collections.abc import Callable

from coach.core.cluster import Allocation
from coach.core.errors import UserError
from coach.core.policies.base import (
    AllocationDecision,
    AllocationPolicy,
    ClusterView,
    Estimate,
    JobView,
    Reason,
    Step,
)
from coach.core.policies.climb import Objective
from coach.core.policies.coach import CoachPolicy
from coach.core.policies.static import StaticPolicy

__all__ = [
    "AllocationDecision",
    "AllocationPolicy",
    "ClusterView",
    "CoachPolicy",
    "Estimate",
    "JobView",
    "Objective",
    "Reason",
    "StaticPolicy",
    "Step",
    "policy",
]


def _coach(argument: str) -> AllocationPolicy | None:
    return CoachPolicy(Objective(argument or "soonest")) if argument in {"", *Objective} else None


def _static(argument: str) -> AllocationPolicy | None:
    counts = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", argument)
    return StaticPolicy(Allocation(int(counts[1]), int(counts[2]))) if counts else None


#: Name before the colon -> (how it is written, what makes it from the text after the colon, or None if that is wrong).
_POLICIES: dict[str, tuple[str, Callable[[str], AllocationPolicy | None]]] = {
    "coach": (f"coach or coach:<{'|'.join(Objective)}>", _coach),
    "static": ("static:<workers>x<servers>, such as static:2x1", _static),
}


def policy(spec: str) -> AllocationPolicy:
    """The policy that `spec` names, such as `coach`, `coach:cheapest` or `static:2x1`.

    Raises UserError, with all that would be right, for any other text.
    """
    name, _, argument = spec.strip().partition(":")
    made = _POLICIES[name][1](argument) if name in _POLICIES else None
    if made is None:
        known = "; ".join(form for form, _ in _POLICIES.values())
        raise UserError(f"there is no policy {spec!r}, nothing was started; right would be: {known}")
    return made
