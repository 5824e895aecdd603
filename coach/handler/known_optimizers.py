"""Which optimizers the functions of this machine have, for those who read job files."""

from __future__ import annotations

from pydantic import TypeAdapter

from coach.core.spec.training import Framework
from coach.jobfiles.optimizers import Catalogue
from coach.platforms.local.catalogue import catalogue

_CATALOGUE = TypeAdapter(Catalogue)


def optimizers_here(framework: Framework) -> Catalogue | None:
    """What the Python that runs the functions says; None where there is none yet."""
    said = catalogue(framework)
    return None if said is None else _CATALOGUE.validate_python(said)
