"""The forms of a speed surface: the terms that sum to the time of an epoch, and the prior of their coefficients.

All are linear in their coefficients, all of them >= 0, so that bounded least squares fit them:

* `parameter-server`:
  `1/v = a/w + b + c·w/s + d·w + e·s + f/s`: work divided among workers, work that is not, traffic of w workers
  through s servers, cost of keeping workers in step, cost of servers, and work divided among servers.
  Optimus (EuroSys 2018, eq. 4) has the first five; `f/s` is a server's own work on the parameters, which does not
  depend on the number of workers. Without it three of seven measured surfaces are fitted a quarter to four fifths worse
  (rms of ln v with and without: resnet-50 0.10 and 0.13, seq2seq 0.09 and 0.12, wlm 0.07 and 0.13).
* `all-reduce`, for a job without servers: `1/v = a/w + b·(1 - 1/w) + d·(w - 1)`: all work
  where one worker does it alone (a), what of it more workers do not divide together with the gradients that they
  exchange (b: a ring moves 2·(1 - 1/w) times the parameters, Patarasu and Yuan 2009), and the cost of keeping workers
  in step. A single worker exchanges nothing.
* `all-reduce-or-servers`, for a job that may have servers or none: the terms of the first with servers, of the second
  without, each with coefficients of its own. What was measured in one says of the other only how fast one worker is.

Coefficients are relative to the time in `kriging.Fit.scale`, so that no unit matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
FormName = Literal["parameter-server", "all-reduce", "all-reduce-or-servers"]
#: The servers that a job without any is fitted with: far from one, so that deviations measured with servers do not
#: reach it.
NO_SERVERS = 1.0 / 64.0


@dataclass(frozen=True, slots=True)
class Form:
    """A surface `1/v = sum of coefficient x term`, coefficients >= 0."""

    name: FormName
    #: (workers, servers) -> the k terms; without servers, NO_SERVERS
    terms: Callable[[Any, Any], tuple[Any, ...]]
    #: Prior mean of each coefficient, as a share of the whole at (1, 1), [k].
    prior: FloatArray
    #: Prior standard deviation, [k]. Wide: a handful of measurements outweighs the prior.
    doubt: FloatArray

    def columns(self, w: FloatArray, s: FloatArray) -> FloatArray:
        """The terms at `w`, `s` [..., n], as a matrix [..., n, k]."""
        matrix = np.empty((*w.shape, len(self.prior)))
        for k, term in enumerate(self.terms(w, s)):
            matrix[..., k] = term
        return matrix


PARAMETER_SERVER = Form(
    "parameter-server",
    lambda w, s: (1.0 / w, 1.0, w / s, w, s, 1.0 / s),
    np.array([0.35, 0.25, 0.10, 0.03, 0.004, 0.25]),
    np.array([1.20, 0.90, 0.35, 0.30, 0.030, 0.90]),
)
ALL_REDUCE = Form(
    "all-reduce",
    lambda w, s: (1.0 / w, 1.0 - 1.0 / w, w - 1.0),
    np.array([1.00, 0.40, 0.03]),
    np.array([1.20, 0.60, 0.15]),
)


def _either(w: Any, s: Any) -> tuple[Any, ...]:
    served = (s >= 1.0) * 1.0
    with_servers = (served * term for term in PARAMETER_SERVER.terms(w, s))
    return *with_servers, *((1.0 - served) * term for term in ALL_REDUCE.terms(w, s))


EITHER = Form(
    "all-reduce-or-servers",
    _either,
    np.concatenate([PARAMETER_SERVER.prior, ALL_REDUCE.prior]),
    np.concatenate([PARAMETER_SERVER.doubt, ALL_REDUCE.doubt]),
)

# Written once, the terms serve single numbers and arrays.
FORMS: dict[str, Form] = {form.name: form for form in (PARAMETER_SERVER, ALL_REDUCE, EITHER)}
