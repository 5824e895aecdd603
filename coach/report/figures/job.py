"""Figures of a job: its learning curve, its allocation, its money, the fitted speed with the path through it, and what
was predicted of the whole job.

Each `draw_...` draws on given axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from coach.core.cluster import Allocation
from coach.core.estimation.speed import SpeedModel
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.events import PricesChanged
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.lifecycle import forecast
from coach.core.spec.resources import JobObjective
from coach.report import formatting
from coach.report.accounting import Attempt, Balance, attempts, money
from coach.report.choices import Decision, Verdict, last_decision
from coach.report.export import write
from coach.report.figures.style import (
    BLUE,
    FORMATS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    STYLE,
    rendered,
    time_unit,
)
from coach.report.models import fitted_curve

#: Largest surface that is drawn, in workers and in servers.
MAX_CELLS = 32
#: Cells up to which a surface has its numbers written in.
MAX_NUMBERS = 24
#: A loss that falls to less than this part of its first value is drawn on a logarithmic axis.
LOG_BELOW = 0.2
#: The marker of a refused allocation and the meaning of the number at it: each reason has its own shape.
REFUSED: dict[Verdict, tuple[str, str]] = {
    Verdict.NO_GAIN: ("v", "refused: no gain (speed against the chosen)"),
    Verdict.TOO_DEAR: ("X", "refused: too dear (cost of an epoch)"),
    Verdict.TOO_LATE: ("P", "refused: too late (speed against the chosen)"),
    Verdict.NO_ROOM: ("s", "refused: no room (speed against the chosen)"),
    Verdict.NOT_REACHED: ("d", "not reached (speed against the chosen)"),
}
#: The same for a job whose objective is the lowest cost.
REFUSED_BY_COST = REFUSED | {
    Verdict.NO_GAIN: ("v", "refused: no gain (cost of an epoch)"),
    Verdict.NOT_REACHED: ("d", "not reached (cost of an epoch)"),
}


@dataclass(frozen=True, slots=True)
class Story:
    """A job with its attempts, its money and its last decision from its records. `now` in seconds since 1970."""

    job: Job
    attempts: Sequence[Attempt]
    purse: Sequence[Balance]
    now: float
    decision: Decision | None = None
    repriced: Sequence[float] = ()  #: when its prices changed

    @classmethod
    def of(cls, job: Job, records: Sequence[Any], now: float) -> Story:
        """From a job's records."""
        return cls(
            job,
            attempts(records, job.name),
            money(records, job.name),
            job.progress.ended_at or now,
            last_decision(records, job.name),
            [one.at for one in records if isinstance(one, PricesChanged) and one.job == job.name],
        )

    @property
    def start(self) -> float:
        """When its first epoch was ordered."""
        return self.attempts[0].order.at if self.attempts else self.job.progress.submitted_at


def plot(stories: Sequence[Story], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figures of jobs with at least one epoch; returns the paths. Raises OSError.

    For each job its figures, and the first four of them on one page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(cast(Any, STYLE)):
        for story in stories:
            for name, figure in figures(story).items():
                for kind in formats:
                    written.append(write(folder / f"{name}.{kind}", rendered(figure, kind)))
    return written


def figures(story: Story) -> dict[str, Figure]:
    """The figures of one job, by file name without its ending."""
    name = story.job.name
    made = {}
    for kind, (draw, size, rows) in _KINDS.items():
        figure = Figure(figsize=size, layout="constrained")
        draw(list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]), story)
        figure.suptitle(name, fontsize=12, fontweight="bold")
        made[f"{name}-{kind}"] = figure
    page = Figure(figsize=(13, 9), layout="constrained")
    page.suptitle(f"{name}: {story.job.state.value}, {story.job.message}"[:150], fontsize=12, fontweight="bold")
    parts = np.ravel(np.asarray(page.subfigures(2, 2)))
    for part, (draw, _, rows) in zip(parts, _KINDS.values(), strict=False):
        draw(list(part.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]), story)
    return {name: page, **made}


def one_figure(story: Story, kind: str, form: str) -> bytes:
    """One of the figures of a job (`curve`, `allocation`, `money`, `speed`, `prediction`), or without `kind` the page.

    `form`: png, svg or pdf.
    """
    name = story.job.name
    with mpl.rc_context(cast(Any, STYLE)):
        return rendered(figures(story)[f"{name}-{kind}" if kind else name], form)


# -- one function a kind ---------------------------------------------------------------------------------------


