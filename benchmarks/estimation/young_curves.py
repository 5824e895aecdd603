"""How well the end of a job is predicted from its first epochs, and the calibration of what is shown.

    python -m benchmarks.estimation.young_curves [FOLDER]    # three minutes; results/estimators/young-curves.md

*Tasks*: all twelve of TaskSet as published in releaunifreiburg/DPL (FOLDER, by default
~/.cache/coach/dpl/data/taskset: `git clone --depth 1 https://github.com/releaunifreiburg/DPL ~/.cache/coach/dpl`), five
of Pollux's programs at all batch sizes that its authors measured (`coach experiment pollux` says where its artifact
goes), the small models' curves of `coach/simulation/data` (six data sets, three metrics), those of
`benchmarks.training.plateau_curves`, curves drawn by `benchmarks.estimation.unseen_curves`, and power laws; of each at
most CURVES. They are in groups that have a data set, a program or a law in common. All tasks count alike, and in a task
all cases.

A *case* is a curve with a target: the level that it first held at epoch 5, 7, 10, 14, 20, ... 80, once or three times
in a row (every second curve). After each of SEEN values its *rest* is predicted, the epochs from there to the end.

*Calibration* (split conformal prediction: Vovk 2005; Romano, Patterson and Candès 2019): the 10 % quantile of the true
rest over the lower bound, the 90 % quantile of it over the upper bound, and, where fewer than MOVED values were seen,
the median of it over the predicted one, multiply what is predicted, by how many values were seen. Bounds are only
widened. Cases that end before epoch SHORTEST have no part in the factors. *Fitted*: with the factors of all cases, as
they are in `coach.core.estimation.calibration`; *left out*: with those of all other groups.

*Width*: the upper over the lower bound of the rest, geometric mean. *Median*: of the whole job's predicted epochs, over
the true ones. *Rising metrics* are few, of some tasks a single case: beside what all tasks alike give, the 95 %
interval over tasks drawn again, and the share of all cases.

*Courses*: the same curves, predicted with the factors above (left out), as jobs report them otherwise (COURSES).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.decisions.early_ends import PLATEAUS, held
from benchmarks.estimation.estimators import CURVES as SMALL
from benchmarks.estimation.estimators import RESULTS
from benchmarks.estimation.unseen_curves import drawn
from coach.core.estimation import calibration
from coach.core.estimation.convergence import CurvePoint, Metric, fit_convergence
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval
from coach_research.experiments.clusters import pollux

PUBLISHED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coach/dpl/data/taskset"
RESULT = RESULTS / "young-curves.md"
#: Values seen, and the epochs at which a target may first have held.
SEEN = (3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 40)
REACHED = (5, 7, 10, 14, 20, 28, 40, 50, 64, 80)
#: Fewer values than this say too little for a median; and the last epoch of a case that is calibrated on.
MOVED, SHORTEST = 8, 10
#: Curves of a task at most; epochs of a curve of TaskSet, and of a power law; and the laws drawn.
CURVES, EPOCHS, LONG, LAWS, SEED = 20, 51, 100, 24, 66
#: Parts of a job at which a prediction is looked at: after so many of its epochs, at least three.
SHARES = (0.1, 0.25, 0.5, 0.9)
#: Pollux's programs that are reported often enough, and what they report.
PROGRAMS: dict[str, Metric] = {
    "cifar10": "accuracy",
    "deepspeech2": "loss",
    "imagenet": "accuracy",
    "ncf": "accuracy",
    "yolov3": "loss",
}
#: Fewer epochs are left than this: whole numbers, of which an interval can't leave one out.
FEW = 5
#: Predictions of a course, at least.
FEWEST = 50
#: Times that tasks are drawn again.
DRAWN = 2000
#: Of other courses: values before the curve that get worse, by how much of its way; where a restart is, and how many
#: values it repeats; and all mini-epochs together.
WARM_UP, WORSE, RESTART, REPEATED, MINI = 3, 0.3, 6, 3, 0.4
QUANTILES = (0.1, 0.5, 0.9)
Factors = Mapping[int, tuple[float, float, float]]


class Task(NamedTuple):
    """Curves of one data set, program or law. `group`: what other tasks have in common with it."""

    name: str
    group: str
    metric: Metric
    curves: Sequence[Sequence[float]]


class Row(NamedTuple):
    """One prediction of a case's rest after `seen` values: bounds and median, in epochs; None: no solution."""

    task: Task
    seen: int
    last: int
    predicted: Interval | None

    @property
    def rest(self) -> float:
        """The true one."""
        return float(self.last - self.seen)


