"""The thesis's question: what placement as a gang gains, and what decides it."""

import math
from typing import Any

import pytest

from coach_research.experiments.thesis import tightness as thesis_tightness
from coach_research.scenario import load

pytestmark = pytest.mark.standard

PARAMETERS: dict[str, Any] = {**load("thesis-tightness").parameters, "epochs": 5}


def ran(placement: str, jobs: int, cores: float, seed: int) -> dict[str, float]:
    parameters = {**PARAMETERS, "placements": {"it": placement}}
    return thesis_tightness.run(parameters, jobs, cores, "it", seed)


def test_with_room_for_all_the_placements_agree() -> None:
    gang, stock, rules = (ran(name, 3, 6, 1) for name in ("gang", "default:backoff=10", "thesis:backoff=10"))
    for other in (stock, rules):
        assert other["mean"] == pytest.approx(gang["mean"], rel=0.003)
        assert other["last"] == pytest.approx(gang["last"], rel=0.003)


@pytest.mark.full
def test_below_a_tightness_of_one_nothing_stands_still_and_above_only_gangs_never_do() -> None:
    stuck = {
        (placement, cell): sum(ran(text, *cell, seed)["deadlock"] > 0 for seed in range(5))
        for placement, text in PARAMETERS["placements"].items()
        for cell in ((3, 8), (3, 16))
    }
    assert thesis_tightness.tightness(PARAMETERS, 3, 8) < 1 < thesis_tightness.tightness(PARAMETERS, 3, 16)
    assert all(count == 0 for (_, cell), count in stuck.items() if cell == (3, 8))
    assert stuck["stock", (3, 16)] > 0 and stuck["thesis", (3, 16)] > 0 and stuck["gang", (3, 16)] == 0


def test_at_a_tight_load_the_placement_changes_the_result() -> None:
    stock, gang = (ran(PARAMETERS["placements"][name], 6, 6, 1) for name in ("stock", "gang"))
    assert stock["half"] > gang["half"] == 0
    assert stock["mean"] != pytest.approx(gang["mean"], rel=0.003)


@pytest.mark.full
def test_the_order_of_names_decides_under_the_thesiss_rules() -> None:
    """By name all servers of a job come before its first worker; by number they alternate."""
    by_name, by_number = (
        [ran(f"thesis:backoff=10,creation=2{more}", 6, 8, seed) for seed in range(4)] for more in ("", ",by_number=yes")
    )
    assert [str(run) for run in by_name] != [str(run) for run in by_number]


def test_a_run_that_stands_still_has_no_completion_times() -> None:
    stuck = next(run for seed in range(9) if (run := ran("default:backoff=10,creation=2", 6, 16, seed))["deadlock"])
    assert math.isnan(stuck["mean"]) and math.isnan(stuck["last"])
    assert stuck["half"] > 0
