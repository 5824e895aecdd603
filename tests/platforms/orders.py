"""An epoch's order, for who talks to functions without a reducer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from coach.core.cluster import Allocation, PodId
from coach.core.jobs.actions import RunEpoch
from coach.core.jobs.epoch import EpochKind


def whole_epoch(pods: Sequence[PodId], weights_out: str, **changes: Any) -> RunEpoch:
    """The first epoch of the job of `pods`, at 1x1, a minute long at most."""
    job = pods[0].job
    order = {
        "at": time.time(),
        "job": job,
        "token": f"{job}.1",
        "kind": EpochKind.FULL,
        "number": 1,
        "attempt": 1,
        "allocation": Allocation(1, 1),
        "pods": tuple(pods),
        "group": f"{job}.g1",
        "fraction": 1.0,
        "seconds": None,
        "position": 0,
        "weights_in": None,
        "weights_out": weights_out,
        "deadline": 60.0,
        "budget_bound": False,
        "reservation": 0,
        "predicted_seconds": None,
    }
    return RunEpoch(**{**order, **changes})