def taskset(folder: Path) -> Iterator[Task]:
    """The tasks of TaskSet: runs kept as in ../shared/data/taskset."""
    for file in sorted(folder.glob("*.json")):
        runs = [np.array(run["valid"]["loss"][:EPOCHS], dtype=float) for run in json.loads(file.read_text())]
        runs = [run for run in runs if len(run) == EPOCHS and np.isfinite(run).all() and run.max() < 5]
        width = float(np.median([run[0] for run in runs]) - min(run.min() for run in runs))
        kept = [run.tolist() for run in runs if run[0] - run.min() > 0.1 * width]
        yield Task(file.stem.removeprefix("FixedTextRNNClassification_imdb_"), "TaskSet", "loss", kept)


def recorded(file: Path, columns: Sequence[str]) -> Iterator[Task]:
    """The curves of a CSV file, by its columns."""
    found: dict[tuple[str, ...], list[list[float]]] = {}
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            values = [float(value) for value in row["values"].split(";")]
            found.setdefault(tuple(row[name] for name in columns), []).append(values)
    for names, curves in found.items():
        yield Task(" ".join(names), names[0], "accuracy" if "accuracy" in names[-1] else "loss", curves)


def published(folder: Path) -> Iterator[Task]:
    """The curves of Pollux's programs, one of each batch size."""
    for name, metric in PROGRAMS.items():
        files = sorted((folder / "simulator/traces" / name).glob("validation-*.csv"), key=lambda file: len(file.stem))
        yield Task(name, name, metric, [values_of(file) for file in files])


def values_of(file: Path) -> list[float]:
    """The metric after each epoch."""
    with file.open(encoding="utf-8") as lines:
        return [float(row["metric"]) for row in csv.DictReader(lines)]


def power_laws(epochs: int = LONG) -> Task:
    """`a + 2 / x^p` with noise of 1 %."""
    dice, x = np.random.default_rng(SEED), np.arange(1.0, epochs + 1.0)

    def law() -> FloatArray:
        level, power = dice.uniform(0, 0.5), dice.uniform(0.3, 1.5)
        return np.asarray(level + 2.0 / x**power * np.exp(0.01 * dice.standard_normal(epochs)))

    return Task("power laws", "power laws", "loss", [law().tolist() for _ in range(LAWS)])


def tasks(folder: Path) -> list[Task]:
    """All of them, each with a part of its curves."""
    found = [
        *taskset(folder),
        *published(pollux.folder()),
        *recorded(SMALL, ("data", "metric")),
        *recorded(PLATEAUS, ("family", "metric")),
    ]
    found += [Task(kind, kind, "loss", curves) for kind, curves in drawn().items()]
    found.append(power_laws())
    return [task._replace(curves=task.curves[:: math.ceil(len(task.curves) / CURVES)]) for task in found]


def targets(values: Sequence[float], sign: float, hits: int) -> Iterator[tuple[int, float]]:
    """Epochs near REACHED at which a target first held so often in a row, and these targets."""
    for wanted in REACHED:
        for last in (wanted, wanted - 1, wanted + 1):
            if not hits < last <= len(values):
                continue
            target = sign * max(sign * value for value in values[last - hits : last])
            if held(values, target, hits, sign) == last:
                yield last, target
                break


