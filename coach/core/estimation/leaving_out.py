"""Many fits of one form to the same points, each without some of them: `kriging.fit_form` for all at once.

After every epoch of every job these fits choose the form of its speeds and judge whether a point is an outlier. So they
are stacked along a first axis b. `tests/core/estimation/test_leaving_out.py` compares them with `fit_form`.
"""

from __future__ import annotations

import math

import numpy as np

from coach.core.estimation.forms import FloatArray, Form, IndexArray
from coach.core.estimation.kriging import BELIEF, DEVIATION, FLOOR, FURTHEST, NOISE, kernel
from coach.core.estimation.numerics import nnls

#: Mean and variance of ln speed at the points left out [b, o], and the ratio of the variance to its prior [b].
LeftOut = tuple[FloatArray, FloatArray, FloatArray]


def leave_out(  # noqa: PLR0917 - the columns of the points
    form: Form, w: FloatArray, s: FloatArray, v: FloatArray, weight: FloatArray, outs: IndexArray
) -> LeftOut:
    """Fit `form` to the points [n] without `outs[i]`, for each i, and predict those; all `outs` of one length o < n.

    Speeds `v` in epochs/s; `weight` as in `fit_form`.
    """
    n = len(v)
    out = outs
    inside = np.ones((len(out), n), dtype=bool)
    np.put_along_axis(inside, out, False, axis=1)
    rest = np.nonzero(inside)[1].reshape(len(out), -1)

    every = form.columns(w, s)
    log_w, log_s = np.log(w), np.log(s)
    between = kernel(log_w, log_s, log_w, log_s)
    believed = form.power * np.log(np.maximum(every @ form.prior, FLOOR))
    columns, log_v = every[rest], np.log(v)[rest]
    log_scale = np.mean(log_v - believed[rest], axis=1)
    relative = np.exp(np.clip(log_v - log_scale[:, None], -FURTHEST, FURTHEST))
    floor = FLOOR * relative.min(axis=1) if form.power > 0 else FLOOR / relative.max(axis=1)

    covariance = between[rest[:, :, None], rest[:, None, :]]
    diagonal = np.arange(rest.shape[1])
    covariance[:, diagonal, diagonal] += (NOISE**2 / weight)[rest]
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    weighted = whiten @ (columns * (relative**-form.power)[:, :, None])
    values = whiten.sum(axis=2)
    prior_rows, prior_values = np.diag(1.0 / form.doubt), form.prior / form.doubt
    theta = np.array(
        [
            nnls(np.concatenate([rows, prior_rows]), np.concatenate([right, prior_values]))
            for rows, right in zip(weighted, values, strict=True)
        ]
    )

    total = np.maximum((columns @ theta[:, :, None])[:, :, 0], floor[:, None])
    sensitivity = whiten @ (columns / total[:, :, None])
    residual = (whiten @ (log_v - log_scale[:, None] - form.power * np.log(total))[:, :, None])[:, :, 0]
    alpha = (whiten.transpose(0, 2, 1) @ residual[:, :, None])[:, :, 0]
    doubt = np.linalg.inv(sensitivity.transpose(0, 2, 1) @ sensitivity + np.diag(form.doubt**-2.0))
    inflation = (BELIEF + (residual * residual).sum(axis=1)) / (BELIEF + rest.shape[1])

    there = every[out]
    sums = np.maximum((there @ theta[:, :, None])[:, :, 0], floor[:, None])
    near = between[out[:, :, None], rest[:, None, :]]
    mean = form.power * np.log(sums) + log_scale[:, None] + (near @ alpha[:, :, None])[:, :, 0]
    mean = np.clip(mean, (log_v.min(axis=1) - FURTHEST)[:, None], (log_v.max(axis=1) + FURTHEST)[:, None])
    half = near @ whiten.transpose(0, 2, 1)
    left = there / sums[:, :, None] - half @ sensitivity
    unknown = DEVIATION**2 - (half * half).sum(axis=2) + ((left @ doubt) * left).sum(axis=2)
    return mean, inflation[:, None] * np.maximum(unknown, 1e-9), inflation


def log_density(error: FloatArray, variance: FloatArray) -> float:
    """The sum of the log densities of normal errors."""
    return -0.5 * float(np.sum(error * error / variance + np.log(2.0 * math.pi * variance)))
