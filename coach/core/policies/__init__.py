"""Policies, one file each; `coach.plugins` has their names."""

from __future__ import annotations

from coach.core.policies.api.base import (
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
]