class Course(NamedTuple):
    """A curve as a job reports it: where its values are, in epochs. `before`: how many are of mini-epochs."""

    x: Sequence[float]
    values: Sequence[float]
    before: int = 0


def plain(values: Sequence[float], _sign: float = 1.0) -> Course:
    """A value after each epoch."""
    return Course([float(x) for x in range(1, len(values) + 1)], values)


def each(step: int, values: Sequence[float]) -> Course:
    """Every `step`-th of them."""
    kept = values[step - 1 :: step]
    return Course([step * float(x) for x in range(1, len(kept) + 1)], kept)


def warmed_up(values: Sequence[float], sign: float) -> Course:
    """WARM_UP values before them that get worse, by WORSE of the whole way."""
    way = max(sign * (values[0] - value) for value in values)
    first = [values[0] - sign * WORSE * way * (WARM_UP - number) / WARM_UP for number in range(WARM_UP)]
    return plain([*first, *values])


def restarted(values: Sequence[float], _sign: float) -> Course:
    """After RESTART values the last REPEATED of them once more: of a program that does not name its epochs."""
    return plain([*values[:RESTART], *values[RESTART - REPEATED :]])


def with_mini_epochs(values: Sequence[float], _sign: float) -> Course:
    """The first value is of a mini-epoch; all of these together are MINI of an epoch."""
    return Course([MINI / 8, *(MINI + x for x in range(1, len(values)))], values, 1)


COURSES: dict[str, Callable[[Sequence[float], float], Course]] = {
    "a value each epoch": plain,
    "only each 5th value": lambda values, _: each(5, values),
    "mini-epochs: one value before, and a part of an epoch": with_mini_epochs,
    "warm-up: three values before that get worse": warmed_up,
    "restart after 6 values: 3 of them again": restarted,
}
#: Epochs between two values of power laws that are so many times as long.
RARE = 20


def observed(task: Task, course: Callable[[Sequence[float], float], Course] = plain) -> list[Row]:
    """Each case of a task after each number of values."""
    rows, sign = [], 1.0 if task.metric == "loss" else -1.0
    for number, measured in enumerate(task.curves):
        hits = (3, 1)[number % 2]
        x, values, before = course(measured, sign)
        cases = list(targets(values[before:], sign, hits))
        for seen in SEEN:
            left = [(last, target) for last, target in cases if last > seen]
            if not left:
                break
            points = [CurvePoint(*one) for one in zip(x, values, strict=True)][: before + seen]
            model, now, step = fit_convergence(points, task.metric), x[before + seen - 1], x[-1] - x[-2]
            for last, target in left:
                end = model.epochs_to(target, hits, now)
                rows.append(Row(task._replace(curves=()), seen, last, end and (end + -now) * (1.0 / step)))
    return rows


def weights(rows: Sequence[Row]) -> FloatArray:
    """Of each row, so that all tasks count alike; they sum to 1."""
    many = Counter(row.task.name for row in rows)
    return np.array([1.0 / many[row.task.name] for row in rows]) / len(many)


def quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    """The weighted quantile."""
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weight[order]) - 0.5 * weight[order]
    return float(np.interp(share, cumulated / weight.sum(), values[order]))


def factors(rows: Sequence[Row]) -> Factors:
    """By how many values were seen: what multiplies the lower bound, the median and the upper bound."""
    found = {}
    for seen in SEEN:
        of = [(row.rest, row.predicted) for row in rows if row.seen == seen and row.last >= SHORTEST and row.predicted]
        weight = weights([row for row in rows if row.seen == seen and row.last >= SHORTEST and row.predicted])
        off = np.log([[rest / bound for bound in predicted] for rest, predicted in of])
        low, middle, high = (
            round(math.exp(quantile(off[:, at], weight, share)), 2) for at, share in enumerate(QUANTILES)
        )
        found[seen] = (min(low, 1.0), middle if seen < MOVED else 1.0, max(high, 1.0))
    return found


