"""The settings of section 6.4: other arrivals, varied speeds, kinds that are not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coach_research.dl2.workload import SLOT, epochs_per_second, workload
from coach_research.experiments import dl2_constants, dl2_generality
from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.scenario import load
from coach_research.workload import Work


def jobs(seed: int = 1, **changes: Any) -> list[Work]:
    given = {**load("dl2-figure-12").parameters, **changes}
    return list(workload(given, np.random.default_rng(seed)))


@pytest.mark.parametrize(("arrivals", "variance"), [({"uniform": 12}, 14.0), ({"poisson": 6}, 6.0)])
def test_six_jobs_a_slot_arrive_as_the_setting_says(arrivals: dict[str, int], variance: float) -> None:
    slots = np.array([round(work.arrival / SLOT) for work in jobs(jobs=6000, arrivals=arrivals)])
    counts = np.bincount(slots)[:-1]
    assert counts.mean() == pytest.approx(6, abs=0.3)
    assert counts.var() == pytest.approx(variance, rel=0.15)


def test_speeds_vary_within_the_part_and_the_jobs_stay_the_same() -> None:
    plain, varied = jobs(), jobs(variation=0.2)
    assert [(a.arrival, a.kind) for a in plain] == [(b.arrival, b.kind) for b in varied]
    ratios = np.array([
        work.speed(((0, w, s),)) / epochs_per_second(work.kind)(w, s)  # type: ignore[misc]
        for work in varied for w in (1, 7) for s in (1, 16)
    ])  # fmt: skip
    assert 0.8 <= ratios.min() < 0.85
    assert 1.15 < ratios.max() <= 1.2


def test_a_network_that_knows_one_kind_takes_every_job_for_it() -> None:
    settings = {"all": {}, "one": {"known": 1}, "eight": {"known": 8}}
    given = {**load("dl2-figure-17").parameters, "jobs": 20, "settings": settings}
    found = dl2_generality.replicate(given, 1)
    assert found["eight, DL²: first"] == 0.0
    assert found["one, DL²: first"] > 1.0
    assert found["one, Optimus: first"] == 0.0


def test_wrong_numbers_of_epochs_mislead_policies_that_look_at_them_alone() -> None:
    """On so few nodes that jobs compete: with room for all, Optimus gives each what it takes, however long it is."""
    settings = {"right": {}, "wrong": {"epoch_error": 0.9}}
    given = {**load("dl2-figure-16").parameters, "jobs": 20, "nodes": 8, "settings": settings}
    found = dl2_generality.replicate(given, 1)
    misled = {label: found[f"wrong, {label}: first"] for label in given["policies"]}
    assert misled["DRF"] == misled["2 workers and 15 servers"] == 0.0
    assert misled["Optimus"] != 0.0 and misled["DL²"] != 0.0


def test_all_constant_allocations_are_tried_and_the_best_comes_first() -> None:
    given = {**load("dl2-contended-constants").parameters, "jobs": 5, "most": 3}
    found = dl2_constants.replicate(given, 1)
    assert len(found) == 9
    assert found["2x3"] == measured(given, 1, each_slot("static:2x3"))["mean completion, slots"]
    rows = dl2_constants.table({name: np.array([value]) for name, value in found.items()}, given).splitlines()
    assert rows[2].startswith(f"| {min(found, key=found.__getitem__)} |")
