"""Runs scenarios over seeds and compares our numbers with the paper's."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from coach.simulation.parallel import gather
from coach_research.comparison import (
    CALIBRATED,
    COLUMNS,
    JUDGED,
    OPEN,
    VARIANT,
    Comparison,
    comparison_figure,
    comparison_table,
    counts,
    direction,
    ends,
    relative_text,
    tells,
)
from coach_research.run_store import RunStore, stored_runs, write_runs
from coach_research.scenario import Scenario, Target
from coach_research.workload import FloatArray


@dataclass(frozen=True)
class Outcome:
    """The results of a scenario: for each measure one value a seed (NaN if a run has none)."""

    scenario: Scenario
    parameters: dict[str, Any]
    seeds: tuple[int, ...]
    results: Mapping[str, FloatArray]
    interrupted: bool = False

    def comparisons(self) -> list[Comparison]:
        """Our numbers compared with the paper's, a row for each target."""
        return [self._compare(target) for target in self.scenario.targets]

    def _compare(self, target: Target) -> Comparison:
        values = self.results.get(target.measure, np.zeros(0))
        values = values[~np.isnan(values)]
        count = len(values)
        mean = float(values.mean()) if count else math.nan
        half = t95(count) * float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
        low, high = (float(values.min()), float(values.max())) if count else (math.nan, math.nan)
        relative = mean / target.paper - 1.0
        role, doubt = JUDGED, half / abs(target.paper)
        if target.variant or self.scenario.variant_of:
            role = VARIANT
        elif target.calibrated:
            role = CALIBRATED
        elif self.scenario.shorter or not (self.scenario.same_inputs or tells(relative, doubt, target.tolerance)):
            role = OPEN
        return Comparison(
            self.scenario.name, target.measure, target.unit, target.paper, mean, half, low, high, count,
            relative, doubt, target.tolerance, target.reason, abs(relative) <= target.tolerance,
            direction(target.paper, mean, half, target.equal), target.group,
            role, target.source,
        )  # fmt: skip


def t95(count: int) -> float:
    """The half width of a 95 % interval of a mean of `count` values, in standard errors."""
    from scipy.stats import t

    return float(t.ppf(0.975, count - 1))


def run_scenario(
    scenario: Scenario,
    *,
    quick: bool = False,
    processes: int | None = None,
    done: Callable[[int, Any], object] = lambda index, result: None,
    progress: Callable[[float], object] = lambda done: None,
    folder: Path | None = None,
    anew: bool = False,
) -> Outcome:
    """Run all seeds of a scenario; after an interrupt, return those that are done.

    Runs are stored in `folder`/<name> as they come. Stored runs are not run again, unless `anew`. Raises OSError.
    """
    parameters, seeds = scenario.settings(quick)
    kept = None if folder is None else RunStore(folder / scenario.name, parameters, anew=anew)
    runs = {seed: kept.runs[seed] for seed in seeds if kept and seed in kept.runs}
    for seed, measures in runs.items():
        done(seed, measures)
    missing = [seed for seed in seeds if seed not in runs]

    def add(index: int, measures: dict[str, float]) -> None:
        runs[missing[index]] = measures
        if kept is not None:
            kept.add(missing[index], measures)
        done(missing[index], measures)

    tasks = [(replicate, (scenario.experiment, parameters, seed)) for seed in missing]
    stored = len(runs)
    _, interrupted = gather(tasks, processes=processes, done=add, progress=lambda ended: progress(stored + ended))
    return _outcome(scenario, parameters, runs, interrupted)


def look_up(scenario: Scenario, folder: Path, *, quick: bool = False) -> Outcome:
    """The runs stored in `folder`/<name>, of any version of the code; runs nothing. Raises OSError, ValueError."""
    parameters, seeds = scenario.settings(quick)
    stored = stored_runs(folder / scenario.name, parameters)
    return _outcome(scenario, parameters, {seed: stored[seed] for seed in seeds if seed in stored})


def _outcome(
    scenario: Scenario,
    parameters: dict[str, Any],
    runs: Mapping[int, Mapping[str, float]],
    interrupted: bool = False,
) -> Outcome:
    ordered = sorted(runs)
    names = dict.fromkeys(name for seed in ordered for name in runs[seed])
    columns = {name: np.array([float(runs[seed].get(name, math.nan)) for seed in ordered]) for name in names}
    return Outcome(scenario, parameters, tuple(ordered), columns, interrupted)