def shown(row: Row, by: Factors | None) -> Interval:
    """The rest as it is shown with these factors; None: as the curve predicts it."""
    assert row.predicted is not None
    if by is None:
        return row.predicted
    low, middle, high = (bound * factor for bound, factor in zip(row.predicted, by[row.seen], strict=True))
    return Interval(min(low, middle), middle, max(middle, high))


class Verdict(NamedTuple):
    """Of some predictions: shares inside, width, and the median of predicted over true epochs of the whole job."""

    inside: float
    width: float
    median: float


def verdict(rows: Sequence[Row], by: Mapping[str, Factors] | None) -> Verdict:
    """With the factors of each group; None: none."""
    found = [shown(row, None if by is None else by[row.task.group]) for row in rows]
    weight = weights(rows)
    inside = np.array([one.holds(row.rest) for one, row in zip(found, rows, strict=True)])
    width = np.array([math.log(one.high / one.low) for one in found])
    median = np.array([(row.seen + one.expected) / row.last for one, row in zip(found, rows, strict=True)])
    return Verdict(float(weight @ inside), math.exp(float(weight @ width)), quantile(median, weight, 0.5))


def rising(rows: Sequence[Row], by: Mapping[str, Factors]) -> str:
    """Shares of rising metrics inside, in percent: of all tasks alike, its 95 % interval, and of all cases."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row.task.metric != "loss":
            found.setdefault(row.task.name, []).append(shown(row, by[row.task.group]).holds(row.rest))
    if not found:
        return "-"
    each = np.array([100 * np.mean(held) for held in found.values()])
    again = np.random.default_rng(SEED).choice(each, (DRAWN, len(each))).mean(axis=1)
    low, high = np.quantile(again, (0.025, 0.975))
    cases = 100 * np.mean(np.concatenate(list(found.values())))
    return f"{each.mean():.0f} ({low:.0f}-{high:.0f}; {cases:.0f})"


def at_share(rows: Sequence[Row], share: float) -> list[Row]:
    """The predictions nearest to this part of their jobs, of jobs of which it was looked at near it."""
    found = []
    for row in rows:
        wanted = max(float(SEEN[0]), share * row.last)
        nearest = min(SEEN, key=lambda seen: abs(math.log(seen / wanted)))
        if row.seen == nearest and abs(row.seen / row.last / share - 1.0) < 0.35:
            found.append(row)
    return found


def line(name: str, rows: Sequence[Row], fitted: Mapping[str, Factors], left_out: Mapping[str, Factors]) -> str:
    """A row of the table."""
    known = [row for row in rows if row.predicted is not None]
    before, now, out = (verdict(known, by) for by in (None, fitted, left_out))
    losses = [row for row in known if row.task.metric == "loss"]
    worst = min(
        (verdict(of, left_out).inside, group)
        for group in left_out
        if len(of := [row for row in known if row.task.group == group]) >= 20
    )
    cells = [
        name,
        str(len(rows)),
        f"{100 * (1 - len(known) / len(rows)):.0f}",
        f"{100 * before.inside:.0f}",
        f"{before.width:.1f}",
        f"{before.median:.2f}",
        f"{100 * now.inside:.0f}",
        f"{100 * out.inside:.0f}",
        f"{100 * verdict(losses, left_out).inside:.0f}",
        rising(known, left_out),
        f"{100 * worst[0]:.0f} ({worst[1]})",
        f"{out.width:.1f}",
        f"{out.median:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def reported(name: str, rows: Sequence[Row], left_out: Mapping[str, Factors]) -> list[str]:
    """Rows of the table of courses: inside, width and no solution, by how many values were seen."""
    cells: list[list[str]] = [[], [], []]
    for seen in SEEN:
        of = [row for row in rows if row.seen == seen and row.last >= SHORTEST]
        found = [row for row in of if row.predicted is not None]
        held = verdict(found, left_out) if len(of) >= FEWEST and found else None
        cells[0].append(f"{100 * held.inside:.0f}" if held else "")
        cells[1].append(f"{held.width:.1f}" if held else "")
        cells[2].append(f"{100 * (1 - len(found) / len(of)):.0f}" if len(of) >= FEWEST else "")
    measures = ("inside, %", "width", "no solution, %")
    return [f"| {name} | {measure} | {' | '.join(row)} |" for measure, row in zip(measures, cells, strict=True)]


def otherwise(given: Sequence[Task], rows: Sequence[Row]) -> list[str]:
    """The table of courses; `rows` are those of a value each epoch."""
    groups = dict.fromkeys(row.task.group for row in rows)
    left_out = {group: factors([row for row in rows if row.task.group != group]) for group in groups}
    lines = [
        "",
        "## Other courses",
        "",
        f"| course | | {' | '.join(map(str, SEEN))} |",
        f"| --- | --- |{' ---: |' * len(SEEN)}",
    ]
    for name, course in COURSES.items():
        lines += reported(
            name, rows if course is plain else [r for one in given for r in observed(one, course)], left_out
        )
    laws = power_laws(RARE * LONG)
    lines += reported("power laws, a value each epoch", [r for r in rows if r.task.group == laws.group], left_out)
    rare = observed(laws, lambda values, _: each(RARE, values))
    return lines + reported(f"power laws of {RARE * LONG} epochs, each {RARE}th value", rare, left_out)


def page(rows: Sequence[Row], courses: Sequence[str]) -> str:
    """Markdown: the table, that of `courses`, and the factors."""
    every = factors(rows)
    groups = dict.fromkeys(row.task.group for row in rows)
    fitted = dict.fromkeys(groups, every)
    left_out = {group: factors([row for row in rows if row.task.group != group]) for group in groups}
    names = ["", "predictions", "no solution, %", "before: inside, %", "width", "median", "fitted: inside, %"]
    names += ["left out: inside, %", "losses", "rising metrics (95 %; of cases)", "worst group of 20 or more"]
    names += ["width", "median"]
    long = [row for row in rows if row.last >= SHORTEST]
    lines = [
        "# The end of a job from its first epochs",
        "",
        "Written by `python -m benchmarks.estimation.young_curves`, whose text says what is measured: "
        f"{len({row.task.name for row in rows})} tasks in {len(groups)} groups. An interval is to hold 80 %.",
        "",
        f"| {' | '.join(names)} |",
        f"| --- |{' ---: |' * (len(names) - 1)}",
        *(line(f"{n} values seen", [row for row in long if row.seen == n], fitted, left_out) for n in SEEN),
        *(line(f"at {share:.0%} of a job", at_share(long, share), fitted, left_out) for share in SHARES),
        line(f"at 90%, {FEW} epochs or more left", [r for r in at_share(long, 0.9) if r.rest >= FEW], fitted, left_out),
        line(f"jobs of fewer than {SHORTEST} epochs", [r for r in rows if r.last < SHORTEST], fitted, left_out),
        *courses,
        "",
        "## Factors",
        "",
        "| values seen | lower bound times | median times | upper bound times |",
        "| ---: | ---: | ---: | ---: |",
        *(f"| {n} | {' | '.join(f'{factor:.2f}' for factor in every[n])} |" for n in SEEN),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Predict, calibrate and write the page; say whether the product has these factors."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=PUBLISHED)
    given = tasks(parser.parse_args().folder)
    rows = [row for task in given for row in observed(task)]
    text = page(rows, otherwise(given, rows))
    RESULT.write_text(text, encoding="utf-8")
    print(text)
    if (found := factors(rows)) != calibration.FACTORS:
        print(f"coach/core/estimation/calibration.py has other factors; they are now\nFACTORS = {found}")


if __name__ == "__main__":
    main()
