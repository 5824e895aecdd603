"""Curves that the estimator was not made for: always the same, and better predicted by three memories than by one."""

import numpy as np
import pytest

from benchmarks.estimation import unseen_curves
from coach.core.estimation import convergence, mixture
from coach_research.estimators.evaluation import tasks_within

pytestmark = pytest.mark.standard


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(mixture, "MEMORIES", mixture.MEMORIES)
    monkeypatch.setattr(convergence, "TAIL", convergence.TAIL)
    yield
    convergence.fitted.cache_clear()


def test_at_least_thirty_curves_are_drawn_and_always_the_same():
    first, again = unseen_curves.drawn(), unseen_curves.drawn()
    assert first == again
    assert sum(map(len, first.values())) >= 30
    assert all(np.isfinite(curve).all() and min(curve) > 0 for of in first.values() for curve in of)


def test_three_memories_predict_the_end_of_drawn_curves_better_than_one():
    tasks = {
        kind: [task for curve in of for task in tasks_within(curve, "loss", ends=(20, 35))]
        for kind, of in unseen_curves.drawn().items()
    }
    pool, one = ([unseen_curves.judged(of, variant) for of in tasks.values()] for variant in ("pool", "one memory"))
    half = unseen_curves.MOMENTS.index(0.5)
    assert np.mean([found.error[half] for found in pool]) < np.mean([found.error[half] for found in one])
    assert np.mean([found.inside for found in pool]) > np.mean([found.inside for found in one])
    assert min(np.mean(found.inside) for found in pool) > 0.65
