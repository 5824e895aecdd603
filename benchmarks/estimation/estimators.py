"""The estimators' errors on measured speeds and recorded runs, compared with the thesis's method and Optimus's.

    python -m benchmarks.estimation.estimators            # prints the tables, writes results/estimators/; two minutes
    python -m benchmarks.estimation.estimators --figures  # draws the figures of docs/advanced/estimation.md there too

Tables:

- *speed*, *last epoch*: what `coach estimators` prints for tests/data/ps-speed, tests/data/thesis/runs and the small
  models of coach/simulation/data/learning_curves.csv.
- *noise*: Coach's choice of points where each measurement is off by 0, 5 or 10 % (20 seeds), in grids up to 12 x 12
  and up to 23 x 23.
- *unit*: the thesis's surface from its four mini-epochs on resnet-50's 4 x 4 grid, by the unit of speed.
- *settings*: every constant of the estimators times 2/3 and 3/2. "others' best": for each model (or group of runs)
  the setting that is best for the others, evaluated on it: the expected error of the constants on an unseen model.
- *no solution*: for targets that a small model never reaches, a fifth of its whole drop beyond its best value in 80
  epochs: how often the result is "no solution" after some epochs, and the probability that Coach still predicted.
- *reservation*: for the thesis's runs, each epoch's seconds predicted from the job's earlier epochs. The reservation
  pays until a deadline at the stated quantile: how often it would have cut the epoch, and how much it exceeds the use.
- *time*: CPU milliseconds of one refit on one core.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from coach.core.estimation import convergence, kriging, mixture, speed
from coach.core.estimation.convergence import CurvePoint, fit_convergence
from coach.core.estimation.cost import epoch_seconds
from coach.core.estimation.forms import PARAMETER_SERVER
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedPoint, fit_speed
from coach_research.estimators import evaluation as estimator_evaluation
from coach_research.estimators.evaluation import CurveTask, Speeds
from coach_research.estimators.measurements import Run, read_measurements, run_tasks
from coach_research.estimators.next_probe import next_probe
from coach_research.estimators.published import fit_thesis_quadratic
from coach_research.estimators.table import ORIGIN, estimator_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "estimators"
SPEEDS = ROOT / "tests" / "data" / "ps-speed" / "ps_speed.csv"
RUNS = ROOT / "tests" / "data" / "thesis" / "runs"
CURVES = ROOT / "coach" / "simulation" / "data" / "learning_curves.csv"
NOISES, SEEDS, SIDES = (0.0, 0.05, 0.10), 20, (12, 23)
NOTHING_FIXED = Interval(0.0, 0.0, 0.0)
QUANTILES = (0.8, 0.9, 0.95, 0.99, 0.999)

Row = Sequence[object]
Table = tuple[str, Sequence[str], list[Row]]


def models() -> dict[str, Speeds]:
    """The seven models' measured speeds."""
    return read_measurements(SPEEDS).speeds


def runs() -> list[Run]:
    """The thesis's runs, equal ones too."""
    return list(read_measurements(RUNS).runs)


def small_models() -> dict[str, list[CurveTask]]:
    """Runs cut from the curves of small models, by metric."""
    return read_measurements(CURVES).curves


# -- tables -----------------------------------------------------------------------------------------------


def methods_table() -> Iterator[Table]:
    """The tables of `coach estimators`."""
    header = ("subject", "measure", "thesis", "optimus", "coach", "target")
    rows = [row for path in (SPEEDS, RUNS, CURVES) for row in estimator_table(read_measurements(path))]
    for section in ("speed", "last epoch"):
        cells = [(r.subject, r.measure, r.thesis, r.optimus, r.coach, r.target) for r in rows if r.section == section]
        yield section, header, cells


def noise_table(speeds: dict[str, Speeds]) -> Table:
    """Errors by the noise of probes and the size of the grid."""
    rows = []
    for side in SIDES:
        for noise in NOISES:
            means = np.mean([_chosen(_within(s, side), noise) for s in speeds.values()], axis=0)
            rows.append((f"up to {side} x {side}", f"{noise:.0%}", *means[:3].tolist(), f"{means[3]:.1f}"))
    return "noise", ("grid", "noise of a probe", "speed error", "speed lost", "inside", "points"), rows


def _within(speeds: Speeds, side: int) -> Speeds:
    return {at: v for at, v in speeds.items() if max(at) <= side}


def _chosen(speeds: Speeds, noise: float, seeds: int = SEEDS) -> tuple[float, float, float, float]:
    """Means over seeds of (error, lost, inside, points) with eight probes of Coach's choice."""
    found = []
    for seed in range(seeds if noise else 1):
        random = np.random.default_rng(seed)

        def probe(at: estimator_evaluation.Configuration, random: np.random.Generator = random) -> float:
            return speeds[at] * float(np.exp(noise * random.standard_normal()))

        measured = estimator_evaluation.chosen_points(speeds, probe)
        verdict = estimator_evaluation.judge_speed(speeds, measured, "coach")
        found.append((verdict.error, verdict.lost, verdict.inside or 0.0, float(len(measured))))
    error, lost, inside, points = np.mean(found, axis=0)
    return float(error), float(lost), float(inside), float(points)


