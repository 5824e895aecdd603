"""Imports that a handler makes early, before a decision waits for them; elsewhere they are made on first use."""

from __future__ import annotations

import importlib

#: What `coach.core.estimation.numerics` takes from SciPy when something is fitted: 400 modules, a second of computing.
FOR_FITS = ("scipy.optimize", "scipy.special")


def for_fits() -> None:
    """Import what fits and decisions after the first epoch need, in any thread.

    Other threads that import SciPy meanwhile must begin with the same module, as `numerics` does: of two threads that
    import modules which import each other, each may see a partly imported one.
    """
    for name in FOR_FITS:
        importlib.import_module(name)
