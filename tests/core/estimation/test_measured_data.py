"""The estimators on measured data: bounds loose enough for a fair change, tight enough for a broken one.

The targets and the exact numbers are in results/estimators/summary.md, written by benchmarks/estimators.py.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from coach.core.errors import UserError
from coach.core.estimation import judging
from coach.report.estimators import (
    EstimatorRow,
    curve_tasks,
    estimator_table,
    read_runs,
    read_speeds,
    run_tasks,
)

DATA = Path(__file__).parents[2] / "data"
SPEEDS = DATA / "ps-speed" / "ps_speed.csv"
RUNS = DATA / "thesis" / "runs"
CURVES = Path(__file__).parent / "curves" / "curves.csv"


@pytest.fixture(scope="module")
def models():
    with SPEEDS.open() as file:
        return read_speeds(list(csv.DictReader(file)))


@pytest.fixture(scope="module")
def runs():
    found = []
    for file in sorted(RUNS.rglob("*.txt")):
        found += read_runs(file.read_text(), file.parent.name)
    return run_tasks(found)


def test_seven_models_are_read_and_holes_are_not_speeds(models):
    assert len(models) == 7
    assert (5, 1) not in models["inception-bn"]  # recorded as 0.0
    assert len(models["resnet-50"]) == 210


def test_distinct_runs_are_counted_once_with_the_targets_they_were_stopped_by(runs):
    lenet, cifar = runs["LeNet, by the rule"], runs["Cifar10, by the rule"]
    assert (len(lenet), len(cifar)) == (25, 42)
    assert lenet[0].target == pytest.approx(0.85, abs=0.001)
    assert cifar[0].target == pytest.approx(0.5, abs=0.01)
    explained = [judging.first_stop(t.values, t.target, 3) == len(t.values) for t in lenet + cifar]
    assert explained.count(False) == 1  # one run went on


def test_speed_from_eight_chosen_points_is_within_ten_per_cent_and_loses_little(models):
    verdicts = []
    for speeds in models.values():
        chosen = judging.chosen_points(speeds, speeds.__getitem__)
        assert len(chosen) <= 8
        verdicts.append(judging.judge_speed(speeds, chosen, "coach"))
    assert np.mean([v.error for v in verdicts]) <= 0.08
    assert np.mean([v.lost for v in verdicts]) <= 0.07
    assert 0.6 <= np.mean([v.inside for v in verdicts]) <= 0.97


def test_speed_from_eight_random_points_beats_both_published_methods(models):
    errors = {method: [] for method in judging.METHODS}
    for speeds in models.values():
        for seed in range(5):
            points = judging.random_points(speeds, np.random.default_rng(seed))
            for method, found in errors.items():
                found.append(judging.judge_speed(speeds, points, method).error)
    coach = np.mean(errors["coach"])
    assert coach <= 0.085
    assert coach < np.mean(errors["optimus"]) < np.mean(errors["thesis"])


def test_noisy_probes_cost_some_error_not_all(models):
    random = np.random.default_rng(0)
    verdicts = []
    for speeds in models.values():
        chosen = judging.chosen_points(
            speeds, lambda at, v=speeds: v[at] * np.exp(0.07 * random.standard_normal())
        )
        verdicts.append(judging.judge_speed(speeds, chosen, "coach"))
    assert np.mean([v.error for v in verdicts]) <= 0.13
    assert np.mean([v.lost for v in verdicts]) <= 0.12
    assert np.mean([v.inside for v in verdicts]) >= 0.55


@pytest.mark.parametrize(
    ("group", "half_way", "near_the_end"),
    [
        ("LeNet, by the rule", 0.15, 0.1),
        ("Cifar10, by the rule", 0.3, 0.15),
        ("Cifar10, crossing", 0.5, 0.15),
    ],
)
def test_the_last_epoch_of_the_thesis_s_runs(runs, group, half_way, near_the_end):
    for share, bound in ((0.5, half_way), (0.9, near_the_end)):
        errors = [judging.judge_curve(task, share, "coach").error for task in runs[group]]
        assert np.median(errors) <= bound


def test_the_last_epoch_of_small_models_and_its_interval():
    with CURVES.open() as file:
        tasks = curve_tasks(list(csv.DictReader(file)))
    assert set(tasks) == {"test-loss", "test-accuracy", "batch-loss"}
    for found in tasks.values():
        verdicts = [judging.judge_curve(task, 0.5, "coach") for task in found]
        assert np.median([v.error for v in verdicts]) <= 0.3
        assert np.mean([v.no_solution for v in verdicts]) <= 0.08
        assert 0.7 <= np.mean([v.inside for v in verdicts]) <= 0.98


def test_the_table_compares_all_methods_on_any_file_of_the_schema(tmp_path):
    rows = SPEEDS.read_text().splitlines(keepends=True)
    file = tmp_path / "mine.csv"
    file.write_text(rows[0] + "".join(row for row in rows if row.startswith("wlm")))
    table = estimator_table(file)
    row = next(r for r in table if (r.subject, r.measure) == ("wlm", "speed error, 8 chosen"))
    assert 0 < row.coach < row.thesis
    inside = next(r for r in table if (r.subject, r.measure) == ("mean", "inside, 8 chosen"))
    assert (inside.thesis, inside.optimus, inside.target) == (None, None, "70-90 %")


def test_the_table_reads_run_logs(tmp_path):
    folder = tmp_path / "LeNet"
    folder.mkdir()
    log = next(RUNS.rglob("single_job_gang_scheduler_83_tl.txt"))
    (folder / "run.txt").write_text(log.read_text())
    table = estimator_table(tmp_path)
    assert all(isinstance(row, EstimatorRow) and row.section == "last epoch" for row in table)
    assert {"error at 30%", "error at 50%", "error at 70%", "error at 90%", "inside"} <= {
        r.measure for r in table
    }


def test_a_file_of_another_kind_is_the_user_s_mistake(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="wanted a CSV with the columns model, servers"):
        estimator_table(file)
    with pytest.raises(UserError, match="no such file"):
        estimator_table(tmp_path / "missing.csv")