def unit_table(speeds: dict[str, Speeds]) -> Table:
    """The thesis's surface and Coach's on resnet-50, by the unit that speed is given in."""
    small = _within(speeds["resnet-50"], 4)
    mini = estimator_evaluation.mini_epoch_points(small)
    rest = [at for at in small if at not in mini]
    rows = []
    for unit, factor in (
        ("samples/s", 1.0),
        ("batches/s", 1 / 32),
        ("epochs/s", 1 / 50_000),
        ("epochs/h", 3600 / 50_000),
    ):
        points = [SpeedPoint(*at, v * factor) for at, v in mini.items()]
        cells = []
        for model in (fit_thesis_quadratic(points), fit_speed(points)):
            predicted = np.array([model.predict(*at) / factor for at in rest])
            cells += [
                float(np.median(np.abs(predicted / np.array([small[at] for at in rest]) - 1))),
                int((predicted <= 0).sum()),
            ]
        rows.append((unit, *cells))
    return (
        "unit",
        ("unit", "thesis: error", "thesis: speeds <= 0", "coach: error", "coach: speeds <= 0"),
        rows,
    )


def settings_tables(speeds: dict[str, Speeds], tasks: dict[str, list[CurveTask]]) -> Iterator[Table]:
    """Errors with each constant changed, and what choosing by the other models would have brought."""
    speed_constants = {n: (kriging, n) for n in ("DEVIATION", "REACH_WORKERS", "REACH_SERVERS", "NOISE", "BELIEF")}
    subjects = list(speeds)

    def speed_errors() -> list[list[float]]:
        return [np.mean([_chosen(speeds[m], n, 6)[:2] for n in NOISES[:2]], axis=0).tolist() for m in subjects]

    yield _settings("settings, speed", ("speed error", "speed lost"), subjects, speed_constants, speed_errors)

    names = ("TEMPER", "NOISE_EXPECTED", "NOISE_WIDTH", "START_DOUBT", "DROP_DOUBT")
    curve_constants = {n: (mixture, n) for n in names} | {"UNREACHED": (convergence, "UNREACHED")}
    groups = list(tasks)

    def curve_errors() -> list[list[float]]:
        return [
            [
                float(np.median([estimator_evaluation.judge_curve(t, share, "coach").error for t in tasks[g]]))
                for share in (0.5, 0.7)
            ]
            for g in groups
        ]

    yield _settings("settings, last epoch", ("error at 50%", "error at 70%"), groups, curve_constants, curve_errors)


def _settings(
    name: str,
    measures: Sequence[str],
    subjects: Sequence[str],
    constants: dict[str, tuple[object, str]],
    errors: Callable[[], list[list[float]]],
) -> Table:
    results = {"as they are": np.array(errors())}
    changes: list[tuple[str, Callable[[float], None]]] = []
    for label, (module, attribute) in constants.items():
        value = getattr(module, attribute)
        changes.append((label, lambda f, m=module, a=attribute, v=value: setattr(m, a, v * f)))
    if "DEVIATION" in constants:  # the belief in the coefficients, an array changed in place
        doubt = PARAMETER_SERVER.doubt.copy()
        changes.append(("doubt", lambda f: PARAMETER_SERVER.doubt.__setitem__(slice(None), doubt * f)))
    for label, change in changes:
        for factor in (2 / 3, 3 / 2):
            change(factor)
            results[f"{label} x {factor:.2f}"] = np.array(errors())
        change(1.0)
    rows: list[Row] = [(label, *found.mean(axis=0)) for label, found in results.items()]
    every = np.array([found for found in results.values()])  # [setting, subject, measure]
    held_out = []
    for i in range(len(subjects)):
        others = np.delete(every.sum(axis=2), i, axis=1).mean(axis=1)
        held_out.append(every[int(np.argmin(others)), i])
    rows.append(("others' best", *np.mean(held_out, axis=0)))
    return name, ("setting", *(f"{m}, mean over {len(subjects)}" for m in measures)), rows


def unreachable_table() -> Table:
    """How soon targets that are never reached are called so."""
    with CURVES.open(newline="") as file:
        curves = [(row["metric"], [float(v) for v in row["values"].split(";")]) for row in csv.DictReader(file)]
    cases = []
    for metric, values in curves:
        accuracy = "accuracy" in metric
        drop = max(values) - values[0] if accuracy else values[0] - min(values)
        target = max(values) + drop / 5 if accuracy else min(values) - drop / 5
        if 0 < target < (1 if accuracy else np.inf):
            cases.append((values, target, "accuracy" if accuracy else "loss"))
    rows: list[Row] = []
    for count in (5, 10, 20, 40, 80):
        fits = [
            (
                fit_convergence([CurvePoint(float(i + 1), v) for i, v in enumerate(values[:count])], metric),
                target,
            )
            for values, target, metric in cases
        ]
        none = float(np.mean([model.epochs_to(target, 3, float(count)) is None for model, target in fits]))
        rows.append((count, len(fits), none, float(np.mean([model.chance(target) for model, target in fits]))))
    return "no solution", ("epochs seen", "targets", "no solution", "mean chance seen"), rows