def draw_curve(axes: Sequence[Axes], story: Story) -> None:
    """Loss and accuracy by passes over the data, with the target, the fitted curve and its 80 % interval."""
    job = story.job
    epochs = job.evaluated_epochs
    shown = ("loss", "accuracy" if job.metric == "loss" else job.metric)
    for ax, metric, colour in zip(axes, shown, (BLUE, GREEN), strict=True):
        x = np.array([epoch.epochs_trained for epoch in epochs])
        y = np.array([epoch.report.value(metric) for epoch in epochs], dtype=float)
        if len(y) and np.isnan(y).all():
            ax.text(0.5, 0.5, f"no {metric} is reported", ha="center", transform=ax.transAxes, color=GREY)
            ax.set_yticks([])
            continue
        real = np.array([epoch.kind is EpochKind.FULL for epoch in epochs], dtype=bool)
        ax.plot(x, y, "-", color=colour, linewidth=1.2, alpha=0.6)
        ax.plot(x[real], y[real], "o", color=colour, markersize=4.5, label="epoch")
        if not real.all():
            ax.plot(
                x[~real],
                y[~real],
                "o",
                color=colour,
                markersize=4.5,
                markerfacecolor="white",
                label="mini-epoch",
            )
        if metric == job.metric:
            _target(ax, job)
        goal = job.target if metric == job.metric and job.target is not None else np.inf
        lowest = min(y.min(initial=np.inf), goal)
        if metric == "loss" and 0 < lowest < LOG_BELOW * y.max(initial=0):
            _logarithmic(ax, lowest, y.max())
        of_model = {"accuracy": " (share right)", "loss": " (mean, test split)"} if job.spec.model else {}
        ax.set_ylabel(metric + of_model.get(metric, ""))
        ax.margins(y=0.08)
        # With the predicted band no corner is certain to be free.
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    axes[0].set_title("Learning curve")
    axes[-1].set_xlabel(formatting.epochs(job.spec) if job.spec.model else "reports")


def _logarithmic(ax: Axes, low: float, high: float) -> None:
    """A logarithmic axis with plain numbers; the band's ends may lie outside."""
    ax.set_yscale("log")
    ax.set_ylim(low / 2, high * 1.5)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(lambda value, _: formatting.number(value))
    ax.yaxis.set_minor_locator(NullLocator())


def _target(ax: Axes, job: Job) -> None:
    if job.target is not None:
        ax.axhline(job.target, color=RED, linestyle="--", linewidth=1.2, label=f"target {job.target:g}")
    elif job.best is not None:
        at, value = job.best.epochs_trained, job.value(job.best)
        ax.plot(at, value, "*", color=RED, markersize=10, label=f"best: {value:.4g}")
    curve = fitted_curve(job, 120)
    if not curve:
        return
    x, values, bounds = (list(column) for column in zip(*curve, strict=True))
    ax.plot(x, values, ":", color=GREY, linewidth=1.3, label="fitted")
    ax.fill_between(
        x,
        [b.low for b in bounds],
        [b.high for b in bounds],
        color=GREY,
        alpha=0.15,
        linewidth=0,
        label="80 % interval",
    )
    last = None if job.state is State.SUCCEEDED else forecast.remaining(job).last
    if last is not None and job.target is not None:
        ax.errorbar(
            last.expected,
            job.target,
            xerr=[[last.expected - last.low], [x[-1] - last.expected]],
            fmt="D",
            color=RED,
            markersize=5,
            capsize=4,
            label=f"predicted end: {last.expected:.0f}\n({last.low:.0f} to {last.high:.0f}) passes",
        )


def draw_allocation(axes: Sequence[Axes], story: Story) -> None:
    """Workers and servers of each epoch over time; probes and attempts that did not count are shaded."""
    ax = axes[0]
    unit, scale = time_unit(story.now - story.start)
    times = [[(t - story.start) / scale for t in (s.order.at, s.end or story.now)] for s in story.attempts]
    # The second series is thinner and a little lower, so that both are seen where they are equal.
    roles = [("workers", BLUE, 3.5, 0.03)]
    if story.job.maximum.servers:
        roles.append(("servers", ORANGE, 2.0, -0.05))
    for role, colour, width, shift in roles:
        counts = [[getattr(span.order.allocation, role) + shift] * 2 for span in story.attempts]
        ax.plot(np.ravel(times), np.ravel(counts), "-", color=colour, linewidth=0.8, alpha=0.6)
        for index, (at, count) in enumerate(zip(times, counts, strict=True)):
            label = role if index == 0 else None
            ax.plot(at, count, "-", color=colour, linewidth=width, solid_capstyle="butt", label=label)
    said = set()
    for span, at in zip(story.attempts, times, strict=True):
        what = "probe" if span.order.kind is EpochKind.PROBE else ""
        if span.end is not None and not span.counted:
            what = "did not count"
        if what:
            colour = RED if what == "did not count" else PURPLE
            label = None if what in said else what
            ax.axvspan(at[0], at[1], color=colour, alpha=0.2, linewidth=0, label=label)
            said.add(what)
    most = max((max(span.order.allocation) for span in story.attempts), default=1)
    ax.set_ylim(0, 1.25 * most + 0.1)  # with room for the legend
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title(f"Allocation{_batch(story)}")
    ax.set_xlabel(f"time since the first epoch ({unit})")
    ax.set_ylabel("functions")
    ax.legend(loc="upper right", fontsize=8, ncols=4)


