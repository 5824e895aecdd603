"""What is imported only when it is needed elsewhere, and in a handler before anything waits for it."""

from __future__ import annotations

import importlib

#: What `coach.core.estimation.numerics` takes from SciPy when something is fitted: 400 modules, a second of computing.
FOR_FITS = ("scipy.optimize", "scipy.special")


def for_fits() -> None:
    """Import what fits and decisions after the first epoch need, in whichever thread.

    Who else imports SciPy meanwhile has to begin with the same module, as `numerics` does: of two threads that import
    modules which import each other, each may see half of one.
    """
    for name in FOR_FITS:
        importlib.import_module(name)