def reservation_table(found: Sequence[Run]) -> Table:
    """How often a deadline at a quantile cuts an epoch, and what it holds above what is used."""
    ratios: dict[float, list[float]] = {q: [] for q in QUANTILES}
    for run in found:
        known: list[SpeedPoint] = []
        for epoch in run.real:
            if known:
                interval = epoch_seconds(fit_speed(known), epoch.workers, epoch.servers, NOTHING_FIXED)
                for q, of in ratios.items():
                    of.append(interval.quantile(q) / epoch.seconds)
            known.append(SpeedPoint(epoch.workers, epoch.servers, 1.0 / epoch.seconds))
    rows = [
        (f"{q:.1%}", len(of), float(np.mean(np.array(of) < 1)), float(np.mean(np.maximum(of, 1.0)) - 1))
        for q, of in ratios.items()
    ]
    return "reservation", ("reserved quantile", "epochs", "epochs cut", "held above use"), rows


def time_table(speeds: dict[str, Speeds]) -> Table:
    """CPU milliseconds, medians of 50, of points that were not fitted before."""
    every = [SpeedPoint(*at, v) for at, v in speeds["resnet-50"].items()]
    random = np.random.default_rng(1)
    points = {n: [every[i] for i in random.choice(len(every), n, replace=False)] for n in (5, 8, 25)}
    curve = [CurvePoint(float(x), 1 / (0.1 * x + 0.5) + 0.05 * float(random.standard_normal())) for x in range(1, 201)]
    converged = {n: fit_convergence(curve[:n], "loss") for n in (10, 50, 200)}
    grid = [(w, s) for w in range(1, 13) for s in range(1, 13)]
    model = fit_speed(points[8])
    cases: dict[str, Callable[[], object]] = {
        **{f"fit_speed, {n} configurations": lambda p=p: fit_speed(p) for n, p in points.items()},
        **{f"fit_convergence, {n} epochs": lambda n=n: fit_convergence(curve[:n], "loss") for n in converged},
        **{f"epochs_to, {n} epochs": lambda m=m, n=n: m.epochs_to(0.3, 3, float(n)) for n, m in converged.items()},
        "refit of a job: 8 configurations, 50 epochs, last epoch": lambda: (
            fit_speed(points[8]),
            fit_convergence(curve[:50], "loss").epochs_to(0.3, 3, 50.0),
        ),
        "next_probe, 8 configurations, 12 x 12": lambda: next_probe(points[8], 12, 12),
        "predict, one configuration": lambda: model.predict(3, 4),
        "intervals, 12 x 12": lambda: model.intervals(grid),
    }
    return "time", ("what", "CPU ms"), [(name, _cpu_ms(case)) for name, case in cases.items()]


def _cpu_ms(case: Callable[[], object], repeats: int = 50) -> float:
    case()
    taken = []
    for _ in range(repeats):
        for cache in (convergence.fitted, speed.fitted):
            cache.cache_clear()
        start = time.process_time()
        case()
        taken.append(time.process_time() - start)
    return float(np.median(taken)) * 1e3


# -- output -----------------------------------------------------------------------------------------------


def write(tables: Sequence[Table]) -> str:
    """Write each table as CSV and all as Markdown; the Markdown."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    parts = [
        "# Estimators",
        "Written by `python -m benchmarks.estimation.estimators`, whose text says what is measured.",
    ]
    for name, header, rows in tables:
        with (RESULTS / f"{name.replace(', ', '-').replace(' ', '-')}.csv").open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(header)
            out.writerows([_number(cell) for cell in row] for row in rows)
        percent = name != "time"
        lines = [f"| {' | '.join(header)} |", "|" + "-|" * len(header)]
        lines += [f"| {' | '.join(_shown(cell, percent) for cell in row)} |" for row in rows]
        parts += [f"## {name}", "\n".join(lines)]
    parts += ["## how", ORIGIN.rstrip()]
    text = "\n\n".join(parts) + "\n"
    (RESULTS / "summary.md").write_text(text)
    return text


def _number(cell: object) -> object:
    return f"{cell:.5g}" if isinstance(cell, float) else "" if cell is None else cell


def _shown(cell: object, percent: bool) -> str:
    if isinstance(cell, float):
        return f"{cell:.3g}" if not percent else f"{cell:.1%}" if cell < 10 else f"{cell:,.0%}"
    return "-" if cell is None else str(cell)


def main() -> None:
    """Print and write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", action="store_true", help="draw the figures only")
    if parser.parse_args().figures:
        from benchmarks.estimation.estimator_figures import draw

        draw(RESULTS, models(), run_tasks(runs()))
        return
    speeds, found = models(), runs()
    tasks = {name: of for name, of in run_tasks(found).items() if "by the rule" in name} | small_models()
    tables = [
        *methods_table(),
        noise_table(speeds),
        unit_table(speeds),
        *settings_tables(speeds, tasks),
        unreachable_table(),
        reservation_table(found),
        time_table(speeds),
    ]
    print(write(tables))


if __name__ == "__main__":
    main()