def _batch(story: Story) -> str:
    """What the changes of a program's workers did to its batch; "" where they did not change."""
    program, used = story.job.spec.program, {span.order.allocation.workers for span in story.attempts}
    if program is None or len(used) < 2:
        return ""
    if program.batch == "per-job":
        return "; one batch a step, divided"
    return f"; {min(used)} to {max(used)} batches a step"


def draw_money(axes: Sequence[Axes], story: Story) -> None:
    """Money spent, reserved in addition, and the budget; while the job trains, what the rest of it is kept for."""
    ax = axes[0]
    job = story.job
    unit, scale = time_unit(story.now - story.start)
    currency = job.price_book.currency
    at = np.array([(entry.at - story.start) / scale for entry in story.purse] + [(story.now - story.start) / scale])
    spent = np.array([entry.spent for entry in story.purse] + [story.purse[-1].spent])
    reserved = np.array([entry.reserved for entry in story.purse] + [story.purse[-1].reserved])
    ax.fill_between(at, spent, spent + reserved, step="post", color=ORANGE, alpha=0.35, linewidth=0, label="reserved")
    ax.step(at, spent, where="post", color=BLUE, linewidth=1.8, label="spent")
    for number, changed in enumerate(story.repriced):
        label = None if number else "price changed"
        ax.axvline((changed - story.start) / scale, color=PURPLE, linestyle=":", linewidth=1.2, label=label)
    budget = None if job.money.ledger.budget is None else job.money.ledger.budget / 1e9
    top = float((spent + reserved).max())
    # A budget far above all that was spent or reserved would press everything else against the axis.
    if budget is not None and budget <= 3 * top:
        ax.axhline(
            budget,
            color=RED,
            linestyle="--",
            linewidth=1.2,
            label=f"budget {formatting.plain_amount(budget)}",
        )
        top = max(top, budget)
        _draw_plan(ax, job, float(spent[-1]), float(at[-1]))
    elif budget is not None:
        ax.plot([], [], " ", label=f"budget {formatting.plain_amount(budget)} {currency}, far above")
    else:
        ax.plot([], [], " ", label="no budget")
    ax.set_xlim(left=0)
    ax.set_ylim(0, top * 1.25 or 1)  # with room for the legend
    ax.set_title("Money")
    ax.set_xlabel(f"time since the first epoch ({unit})")
    ax.set_ylabel(currency)
    ax.legend(loc="upper left", fontsize=8, ncols=3)


def _draw_plan(ax: Axes, job: Job, spent: float, now: float) -> None:
    """How the money left will be spent, as a bar after `now`: on the epochs provided for, and on speed."""
    plan = forecast.spending_plan(job)
    if plan is None or job.state.ended:
        return
    width = 0.06 * now
    kept = plan.provided * plan.cheapest
    parts = [(f"kept for {plan.provided} epochs", spent, kept, PURPLE)]
    if plan.spare > 0.0:
        parts.append(("for speed", spent + kept, plan.spare, GREEN))
    for label, bottom, height, colour in parts:
        ax.bar(now + 0.75 * width, height, width, bottom, color=colour, alpha=0.5, label=label)


