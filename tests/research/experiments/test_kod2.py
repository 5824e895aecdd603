"""KOD2's experiments: the jobs, what a killed job counts, and what utilisation is."""

from __future__ import annotations

import numpy as np
import pytest

from coach_research import scenario
from coach_research.experiments import kod2

pytestmark = pytest.mark.standard

NAMES = ["kod2", "kod2-timeout-600", "kod2-timeout-1800", "kod2-timeout-3600", "kod2-in-order"]
PARAMETERS = scenario.load("kod2").parameters


def test_all_models_and_batches_have_the_same_ten_jobs() -> None:
    def asked(model: str, batch: int) -> list[object]:
        works = kod2.workload(PARAMETERS, model, batch, np.random.default_rng(3))
        return [
            (work.arrival, work.minimum, work.maximum, work.worker.tolist(), work.server.tolist()) for work in works
        ]

    assert len(asked("VGG-16", 8)) == 10
    assert asked("VGG-16", 8) == asked("VGG-16", 128) == asked("CNN-rand", 64)


def test_a_far_worker_helps_less_and_with_a_small_batch_least() -> None:
    def far(model: str, batch: int) -> float:
        speed = kod2.workload(PARAMETERS, model, batch, np.random.default_rng(3))[0].speed
        assert speed is not None
        assert speed(((0, 3, 1),)) == 3.0
        return speed(((0, 1, 1), (1, 1, 0))) - 1.0

    assert 0.0 < far("VGG-16", 8) < far("VGG-16", 128) < 1.0
    assert far("VGG-16", 64) < far("CNN-rand", 64)


def test_a_job_at_the_reference_batch_takes_its_seconds() -> None:
    def work(batch: int) -> float:
        return kod2.workload(PARAMETERS, "VGG-16", batch, np.random.default_rng(3))[0].work

    assert work(128) == 900.0
    assert work(8) == pytest.approx(900.0 * (1 + 8 / 8) / (1 + 8 / 128))


def test_only_jobs_that_train_use_cpu_and_a_killed_job_counts_until_it_was_killed() -> None:
    # Two jobs that together do not fit: with two cores for pods of one core, each gets one of its two.
    parameters = PARAMETERS | {
        "jobs": 3, "gap": 10, "nodes": 1, "node": [2, 32], "reserved": [0, 0], "min_workers": [1], "more_workers": [0],
        "worker_cpu": [1], "deadlock_timeout": 500.0,
    }  # fmt: skip
    works = kod2.workload(parameters, "CNN-rand", 128, np.random.default_rng(0))
    found = []
    for seed in range(6):
        record = kod2.operate(works, kod2.TFOperator(np.random.default_rng(seed), 500.0), parameters)
        found.append((record.killed.sum(), record.left.tolist(), kod2.burnt(works, record, 900.0)))
    assert (2, [600.0, 1100.0, 1100.0], 1200.0) in found
    assert (0, [600.0, 1200.0, 1800.0], 1800.0) in [(k, sorted(left), b) for k, left, b in found]


def test_pods_wait_from_their_placing_until_their_job_starts_or_is_killed() -> None:
    parameters = PARAMETERS | {
        "jobs": 2, "gap": 10, "nodes": 1, "node": [3, 32], "reserved": [0, 0], "min_workers": [1], "more_workers": [0],
        "worker_cpu": [1],
    }  # fmt: skip
    works = kod2.workload(parameters, "CNN-rand", 128, np.random.default_rng(0))
    for timeout, waited in (
        (None, 590.0),
        (100.0, 100.0),
    ):  # the second job's server waits for the core of its worker
        operator = kod2.Waiting(kod2.TFOperator(np.random.default_rng(0), timeout))
        kod2.operate(works, operator, parameters)
        assert operator.pod_seconds(5000.0) == pytest.approx(waited)
        assert operator.pod_seconds(60.0) == pytest.approx(50.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_measures_what_its_targets_name_and_again_the_same(name: str) -> None:
    one = scenario.load(name)
    parameters, seeds = one.settings(quick=True)
    found = kod2.replicate(parameters, seeds[0])
    assert {target.measure for target in one.targets} <= found.keys()
    np.testing.assert_equal(kod2.replicate(parameters, seeds[0]), found)
