"""Which optimizers the functions of this machine have, for those who read job files."""

from __future__ import annotations

from coach.core.spec.training import Framework
from coach.jobfiles.optimizers import Catalogue, Class
from coach.platforms.local.catalogue import catalogue


def optimizers_here(framework: Framework) -> Catalogue | None:
    """What the Python that runs the functions says; None where there is none yet."""
    if (said := catalogue(framework)) is None:
        return None
    optimizers, schedules = (
        {
            name: Class(one.get("arguments", {}), tuple(one.get("required", ())), one.get("unfit", ""))
            for name, one in said[kind].items()
        }
        for kind in ("optimizers", "schedules")
    )
    return Catalogue(optimizers, schedules)