def draw_prediction(axes: Sequence[Axes], story: Story) -> None:
    """What each epoch's start predicted of the whole job's seconds and money, against what has come so far."""
    job = story.job
    unit, scale = time_unit(story.now - story.start)
    known = [(span.order.at, one) for span in story.attempts if (one := span.order.job_forecast)]
    at = [(begun - story.start) / scale for begun in (*(begun for begun, _ in known), story.now)]
    so_far = "the job took" if job.state.ended else "so far"
    for ax, label, bounds, came in (
        (
            axes[0],
            f"held ({unit})",
            [tuple(x / scale for x in one.seconds) for _, one in known],
            job.progress.run_seconds / scale,
        ),
        (axes[1], job.price_book.currency, [one.cost for _, one in known], job.money.ledger.spent / 1e9),
    ):
        if bounds:
            low, expected, high = zip(*bounds, bounds[-1], strict=True)
            ax.fill_between(at, low, high, step="post", color=BLUE, alpha=0.2, linewidth=0, label="80 % interval")
            ax.step(at, expected, where="post", color=BLUE, linewidth=1.8, label="predicted for the whole job")
            # The first intervals are wide: what came, and the expected values, decide what is seen.
            ax.set_ylim(0, 2.5 * max(came, *expected) or 1)
        ax.axhline(came, color=GREEN, linestyle="--", linewidth=1.2, label=so_far)
        ax.set_ylabel(label)
    axes[0].set_title("Prediction" if known else "Prediction: none was made")
    axes[0].legend(loc="upper right", fontsize=8, ncols=3)
    axes[1].set_xlabel(f"time since the first epoch ({unit})")


def draw_speed(axes: Sequence[Axes], story: Story) -> None:
    """The fitted surface over workers and servers at the last decision: what was measured, chosen and refused, and why.

    Drawn over it is the path of the full epochs. The surface of a job without servers is a curve.
    """
    ax = axes[0]
    ax.set_xlabel("workers")
    decision = story.decision
    job = story.job if decision is None or decision.job.speed is None else decision.job
    if job.speed is None:
        ax.set_title("Speed")
        ax.text(0.5, 0.5, "no speed is known yet", ha="center", transform=ax.transAxes)
    elif job.maximum.servers:
        _draw_surface(ax, story, job, job.speed)
    else:
        _draw_speed_curve(ax, story, job, job.speed)


def _draw_surface(ax: Axes, story: Story, job: Job, speed: SpeedModel) -> None:
    decision = story.decision
    ax.grid(visible=False)
    ax.set_title("Speed: fitted surface, what was chosen and refused")
    ax.set_ylabel("servers")
    seen = [Allocation(p.workers, p.servers) for p in speed.points]
    probed = {epoch.allocation for epoch in job.epochs if epoch.kind is EpochKind.PROBE}
    choices = [] if decision is None or job is not decision.job else decision.choices()
    most_w = min(MAX_CELLS, max(job.maximum.workers, *(at.workers for at in seen)))
    most_s = min(MAX_CELLS, max(job.maximum.servers, *(at.servers for at in seen)))
    grid = [Allocation(w, s) for s in range(1, most_s + 1) for w in range(1, most_w + 1)]
    surface = speed.predict_all(grid).reshape(most_s, most_w)
    image = ax.imshow(
        surface, origin="lower", cmap="cividis", aspect="auto", extent=(0.5, most_w + 0.5, 0.5, most_s + 0.5)
    )
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label("epochs/s, fitted")
    middle = (float(surface.min()) + float(surface.max())) / 2
    ink = {at: "white" if v < middle else "black" for at, v in zip(grid, surface.ravel(), strict=True)}
    if len(grid) <= MAX_NUMBERS:
        for at, v in zip(grid, surface.ravel(), strict=True):
            _write(ax, at, -0.27, formatting.number(float(v)), ink[at])
    for label, places, marker in (
        ("predicted only", set(grid) - set(seen), "."),
        ("measured", set(seen) - probed, "o"),
        ("probed", probed, "D"),
    ):
        if inside := sorted(places & set(grid)):
            # Those without a measurement are a dot in the ink of their cell; the legend's is black.
            dot = marker == "."
            ax.scatter(
                [at.workers for at in inside],
                [at.servers for at in inside],
                s={".": 40, "o": 60, "D": 40}[marker],
                marker=marker,
                c=[ink[at] for at in inside] if dot else "white",
                edgecolors="none" if dot else "black",
                zorder=4,
            )
            face = "black" if dot else "white"
            ax.plot([], [], marker, markerfacecolor=face, markeredgecolor="black", linestyle="", label=label)
    path = [at for at, _ in itertools.groupby(epoch.allocation for epoch in story.job.full_epochs)]
    for before, after in itertools.pairwise(path):
        look = {
            "arrowstyle": "-|>",
            "color": RED,
            "linewidth": 1.6,
            "shrinkA": 6,
            "shrinkB": 10,
            "connectionstyle": "arc3,rad=0.1",
        }
        ax.annotate("", xy=after, xytext=before, arrowprops=look)
    if path:
        ax.plot([], [], "-", color=RED, label="path")
    chosen = choices[0].allocation if choices else path[-1] if path else None
    if chosen is not None:
        ax.plot(*chosen, "*", linestyle="", markersize=22, color=RED, markeredgecolor="white", zorder=3)
        ax.plot([], [], "*", linestyle="", markersize=12, color=RED, label="chosen")
    by_cost = job.spec.objective is JobObjective.CHEAPEST
    for verdict, (marker, label) in (REFUSED_BY_COST if by_cost else REFUSED).items():
        refused = [one for one in choices if one.verdict is verdict and one.allocation in ink]
        for index, one in enumerate(refused):
            w, s = one.allocation
            ax.plot(
                w,
                s + 0.3,
                marker,
                linestyle="",
                markersize=7,
                color=ORANGE,
                markeredgecolor="black",
                label=label if index == 0 else None,
                zorder=4,
            )
            if len(grid) <= MAX_NUMBERS:
                priced = "cost" in label
                number = formatting.amount(one.cost) if priced else formatting.percent(one.pace, signed=True)
                _write(ax, one.allocation, 0.3, number, ink[one.allocation])
    ax.set_xlim(0.5, most_w + 0.5)
    ax.set_ylim(0.5, most_s + 0.5)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.12), fontsize=8, ncols=2)


