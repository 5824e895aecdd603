"""The estimators on measured data: bounds loose enough for a fair change, tight enough for a broken one.

The targets and the exact numbers are in results/estimators/summary.md, written by benchmarks/estimation/estimators.py.
"""

from pathlib import Path

import numpy as np
import pytest

from coach.core.errors import UserError
from coach_research.estimators import evaluation as estimator_evaluation
from coach_research.estimators.measurements import read_measurements
from coach_research.estimators.table import EstimatorRow, estimator_table

pytestmark = pytest.mark.standard

DATA = Path(__file__).parents[1] / "data"
SPEEDS = DATA / "ps-speed" / "ps_speed.csv"
RUNS = DATA / "thesis" / "runs"
CURVES = Path(__file__).parents[2] / "coach" / "simulation" / "data" / "learning_curves.csv"


@pytest.fixture(scope="module")
def models():
    return read_measurements(SPEEDS).speeds


@pytest.fixture(scope="module")
def runs():
    return read_measurements(RUNS).tasks


def test_seven_models_are_read_and_holes_are_not_speeds(models):
    assert len(models) == 7
    assert (5, 1) not in models["inception-bn"]  # recorded as 0.0
    assert len(models["resnet-50"]) == 210


def test_distinct_runs_are_counted_once_with_the_targets_they_were_stopped_by(runs):
    lenet, cifar = runs["LeNet, by the rule"], runs["Cifar10, by the rule"]
    assert (len(lenet), len(cifar)) == (25, 42)
    assert lenet[0].target == pytest.approx(0.85, abs=0.001)
    assert cifar[0].target == pytest.approx(0.5, abs=0.01)
    explained = [estimator_evaluation.first_stop(t.values, t.target, 3) == len(t.values) for t in lenet + cifar]
    assert explained.count(False) == 1  # one run went on


def test_speed_from_eight_chosen_points_is_within_ten_per_cent_and_loses_little(models):
    verdicts = []
    for speeds in models.values():
        chosen = estimator_evaluation.chosen_points(speeds, speeds.__getitem__)
        assert len(chosen) <= 8
        verdicts.append(estimator_evaluation.judge_speed(speeds, chosen, "coach"))
    assert np.mean([v.error for v in verdicts]) <= 0.08
    assert np.mean([v.lost for v in verdicts]) <= 0.07
    assert 0.6 <= np.mean([v.inside for v in verdicts]) <= 0.97


def test_speed_from_eight_random_points_beats_both_published_methods(models):
    errors = {method: [] for method in estimator_evaluation.METHODS}
    for speeds in models.values():
        for seed in range(5):
            points = estimator_evaluation.random_points(speeds, np.random.default_rng(seed))
            for method, found in errors.items():
                found.append(estimator_evaluation.judge_speed(speeds, points, method).error)
    coach = np.mean(errors["coach"])
    assert coach <= 0.085
    assert coach < np.mean(errors["optimus"]) < np.mean(errors["thesis"])


def test_noisy_probes_cost_some_error_not_all(models):
    random = np.random.default_rng(0)
    verdicts = []
    for speeds in models.values():
        chosen = estimator_evaluation.chosen_points(
            speeds, lambda at, v=speeds: v[at] * np.exp(0.07 * random.standard_normal())
        )
        verdicts.append(estimator_evaluation.judge_speed(speeds, chosen, "coach"))
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
        errors = [estimator_evaluation.judge_curve(task, share, "coach").error for task in runs[group]]
        assert np.median(errors) <= bound


def test_the_last_epoch_of_small_models_and_its_interval():
    tasks = read_measurements(CURVES).tasks
    assert set(tasks) == {"test-loss", "test-accuracy", "batch-loss"}
    for found in tasks.values():
        verdicts = [estimator_evaluation.judge_curve(task, 0.5, "coach") for task in found]
        assert np.median([v.error for v in verdicts]) <= 0.3
        assert np.mean([v.no_solution for v in verdicts]) <= 0.08
        assert 0.7 <= np.mean([v.inside for v in verdicts]) <= 0.98


