"""Policies, one file a system; `registry` knows their names."""

from __future__ import annotations

from coach.core.policies.base import (
    AllocationDecision,
    AllocationPolicy,
    ClusterView,
    Estimate,
    JobView,
    Objective,
    Reason,
    Step,
)
from coach.core.policies.coach import CoachPolicy
from coach.core.policies.registry import policy, reactive
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
    "reactive",
]