def _draw_speed_curve(ax: Axes, story: Story, job: Job, speed: SpeedModel) -> None:
    """The fitted speed by workers, for jobs without servers."""
    ax.set_title("Speed: fitted curve, what was chosen and refused")
    ax.set_ylabel("epochs/s")

    def mark(workers: Sequence[int], speeds: Sequence[float], marker: str, look: dict[str, Any]) -> None:
        if workers:
            ax.plot(workers, speeds, marker, linestyle="", **look)

    measured = {point.workers: point.epochs_per_second for point in speed.points}
    probed = {e.allocation.workers for e in job.epochs if e.kind is EpochKind.PROBE} & measured.keys()
    workers = range(1, min(MAX_CELLS, max(job.maximum.workers, *measured)) + 1)
    fitted = speed.intervals([Allocation(w, 0) for w in workers])
    lows, highs = [one.low for one in fitted], [one.high for one in fitted]
    ax.fill_between(workers, lows, highs, color=BLUE, alpha=0.15, linewidth=0, label="80 % of measurements")
    ax.plot(workers, [one.expected for one in fitted], "-", color=BLUE, label="fitted")
    white = {"markerfacecolor": "white", "markeredgecolor": "black", "zorder": 4}
    for label, places, marker in (("measured", measured.keys() - probed, "o"), ("probed", probed, "D")):
        mark(sorted(places), [measured[w] for w in sorted(places)], marker, white | {"label": label})
    decision = story.decision
    choices = [] if decision is None or job is not decision.job else decision.choices()
    counts = [one.allocation.workers for one in choices] or [e.allocation.workers for e in story.job.full_epochs][-1:]
    star = {"markersize": 18, "color": RED, "markeredgecolor": "white", "zorder": 3, "label": "chosen"}
    mark(counts[:1], [fitted[w - 1].expected for w in counts[:1]], "*", star)
    by_cost = job.spec.objective is JobObjective.CHEAPEST
    for verdict, (marker, label) in (REFUSED_BY_COST if by_cost else REFUSED).items():
        refused = [one.allocation.workers for one in choices if one.verdict is verdict]
        refused = [w for w in refused if w in workers]
        look = {"markersize": 7, "color": ORANGE, "markeredgecolor": "black", "zorder": 4}
        look["label"] = label.partition(" (")[0]  # the axis has the speed
        mark(refused, [fitted[w - 1].expected for w in refused], marker, look)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.12), fontsize=8, ncols=3)


def _write(ax: Axes, at: Allocation, above: float, text: str, ink: str) -> None:
    """A text in the cell of an allocation, `above` its middle and left of it, where few paths go."""
    edge = [withStroke(linewidth=1.5, foreground="black" if ink == "white" else "white")]
    x, y = at.workers - 0.08, at.servers + above
    ax.text(x, y, text, ha="right", va="center", fontsize=8, color=ink, path_effects=edge, zorder=5)


#: Name of the figure -> what draws it, its size in inches, and how many axes one above the other it has.
_KINDS: dict[str, tuple[Callable[[Sequence[Axes], Story], None], tuple[float, float], int]] = {
    "curve": (draw_curve, (7, 5.5), 2),
    "allocation": (draw_allocation, (7, 3.6), 1),
    "money": (draw_money, (7, 3.6), 1),
    "speed": (draw_speed, (7, 4.4), 1),
    "prediction": (draw_prediction, (7, 4.4), 2),
}
