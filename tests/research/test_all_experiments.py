"""`coach experiment --quick`, for real: every experiment leaves its table, its numbers and its figures.

`make all-tests` runs all of them; `make test-research` one.
"""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coach_research import scenario
from coach_research.experiment import COLUMNS

#: All experiments take more than pytest's usual limit.
pytestmark = pytest.mark.timeout(1800)


def experiment(folder: Path, *names: str) -> str:
    """Run experiments; what was said."""
    coach = Path(sys.executable).with_name("coach")
    done = subprocess.run(
        [coach, "experiment", *names, "--quick", "--folder", folder, "-o", "csv"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiments")
    (folder / "shown.csv").write_text(experiment(folder, "--all"))
    return folder


@pytest.mark.standard
def test_one_experiment_leaves_its_numbers_its_table_and_its_figures(tmp_path: Path) -> None:
    experiment(tmp_path, "kod2-in-order")
    check_results(tmp_path, "kod2-in-order")


@pytest.mark.full
@pytest.mark.parametrize("name", scenario.names())
def test_an_experiment_leaves_its_numbers_its_table_and_its_figures(results: Path, name: str) -> None:
    if get := scenario.load(name).missing():
        pytest.skip(f"needs what is no part of Coach: {get}")
    check_results(results, name)


def check_results(results: Path, name: str) -> None:
    """What an experiment leaves in its folder."""
    one = scenario.load(name)
    parameters, seeds = one.settings(quick=True)
    rows = list(csv.DictReader((results / name / "measures.csv").read_text().splitlines()))
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        values.setdefault(row["measure"], {})[int(row["seed"])] = float(row["value"])
    assert values
    assert all(set(by_seed) == set(seeds) for by_seed in values.values())
    assert any(math.isfinite(value) for by_seed in values.values() for value in by_seed.values())
    assert json.loads((results / name / "settings.json").read_text())["parameters"] == json.loads(
        json.dumps(parameters)
    )
    text = (results / name / "comparison.md").read_text()
    assert text.startswith(f"# {one.title}\n")
    assert f"{len(seeds)} runs, {len(one.free_parameters)} free parameters" in text
    for target in one.targets:
        by_seed = values[target.measure]
        assert any(math.isfinite(value) for value in by_seed.values()), target.measure
        assert f"| {target.measure} | {target.paper:g}" in text
    figures = list((results / name).glob("*.svg"))
    assert figures
    for figure in figures:
        drawn = figure.read_text()
        assert drawn.startswith("<?xml")
        assert drawn.rstrip().endswith("</svg>")
        assert "<dc:date>" not in drawn  # the same results are the same bytes


@pytest.mark.full
def test_the_summary_has_every_number_of_every_paper(results: Path) -> None:
    rows = list(csv.DictReader((results / "summary.csv").read_text().splitlines()))
    ran = [name for name in scenario.names() if (results / name / "measures.csv").exists()]
    assert set(scenario.names()) - set(ran) <= {"pollux", "elasticflow-deadlines"}, "those need inputs of others"
    expected = [(name, target) for name in ran for target in scenario.load(name).targets]
    assert [(row["scenario"], row["measure"]) for row in rows] == [(name, one.measure) for name, one in expected]
    assert tuple(rows[0]) == COLUMNS
    for row, (_, target) in zip(rows, expected, strict=True):
        assert float(row["paper"]) == target.paper
        assert float(row["low"]) <= float(row["ours"]) <= float(row["high"])
        relative = float(row["ours"]) / target.paper - 1.0
        assert float(row["relative"]) == pytest.approx(relative)
        assert (row["within"] == "True") == (abs(relative) <= target.tolerance)
    assert list(csv.DictReader((results / "shown.csv").read_text().splitlines())) == rows


@pytest.mark.full
def test_the_summary_counts_for_each_paper_what_is_judged_and_within_its_tolerance(results: Path) -> None:
    rows = list(csv.DictReader((results / "summary.csv").read_text().splitlines()))
    text = (results / "summary.md").read_text()
    for name in [*dict.fromkeys(row["scenario"] for row in rows), None]:
        of = [row for row in rows if name in (None, row["scenario"])]
        judged, fitted = ([row for row in of if row["role"] == role] for role in ("judged", "calibrated"))
        line = next(line for line in text.splitlines() if line.startswith(f"| [{name}]" if name else "| **all**"))
        cells = [cell.strip() for cell in line.split("|")]
        for cell, some in ((cells[4], judged), (cells[7], fitted)):
            assert cell == (f"{sum(row['within'] == 'True' for row in some)} of {len(some)}" if some else "")
    assert (
        f"Without a number in a paper: {', '.join(n for n in scenario.names() if not scenario.load(n).targets)}."
        in text
    )


@pytest.mark.full
def test_the_summary_is_written_again_from_what_is_there(results: Path, tmp_path: Path) -> None:
    place = tmp_path / "experiments"
    shutil.copytree(results, place, ignore=shutil.ignore_patterns("summary.*"))
    coach = Path(sys.executable).with_name("coach")
    command = [str(coach), "experiment", "--all", "--quick", "--no-run", "--folder", str(place), "-o", "csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (results / "shown.csv").read_text()
    for name in ("summary.csv", "summary.md"):
        assert (place / name).read_bytes() == (results / name).read_bytes()
