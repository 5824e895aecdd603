"""The analytic speeds that OfflineRL learns from."""

from __future__ import annotations

import numpy as np
import pytest

from coach_research.dl2.slots import Case
from coach_research.dl2.workload import ANALYTIC, MODELS, SLOT, analytic_epochs_per_second
from coach_research.scenario import load


def test_a_step_is_the_computation_and_two_transfers_over_shared_links() -> None:
    # ResNet-50: 102.2 MB in two parts; two servers share each worker's link, four workers each server's.
    step = 0.449 + 2 * (102.2 / 2) * 4 / 91.875
    assert analytic_epochs_per_second("resnet-50", 4, 2) == pytest.approx(4 / step / 115)


@pytest.mark.parametrize("model", MODELS)
def test_more_workers_with_as_many_servers_are_always_faster(model: str) -> None:
    assert ANALYTIC.keys() == MODELS.keys()
    speeds = [analytic_epochs_per_second(model, n, n) for n in range(1, 17)]
    assert speeds == sorted(speeds)
    # At one server all transfers are on one link; nothing else grows faster than the workers.
    assert 16 * speeds[0] <= speeds[15] * (1 + 1e-9)


def test_the_analytic_best_of_every_model_is_what_drf_gives_where_there_is_room() -> None:
    """So the best that OfflineRL can learn is DRF (docs/advanced/policies.md)."""
    progress = Case.of({**load("dl2-baselines").parameters, "analytic": True}).progress
    for kind in progress:
        assert np.unravel_index(kind.argmax(), kind.shape) == (16, 16)


def test_a_case_has_them_on_demand() -> None:
    given = load("dl2-baselines").parameters
    plain, analytic = Case.of(given), Case.of({**given, "analytic": True})
    kind = analytic.kinds.index("vgg-16")
    part = MODELS["vgg-16"][1] * given["epochs"]
    assert analytic.progress[kind, 3, 5] == pytest.approx(analytic_epochs_per_second("vgg-16", 3, 5) * SLOT / part)
    assert not np.allclose(plain.progress, analytic.progress)
    assert np.array_equal(plain.uses, analytic.uses)