def test_the_table_compares_all_methods_on_any_file_of_the_schema(tmp_path):
    rows = SPEEDS.read_text().splitlines(keepends=True)
    file = tmp_path / "mine.csv"
    file.write_text(rows[0] + "".join(row for row in rows if row.startswith("wlm")))
    table = estimator_table(read_measurements(file))
    row = next(r for r in table if (r.subject, r.measure) == ("wlm", "speed error, 8 chosen"))
    assert 0 < row.coach < row.thesis
    inside = next(r for r in table if (r.subject, r.measure) == ("mean", "inside, 8 chosen"))
    assert (inside.thesis, inside.optimus, inside.target) == (None, None, "70-90 %")


def test_the_table_reads_run_logs(tmp_path):
    folder = tmp_path / "LeNet"
    folder.mkdir()
    log = next(RUNS.rglob("single_job_gang_scheduler_83_tl.txt"))
    (folder / "run.txt").write_text(log.read_text())
    table = estimator_table(read_measurements(tmp_path))
    assert all(isinstance(row, EstimatorRow) and row.section == "last epoch" for row in table)
    assert {"error at 30%", "error at 50%", "error at 70%", "error at 90%", "inside"} <= {r.measure for r in table}


def test_a_file_of_another_kind_is_the_user_s_mistake(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="wanted a CSV with the columns model, servers"):
        read_measurements(file)
    with pytest.raises(UserError, match="no such file"):
        read_measurements(tmp_path / "missing.csv")


def surface(workers, servers, factor=1.0):
    """Rows of a CSV: 1/v = 1/w + 0.1 + 0.05 w/s."""
    return [f"{s},{w},{factor / (1 / w + 0.1 + 0.05 * w / s):.6g}" for w in workers for s in servers]


def speeds_file(path, rows, header="model,servers,workers,worker_speed"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("workers", "servers"),
    [((1, 2, 3, 4, 6, 8, 10, 12, 16), (1,)), ((4,), (1, 2, 3, 4, 5, 6)), ((2, 4, 6, 8), (2, 4, 8))],
)
def test_a_grid_of_any_shape_is_judged(tmp_path, workers, servers):
    rows = [f"m,{row}" for row in surface(workers, servers)]
    table = estimator_table(read_measurements(speeds_file(tmp_path / "a.csv", rows)))
    row = next(r for r in table if (r.subject, r.measure) == ("m", "speed lost, 8 chosen"))
    assert 0 <= row.coach < 0.1
    assert all(r.coach is not None for r in table)


def test_where_no_mini_epoch_of_the_thesis_was_measured_its_row_is_empty(tmp_path):
    places = ((1, 4), (2, 8), (4, 1), (8, 2), (16, 16), (8, 8))
    rows = [f"m,{row}" for w, s in places for row in surface((w,), (s,))]
    table = estimator_table(read_measurements(speeds_file(tmp_path / "a.csv", rows)))
    by_measure = {r.measure: r for r in table if r.subject == "m"}
    assert by_measure["speed error, 4 mini-epochs"].coach is None
    assert by_measure["speed error, 8 chosen"].coach is not None


def test_a_model_measured_in_several_ways_is_several_models(tmp_path):
    header = "model,sync_mode,batch_size,servers,workers,worker_speed"
    rows = [
        f"m,{mode},32,{row}"
        for mode, factor in (("dist_sync", 1.0), ("dist_async", 3.0))
        for row in surface((1, 2, 4), (1, 2), factor)
    ]
    speeds = read_measurements(speeds_file(tmp_path / "a.csv", rows, header)).speeds
    assert set(speeds) == {"m, dist_sync", "m, dist_async"}
    assert speeds["m, dist_async"][4, 2] == pytest.approx(3 * speeds["m, dist_sync"][4, 2], rel=1e-4)


def test_a_column_that_only_some_files_have_separates_models_too(tmp_path):
    rows = surface((1, 2, 4), (1, 2))
    speeds_file(tmp_path / "a.csv", [f"m,{row}" for row in rows])
    header = "model,batch_size,servers,workers,worker_speed"
    speeds_file(tmp_path / "b.csv", [f"m,64,{row}" for row in rows], header)
    assert set(read_measurements(tmp_path).speeds) == {"m", "m, 64"}


def test_measurements_of_one_configuration_count_as_in_a_job_wherever_they_stand(tmp_path):
    rows = [f"m,{row}" for row in surface((1, 2, 3), (1, 2))]
    speeds_file(tmp_path / "a.csv", rows)
    speeds_file(tmp_path / "b.csv", ["m,1,1,2.0", "m,1,1,0.1"])
    assert read_measurements(tmp_path).speeds["m"][1, 1] == pytest.approx(1 / 1.15, rel=1e-4)


