"""What commands that only look have in place of SciPy gives the same; no decision is made with it."""

import subprocess
import sys

import numpy as np
import scipy.special

from coach.core.estimation import numerics


def test_without_scipy_the_normal_distribution_is_the_same_up_to_rounding(monkeypatch):
    at = np.concatenate([np.linspace(-38.0, 38.0, 1001), [-np.inf, np.inf]]).reshape(17, -1)
    found = numerics._ndtr(at)
    np.testing.assert_allclose(found, scipy.special.ndtr(at), rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(numerics.ndtr(at), scipy.special.ndtr(at))
    monkeypatch.delitem(numerics.sys.modules, "scipy.special")
    np.testing.assert_array_equal(numerics.ndtr(at), found)


def test_no_decision_depends_on_what_was_imported_before():
    code = """
import sys
from coach.core.jobs.events import HandlerStarted
from coach.core.lifecycle.reducer import Reducer
from coach.core.policies import CoachPolicy
assert "scipy.special" not in sys.modules, "commands that only look import as little as this"
Reducer(CoachPolicy()).react(HandlerStarted(0.0, ()))
assert "scipy.special" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