def replicate(experiment: str, parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """One run of an experiment, in any process."""
    from importlib import import_module

    module = import_module(f"coach_research.experiments.{experiment}")
    measures: dict[str, float] = module.replicate(parameters, seed)
    return measures


def write_outcome(outcome: Outcome, folder: Path) -> list[Path]:
    """`measures.csv`, `comparison.md` and the experiment's figures, in `folder`/<name>. Raises OSError."""
    place = folder / outcome.scenario.name
    place.mkdir(parents=True, exist_ok=True)
    written = [place / "measures.csv", place / "comparison.md"]
    columns = {name: values.tolist() for name, values in outcome.results.items()}
    runs = {seed: {name: columns[name][at] for name in columns} for at, seed in enumerate(outcome.seeds)}
    write_runs(written[0], runs)
    written[1].write_text(_text(outcome))
    if outcome.scenario.targets and outcome.seeds:
        written.append(_draw(comparison_figure(outcome.comparisons()), place / "comparison.svg"))
    figures = getattr(outcome.scenario.module(), "figures", None)
    if figures is not None and outcome.seeds:
        for name, figure in figures(outcome.results, outcome.parameters).items():
            written.append(_draw(figure, place / f"{name}.svg"))
    return written


def _draw(figure: Figure, path: Path) -> Path:
    with mpl.rc_context({"svg.hashsalt": "coach"}):  # the same figure gives the same bytes
        figure.savefig(path, metadata={"Date": None})
    return path


def write_summary(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """`summary.csv` and `summary.md` of all experiments. Raises OSError."""
    rows = [row for outcome in outcomes if outcome.seeds for row in outcome.comparisons()]
    text = io.StringIO()
    out = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    out.writeheader()
    out.writerows(asdict(row) for row in rows)
    parts = ["# Paper and ours", "", *_counts(outcomes, rows), ""]
    for name in dict.fromkeys(row.scenario for row in rows):
        parts += [f"## {name}", "", comparison_table([row for row in rows if row.scenario == name]), ""]
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "summary.csv", folder / "summary.md"]
    written[0].write_text(text.getvalue())
    written[1].write_text("\n".join(parts))
    return written


def _counts(outcomes: Sequence[Outcome], rows: Sequence[Comparison]) -> list[str]:
    """One line for each experiment: how many of its paper's numbers come out, and the best and the worst of all."""
    heads = list(counts([]))
    lines = [
        "How many of the papers' numbers come out within the tolerance that each scenario states. Only judged",
        "numbers count: no parameter was fitted on them, and of the variants of a number one is judged. Direction: the",
        "same one of two policies is ahead, and equality is outside our 95 % interval. Open: an interval that holds",
        "the tolerance's edge can't tell a hit from a miss, and a run shorter than the paper's says nothing of it.",
        "",
        f"| experiment | paper | runs | {' | '.join(heads)} |",
        f"| --- | --- | ---: |{' ---: |' * len(heads)}",
    ]
    for one in (outcome for outcome in outcomes if outcome.seeds and outcome.scenario.targets):
        scenario = one.scenario
        found = counts([row for row in rows if row.scenario == scenario.name]).values()
        runs = f"{len(one.seeds)} of {scenario.seeds}" if len(one.seeds) < scenario.seeds else f"{scenario.seeds}"
        lines.append(
            f"| [{scenario.name}]({scenario.name}/comparison.md) | {scenario.paper} | {runs} | {' | '.join(found)} |"
        )
    lines += [
        f"| **all** | | | {' | '.join(counts(rows).values())} |",
        "",
        "| of the judged | experiment | measure | paper | ours | relative difference |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        *(
            f"| {which} | {row.scenario} | {row.measure} | {row.paper:g} | {row.ours:.4g} | {relative_text(row)} |"
            for which, row in ends(rows)
        ),
    ]
    said = (
        ("Without a number in a paper", [o for o in outcomes if o.seeds and not o.scenario.targets]),
        ("Not run", [o for o in outcomes if not o.seeds]),
    )
    for words, some in said:
        if some:
            lines += ["", f"{words}: {', '.join(one.scenario.name for one in some)}."]
    return lines


def _text(outcome: Outcome) -> str:
    scenario = outcome.scenario
    lines = [
        f"# {scenario.title}",
        "",
        f"Paper: {scenario.paper}. {scenario.kind.capitalize()}: {len(outcome.seeds)} runs, "
        f"{len(scenario.free_parameters)} free parameters"
        + (f" ({', '.join(scenario.free_parameters)})." if scenario.free_parameters else "."),
        "",
        *([f"A variant of {scenario.variant_of}, which judges these numbers.", ""] if scenario.variant_of else []),
        *([f"Shorter than the paper's, so its rows are open: {scenario.shorter}.", ""] if scenario.shorter else []),
        *([comparison_table(outcome.comparisons()), ""] if scenario.targets else []),
        *_own_table(outcome),
        scenario.notes.strip(),
        "",
    ]
    published = {target.measure for target in scenario.targets}
    others = {measure: values for measure, values in outcome.results.items() if measure not in published}
    if others:
        lines += [
            "## Without a number in the paper",
            "",
            "| measure | mean | range |",
            "| --- | ---: | ---: |",
        ]
        for measure, values in others.items():
            known = values[~np.isnan(values)]
            if len(known):
                lines.append(f"| {measure} | {known.mean():.4g} | {known.min():.4g} .. {known.max():.4g} |")
    return "\n".join(lines).strip() + "\n"


def _own_table(outcome: Outcome) -> list[str]:
    """The experiment's own `table(results, parameters)`, if it has one."""
    table = getattr(outcome.scenario.module(), "table", None)
    return [table(outcome.results, outcome.parameters), ""] if table is not None and outcome.seeds else []
