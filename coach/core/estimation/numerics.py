"""SciPy for the fits, imported when something is fitted: commands that only read jobs start without it."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
#: Columns enter and leave the active set; SciPy's three steps a column were too few for some data.
MAX_STEPS = 10_000


def nnls(rows: FloatArray, values: FloatArray) -> FloatArray:
    """The non-negative x that minimises |rows x - values|, rows [m, n], values [m]."""
    from scipy.optimize import nnls as solve

    found, _ = solve(rows, values, maxiter=MAX_STEPS)
    return np.asarray(found)


def load() -> None:
    """Import SciPy. A reducer does so before it decides: no decision may depend on what was imported before."""
    import scipy.optimize  # first, as everywhere: threads that import in one order wait for each other
    import scipy.special  # noqa: F401


def ndtr(at: Any) -> Any:
    """The standard normal distribution function, as an array like `at`.

    SciPy's where it is imported, as it always is in a process that decides (`load`). A command that only reads jobs
    uses math's, which is fifty times slower and differs by rounding.
    """
    fast = getattr(sys.modules.get("scipy.special"), "ndtr", None)  # None too while another thread imports it
    return _ndtr(at) if fast is None else fast(at)


@np.vectorize(otypes=[np.float64])
def _ndtr(at: float) -> float:
    return 0.5 * math.erfc(-at / math.sqrt(2.0))
