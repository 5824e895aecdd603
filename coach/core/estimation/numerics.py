"""SciPy in the fits, imported when something is fitted: commands that only look at jobs start without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
#: Columns come and go in the active set; SciPy's three steps a column were too few for some data.
MAX_STEPS = 10_000


def nnls(rows: FloatArray, values: FloatArray) -> FloatArray:
    """The non-negative x that minimises |rows x - values|, rows [m, n], values [m]."""
    from scipy.optimize import nnls as solve

    found, _ = solve(rows, values, maxiter=MAX_STEPS)
    return np.asarray(found)


def least_squares(error: Callable[[Any], Any], start: FloatArray, bounds: tuple[float, float]) -> Any:
    """SciPy's result of minimising the squares of `error`, from `start` on, within `bounds`."""
    from scipy.optimize import least_squares as solve

    return solve(error, start, bounds=bounds)


def ndtr(at: Any) -> Any:
    """The standard normal distribution function."""
    import scipy.optimize  # noqa: F401 - first, as everywhere: threads that import in one order wait for each other
    from scipy.special import ndtr as distribution

    return distribution(at)
