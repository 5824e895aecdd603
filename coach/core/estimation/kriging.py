"""One form fitted to measured speeds: bounded least squares for its coefficients, kriging for the residuals.

Measured speeds deviate from any formula by some 10 %, and not at random: the nodes of a job's servers have the same
effect with every number of workers. So the logarithm of speed is modelled (universal kriging) as

    ln v(w, s) = ln form(w, s; theta) + z(w, s) + noise,   cov z = a² · exp(-|ln w/w'| / lw - |ln s/s'| / ls)

`theta` >= 0 comes from non-negative least squares on the relative error, whitened by the covariance of z + noise and
pulled towards the form's prior. `z` returns to 0 far from the measurements, where the form alone predicts. What the
data cannot identify is not fitted: without a measurement at s > 1 the servers' terms cannot be distinguished, so they
keep the prior's proportion, and their uncertainty stays in the interval (AdaptDL freezes such parameters).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from coach.core.estimation.forms import FloatArray, Form
from coach.core.estimation.numerics import nnls

# Round numbers from a range in which the errors on the seven models of tests/data/ps-speed are flat: the table
# "settings, speed" of results/estimators has each times 2/3 and 3/2, and the choice when one model is left out.
DEVIATION = 0.14  #: a: standard deviation of z
REACH_WORKERS = 2.0  #: lw, in ln workers
REACH_SERVERS = 0.5  #: ls, in ln servers
NOISE = 0.05  #: standard deviation of ln v in one measurement of weight 1
#: The weight of the prior DEVIATION and NOISE, in residuals.
BELIEF = 6.0
#: No time is below this share of the shortest measured one: far away the terms may sum to 0 ...
FLOOR = 0.05
#: ... and no prediction differs by more than this from the measured speeds, in ln speed (a factor of about 1000).
FURTHEST = 7.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted form: `theta` [k], relative to `scale` epochs/s, and the data of the n points for kriging."""

    form: Form
    theta: FloatArray
    scale: float
    floor: float  #: minimum sum of the terms
    bounds: tuple[float, float]  #: minimum and maximum ln speed
    log_w: FloatArray
    log_s: FloatArray
    alpha: FloatArray  #: weights of the points' deviations, [n]
    whiten: FloatArray  #: inverse Cholesky factor of cov(z + noise), [n, n]
    sensitivity: FloatArray  #: d ln form / d theta at the points, whitened, [n, k]
    covariance: FloatArray  #: of theta, [k, k]
    inflation: float  #: the ratio of the variance to its prior
    _theta: list[float] = field(default_factory=list, repr=False)  #: theta, and ...
    _deviations: list[tuple[float, float, float]] = field(default_factory=list, repr=False)  #: ... z, as plain numbers

    def __post_init__(self) -> None:
        self._theta.extend(self.theta.tolist())
        places = zip(self.alpha, self.log_w / REACH_WORKERS, self.log_s / REACH_SERVERS, strict=True)
        self._deviations.extend((DEVIATION**2 * float(a), float(x), float(y)) for a, x, y in places)

    def log_mean(self, w: FloatArray, s: FloatArray) -> FloatArray:
        """Expected ln speed at `w`, `s` [..., m]."""
        total = np.maximum(self.form.columns(w, s) @ self.theta, self.floor)
        mean = math.log(self.scale) - np.log(total)
        mean = mean + kernel(np.log(w), np.log(s), self.log_w, self.log_s) @ self.alpha
        return np.clip(mean, *self.bounds)

    def predict_one(self, w: float, s: float, *, parametric: bool = False) -> float:
        """exp(log_mean) at one place, in plain floats: allocation calls this for thousands of jobs.

        With `parametric` by the form alone.
        """
        total = max(sum(t * c for t, c in zip(self.form.terms(w, s), self._theta, strict=True)), self.floor)
        mean = math.log(self.scale) - math.log(total)
        if not parametric:
            log_w, log_s = math.log(w) / REACH_WORKERS, math.log(s) / REACH_SERVERS
            mean += sum(a * math.exp(-abs(log_w - x) - abs(log_s - y)) for a, x, y in self._deviations)
        return math.exp(min(max(mean, self.bounds[0]), self.bounds[1]))

    def log_variance(self, w: FloatArray, s: FloatArray) -> FloatArray:
        """Variance of ln speed (not of a new measurement of it) at `w`, `s` [..., m]; positive."""
        columns = self.form.columns(w, s)
        half = kernel(np.log(w), np.log(s), self.log_w, self.log_s) @ self.whiten.T
        sensitivity = columns / np.maximum(columns @ self.theta, self.floor)[..., None]
        rest = sensitivity - half @ self.sensitivity
        unknown = DEVIATION**2 - (half * half).sum(axis=-1) + ((rest @ self.covariance) * rest).sum(axis=-1)
        return np.asarray(self.inflation * np.maximum(unknown, 1e-9))


def kernel(log_w: FloatArray, log_s: FloatArray, to_w: FloatArray, to_s: FloatArray) -> FloatArray:
    """Covariance of z between [..., m] and [n] configurations, [..., m, n]."""
    apart = np.abs(log_w[..., None] - to_w) / REACH_WORKERS + np.abs(log_s[..., None] - to_s) / REACH_SERVERS
    return np.asarray(DEVIATION**2 * np.exp(-apart))


def fit_form(  # noqa: PLR0917 - the columns of the points
    form: Form,
    w: FloatArray,
    s: FloatArray,
    v: FloatArray,
    weight: FloatArray,
    theta: FloatArray | None = None,
) -> Fit:
    """Fit `form` to speeds `v` (epochs/s) at `w`, `s`, all [n], n >= 1; noise has variance NOISE² / `weight`.

    `theta`: the coefficients of an earlier fit to the same points, if known.
    """
    columns = form.columns(w, s)
    log_v = np.log(v)
    log_scale = float(np.mean(log_v + np.log(columns @ form.prior)))
    relative = np.exp(np.clip(log_v - log_scale, -FURTHEST, FURTHEST))
    floor = FLOOR / float(relative.max())

    log_w, log_s = np.log(w), np.log(s)
    covariance = kernel(log_w, log_s, log_w, log_s) + np.diag(NOISE**2 / weight)
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    if theta is None:
        rows = np.vstack([whiten @ (columns * relative[:, None]), np.diag(1.0 / form.doubt)])
        theta = nnls(rows, np.concatenate([whiten.sum(axis=1), form.prior / form.doubt]))

    total = np.maximum(columns @ theta, floor)
    sensitivity = whiten @ (columns / total[:, None])
    residual = whiten @ (log_v - log_scale + np.log(total))
    return Fit(
        form=form,
        theta=theta,
        scale=math.exp(log_scale),
        floor=floor,
        bounds=(float(log_v.min()) - FURTHEST, float(log_v.max()) + FURTHEST),
        log_w=log_w,
        log_s=log_s,
        alpha=whiten.T @ residual,
        whiten=whiten,
        sensitivity=sensitivity,
        covariance=np.asarray(np.linalg.inv(sensitivity.T @ sensitivity + np.diag(form.doubt**-2.0))),
        inflation=(BELIEF + float(residual @ residual)) / (BELIEF + len(v)),
    )
