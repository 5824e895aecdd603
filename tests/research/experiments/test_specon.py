"""SpeCon's experiments: the jobs, and what is said of two runs."""

from __future__ import annotations

import numpy as np
import pytest

from coach_research import scenario
from coach_research.experiments import specon

pytestmark = pytest.mark.standard

NAMES = ["specon-fig5", "specon-fig6", "specon-fig7", "specon-fig12", "specon-table3"]


def test_two_runs_are_compared_as_the_paper_does() -> None:
    parameters = scenario.load("specon-fig5").parameters
    works = specon.workload(parameters | {"jobs": 4}, np.random.default_rng(0))  # at 0, 50, 100 and 150 s
    none = np.zeros(4)
    found = specon.compare(
        works,
        (np.array([100.0, 250.0, 300.0, 550.0]), none),
        (np.array([100.0, 200.0, 360.0, 350.0]), np.array([0.0, 1.0, 0.0, 2.0])),
    )
    assert found == pytest.approx(
        {
            "DS mean completion, s": 225.0,
            "SpeCon mean completion, s": 177.5,
            "mean completion reduced, %": 100 * 47.5 / 225,
            "DS makespan, s": 550.0,
            "SpeCon makespan, s": 360.0,
            "makespan reduced, %": 100 * 190 / 550,
            "jobs faster, %": 50.0,
            "faster jobs: reduced on average, s": 125.0,
            "faster jobs: reduced on average, %": (25.0 + 50.0) / 2,
            "slower jobs: increased on average, s": 60.0,
            "slower jobs: increased on average, %": 30.0,
            "best job reduced, %": 50.0,
            "moves": 3.0,
            "jobs moved, %": 50.0,
        }
    )


def test_a_loss_passes_through_the_point_of_figure_1() -> None:
    parameters = scenario.load("specon-fig6").parameters
    for work in specon.workload(parameters, np.random.default_rng(1)):
        assert work.loss is not None
        early = parameters["models"][work.kind][1]
        assert work.loss(0.0) == 1.0
        floor = parameters["loss_floor"]
        assert 1.0 - work.loss(0.2 * work.work) == pytest.approx((1.0 - floor) * early)
        assert work.loss(100.0 * work.work) == pytest.approx(floor)


def test_jobs_come_within_the_window_in_order() -> None:
    parameters = scenario.load("specon-fig7").parameters
    arrivals = [work.arrival for work in specon.workload(parameters, np.random.default_rng(2))]
    assert len(arrivals) == 30
    assert arrivals == sorted(arrivals)
    assert 0.0 <= arrivals[0] < arrivals[-1] <= 600.0


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_measures_what_its_targets_name_and_again_the_same(name: str) -> None:
    one = scenario.load(name)
    parameters, seeds = one.settings(quick=True)
    found = specon.replicate(parameters, seeds[0])
    assert {target.measure for target in one.targets} <= found.keys()
    np.testing.assert_equal(specon.replicate(parameters, seeds[0]), found)
    assert specon.replicate(parameters, seeds[1]) != found


def test_line_15_over_all_workers_moves_more_than_as_printed() -> None:
    parameters = scenario.load("specon-fig5").parameters
    measures = specon.replicate(parameters, 1)
    assert measures["line 15 over all workers: moves"] > measures["as printed: moves"]
