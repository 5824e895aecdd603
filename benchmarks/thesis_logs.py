"""The thesis's own runs, read again: table 3 by runs instead of jobs.

    python -m benchmarks.thesis_logs [FOLDER]

Table 3 of the thesis compares 15 completion times of LeNet under the stock scheduler with 15 under its own. They are
five runs of three jobs each, and jobs of one run are alike, so the runs are what can be compared. Writes
`results/thesis/logs.md` from `FOLDER` (default: tests/data/thesis/runs/LeNet), in seconds.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy import optimize, stats

SOURCE = Path("tests/data/thesis/runs/LeNet")
TARGET = Path("results/thesis/logs.md")
#: The runs of table 3: five under each scheduler. Four more of the thesis's own are not in the table.
PRINTED = range(1, 6)
LATER = range(9, 13)

#: A job's mini-epochs, before its real epochs.
MINI_EPOCHS = 4


@dataclass(frozen=True)
class Job:
    """One job of a run: its completion time, and its real epochs (two workers log an epoch twice: counted once)."""

    seconds: float
    epochs: int


def read_run(path: Path) -> list[Job]:
    """The jobs of one run."""
    text = path.read_text()
    totals = [float(value) for value in re.findall(r'"totalTime":\s*([\d.Ee+-]+)', text)]
    epochs = []
    for line in re.findall(r'"epochs":\s*\[([^]]*)\]', text):
        _, _, real = line.partition("|")
        epochs.append(len({number for number in real.replace(",", " ").split()}))
    return [Job(total, count) for total, count in zip(totals, epochs, strict=True)]


def compared(default: list[list[Job]], gang: list[list[Job]], later: list[list[Job]]) -> list[list[str]]:
    """Rows of the table: what is compared, both means, p (Welch's t), p (permutation of runs), the interval."""

    def times(run: list[Job]) -> list[float]:
        return [job.seconds for job in run]

    measures = {
        "mean of a run": lambda run: float(np.mean(times(run))),
        "first job of a run": lambda run: min(times(run)),
        "last job of a run": lambda run: max(times(run)),
        "seconds an epoch of a run (total / all epochs)": lambda run: (
            sum(times(run)) / sum(MINI_EPOCHS + job.epochs for job in run)
        ),
    }
    flat = [[job.seconds for run in runs for job in run] for runs in (default, gang)]
    rows = [_row("as printed: jobs, 15 and 15", *flat, permute=False)]
    for (name, measure), more in product(measures.items(), (False, True)):
        theirs = [*gang, *later] if more else gang
        label = f"{name}, {len(default)} and {len(theirs)}"
        rows.append(_row(label, [measure(run) for run in default], [measure(run) for run in theirs]))
    return rows


def _row(label: str, one: list[float], other: list[float], *, permute: bool = True) -> list[str]:
    test = stats.ttest_ind(one, other, equal_var=False)
    low, high = test.confidence_interval(0.95)
    shuffled = ""
    if permute:
        p = stats.permutation_test(
            (one, other), lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis), vectorized=True,
            n_resamples=np.inf,
        ).pvalue  # fmt: skip
        shuffled = f"{p:.2f}"
    digits = 0 if np.mean(one) > 100 else 1
    return [
        label, f"{np.mean(one):.{digits}f}", f"{np.mean(other):.{digits}f}", f"{test.pvalue:.2f}", shuffled,
        f"{low:.{digits}f} .. {high:.{digits}f}", f"{100 * visible(one, other) / np.mean(one):.0f} %",
    ]  # fmt: skip


def visible(one: list[float], other: list[float], power: float = 0.8) -> float:
    """The difference of means that such samples show (two-sided t, 5 %) in a share `power` of comparisons."""
    freedom = len(one) + len(other) - 2
    squares = sum((len(sample) - 1) * np.var(sample, ddof=1) for sample in (one, other))
    error = math.sqrt(squares / freedom * (1 / len(one) + 1 / len(other)))
    critical = stats.t.ppf(0.975, freedom)

    def lacking(difference: float) -> float:
        shift = difference / error
        return float(stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift)) - power

    return float(optimize.brentq(lacking, 0.0, 6 * error))


def alike(runs: list[list[Job]]) -> tuple[float, float]:
    """The intraclass correlation of completion times within runs, and how many independent values they are worth."""
    values = np.array([[job.seconds for job in run] for run in runs])
    count, jobs = values.shape
    between = jobs * values.mean(axis=1).var(ddof=1)
    within = values.var(axis=1, ddof=1).mean()
    correlation = float((between - within) / (between + (jobs - 1) * within))
    return correlation, count * jobs / (1 + (jobs - 1) * correlation)


def main(arguments: list[str]) -> None:
    """Write the page."""
    source = Path(arguments[0]) if arguments else SOURCE
    runs = {
        name: [read_run(source / f"repeated_three_{kind}_{number}.txt") for number in numbers]
        for name, kind, numbers in (
            ("default", "default", PRINTED), ("gang", "gang", PRINTED), ("later", "gang", LATER),
        )
    }  # fmt: skip
    rows = compared(runs["default"], runs["gang"], runs["later"])
    # The correlation within the two groups of table 3, each around its own mean.
    groups = [alike(runs[name]) for name in ("default", "gang")]
    jobs = [job for name in runs for run in runs[name] for job in run]
    fit = stats.linregress([job.epochs for job in jobs], [job.seconds for job in jobs])
    head = [
        "compared", "stock", "thesis's", "p (Welch)", "p (permutation)", "95 % of stock - thesis's",
        "least difference seen",
    ]  # fmt: skip
    lines = [
        "# Table 3 of the thesis, read again from its logs", "",
        "`python -m benchmarks.thesis_logs`: LeNet, three jobs at once, dynamic, tests/data/thesis/runs. Seconds.", "",
        f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows), "",
        "Least difference seen: what such samples would show in 80 % of trials (power of the two-sided t test at 5 %, "
        "their own deviations), in parts of the stock mean.", "",
        "The thesis's gang row is runs 1 to 5. Runs 9 to 12, of the next day, are in its folder and not in its table: "
        "the comparisons with 9 have them. Gang run 12 prints one end for all three jobs.", "",
        "Jobs of a run are alike: the correlation within runs is "
        f"{groups[0][0]:.2f} (stock) and {groups[1][0]:.2f} (thesis's), so 15 jobs are worth {groups[0][1]:.1f} and "
        f"{groups[1][1]:.1f} independent values.", "",
        f"A job's seconds are {fit.intercept:.0f} + {fit.slope:.1f} x its epochs (R² {fit.rvalue**2:.2f}; 14 runs): "
        "the table compares numbers of epochs, on which a scheduler has no hold.", "",
    ]  # fmt: skip
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
