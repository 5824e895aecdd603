"""Policies, one file each; `coach.plugins` has their names."""

from __future__ import annotations

from coach.core.policies.api.allocation import (
    AllocationDecision,
    ClusterView,
    Estimate,
    JobView,
    Objective,
    Reason,
    Step,
)
from coach.core.policies.api.policy import Policy
from coach.core.policies.coach import CoachPolicy
from coach.core.policies.static import StaticPolicy

__all__ = [
    "AllocationDecision",
    "ClusterView",
    "CoachPolicy",
    "Estimate",
    "JobView",
    "Objective",
    "Policy",
    "Reason",
    "StaticPolicy",
    "Step",
]
