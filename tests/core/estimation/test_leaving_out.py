"""Fits made together are the fits made one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.estimation.forms import FORMS
from coach.core.estimation.kriging import fit_form
from coach.core.estimation.leaving_out import leave_out

pytestmark = pytest.mark.standard

POINTS = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 12), st.floats(1e-4, 10.0), st.floats(0.05, 20.0)),
    min_size=3,
    max_size=14,
    unique_by=lambda point: point[:2],
)


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize("size", [1, 2])
@given(points=POINTS)
def test_all_at_once_is_one_by_one(form, size, points) -> None:  # type: ignore[no-untyped-def]
    columns = tuple(np.array(points, dtype=float).T)
    outs = [[at + other for other in range(size)] for at in range(len(points) - size + 1)]
    mean, variance, inflation = leave_out(form, *columns, np.array(outs))
    for at, out in enumerate(outs):
        rest = [i for i in range(len(points)) if i not in out]
        fit = fit_form(form, *(column[rest] for column in columns))
        w, s = columns[0][out], columns[1][out]
        np.testing.assert_allclose(mean[at], fit.log_mean(w, s), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(variance[at], fit.log_variance(w, s), rtol=1e-6, atol=1e-10)
        assert inflation[at] == pytest.approx(fit.inflation, rel=1e-9)