def test_holes_and_small_models_are_left_out_by_name(tmp_path):
    rows = [f"m,{row}" for row in surface((1, 2, 3), (1, 2))]
    rows += ["m,3,1,nan", "m,3,2,", "m,3,3,0.0;0.0;0.0", "few,1,1,2", "few,1,2,3;"]
    file = speeds_file(tmp_path / "a.csv", rows)
    file.write_text("\ufeff" + file.read_text(), encoding="utf-8")
    found = read_measurements(file)
    assert set(found.speeds) == {"m"}
    assert len(found.speeds["m"]) == 6
    assert found.left_out == (
        "m: no speed at 1x3, 2x3, 3x3",
        "few: 2 configurations, wanted at least 5",
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("m,1,1,fast", "a.csv:2: worker_speed is 'fast', wanted a number"),
        ("m,1,0,2.0", "a.csv:2: workers is '0', wanted a whole number from 1 on"),
        ("m,1.5,1,2.0", "a.csv:2: servers is '1.5', wanted a whole number"),
        ("m", "a.csv:2: workers is '', wanted a number"),
    ],
)
def test_what_is_no_number_is_named_with_its_line(tmp_path, row, said):
    with pytest.raises(UserError, match=said):
        read_measurements(speeds_file(tmp_path / "a.csv", [row]))


def test_accuracies_in_per_cent_are_the_same_runs(tmp_path):
    values = [0.005, 0.006] + [0.9 - 0.85 / (0.15 * x + 1) for x in range(1, 60)]
    (tmp_path / "share.csv").write_text(f"metric,values\ntop1,{';'.join(map(str, values))}\n")
    (tmp_path / "cent.csv").write_text(f"metric,values\nval_acc,{';'.join(str(100 * v) for v in values)};nan;3\n")
    share = estimator_table(read_measurements(tmp_path / "share.csv"))
    cent = estimator_table(read_measurements(tmp_path / "cent.csv"))
    assert [r.coach for r in share] == pytest.approx([r.coach for r in cent], abs=1e-6)
    half = next(r for r in cent if r.measure == "error at 50%")
    assert half.coach < 0.5
    assert half.thesis < 1  # an answer at all


def test_the_published_curves_are_asked_when_the_target_has_held():
    """A hyperbola without noise is predicted to the epoch: three epochs in a row end two after the first of them."""
    curve = [1 / (0.2 * x + 1) for x in range(1, 40)]
    task = estimator_evaluation.CurveTask(tuple(range(1, 23)), tuple(curve[:22]), "loss", curve[19] + 1e-9, 3, 22.0)
    for method in ("thesis", "optimus"):
        assert estimator_evaluation.judge_curve(task, 0.5, method).error == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("1, 1 | 0.9, x, 0.7, 0.6", "could not convert"),
        ("1, 1 | 0.9, nan, 0.7, 0.6", "not a number"),
        ("1, 1 | 0.9, 0.8, 0.7", "3 loss"),
    ],
)
def test_a_run_that_is_not_whole_is_left_out_by_name(tmp_path, loss, said):
    good = (
        '{"epochs": [1, 2 | %s], "loss": [1, 1 | %s], "workers": [1, 1 | %s], '
        '"servers": [1, 1 | %s], "time": [1, 1 | %s]}'
    )
    real = ", ".join(str(i) for i in range(3, 15))
    losses = ", ".join(f"{1 / i:.4f}" for i in range(3, 15))
    ones = ", ".join(["1"] * 12)
    bad = (
        '{"epochs": [1, 2 | 3, 4, 5, 6], "loss": [%s], "workers": [1, 1 | 1, 1, 1, 1], '
        '"servers": [1, 1 | 1, 1, 1, 1], "time": [1, 1 | 1, 1, 1, 1]}'
    )
    (tmp_path / "run.txt").write_text(f"[{good % (real, losses, ones, ones, ones)}, {bad % loss}]")
    found = read_measurements(tmp_path / "run.txt")
    assert len(found.runs) == 1
    assert len(found.left_out) == 1
    assert "run.txt: job 2" in found.left_out[0]
    assert said in found.left_out[0]
