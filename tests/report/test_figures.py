"""Figures show what they promise, and the same job gives the same file."""

import re
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from coach.core.jobs.epoch import EpochKind
from coach.core.lifecycle import forecast
from coach.core.lifecycle.forecast import spending_plan
from coach.report import formatting
from coach.report.choices import Verdict, last_decision
from coach.report.comparison import Comparison, Progress
from coach.report.figures import comparison
from coach.report.figures.job import REFUSED, Story, figures, plot
from coach.report.figures.jobs import plot_together, together
from coach.report.figures.style import STYLE, rendered
from tests.core.lifecycle.faulty_cluster import World, nodes, spec
from tests.report.recorded_jobs import faulty_job, half_way, one_job, pytorch_job, steady_job, two_jobs

pytestmark = pytest.mark.standard

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def faulty() -> dict[str, Figure]:
    world = faulty_job()
    with mpl.rc_context(STYLE):
        return figures(Story.of(world.job("faulty"), world.history, world.now))


def legend(figure: Figure, axes: int = 0) -> set[str]:
    drawn = figure.axes[axes].get_legend()
    assert drawn is not None
    return {text.get_text() for text in drawn.get_texts()}


def test_each_job_has_five_figures_and_a_page(faulty: dict[str, Figure]) -> None:
    kinds = ["curve", "allocation", "money", "speed", "prediction"]
    assert list(faulty) == ["faulty", *(f"faulty-{kind}" for kind in kinds)]


def test_the_prediction_has_its_interval_and_what_came(faulty: dict[str, Figure]) -> None:
    world = faulty_job()
    assert legend(faulty["faulty-prediction"]) == {"80 % interval", "predicted for the whole job", "the job took"}
    _, money = faulty["faulty-prediction"].axes
    took = next(line for line in money.lines if line.get_label() == "the job took")
    assert took.get_ydata()[0] == pytest.approx(world.job("faulty").money.ledger.spent / 1e9)


def test_the_curve_has_its_target_and_the_fit(faulty: dict[str, Figure]) -> None:
    drawn = legend(faulty["faulty-curve"])
    [end] = [text for text in drawn if text.startswith("predicted end: ")]
    assert {"epoch", "mini-epoch", "target 0.15", "fitted", "80 % interval", end} == drawn
    assert {"epoch", "mini-epoch"} == legend(faulty["faulty-curve"], 1)


def test_the_allocation_marks_probes_and_attempts_that_did_not_count(faulty: dict[str, Figure]) -> None:
    assert {"workers", "servers", "probe", "did not count"} == legend(faulty["faulty-allocation"])


def test_the_money_has_its_reservations_and_its_budget(faulty: dict[str, Figure]) -> None:
    assert {"reserved", "spent", "budget 0.01"} == legend(faulty["faulty-money"])


def test_the_money_of_a_job_that_trains_shows_what_the_rest_is_kept_for() -> None:
    world = half_way(epochs=8, budget=0.018)
    job = world.job("digits")
    plan = spending_plan(job)
    assert plan is not None and plan.spare > 0.0
    with mpl.rc_context(STYLE):
        drawn = figures(Story.of(job, world.history, world.now))["digits-money"]
    assert {f"kept for {plan.provided} epochs", "for speed"} < legend(drawn)
    kept, spare = (patch for bars in drawn.axes[0].containers for patch in bars)
    assert kept.get_height() == pytest.approx(plan.provided * plan.cheapest)
    assert kept.get_y() + kept.get_height() == pytest.approx(spare.get_y())
    assert spare.get_y() + spare.get_height() <= 0.018


def band(figure: Figure) -> list[tuple[float, float, float]]:
    """The predicted band as drawn: x, lower and upper end."""
    [drawn] = [one for one in figure.axes[0].collections if one.get_label() == "80 % interval"]
    vertices = drawn.get_paths()[0].vertices
    ends: dict[float, list[float]] = {}
    for x, y in vertices.tolist():
        ends.setdefault(x, []).append(y)
    return [(x, min(ys), max(ys)) for x, ys in sorted(ends.items())]


@pytest.mark.parametrize("make", [faulty_job, half_way])
def test_the_predicted_band_reaches_to_the_target_and_to_the_predicted_end(make) -> None:
    world = make()
    job = next(iter(world.reducer.jobs.values()))
    with mpl.rc_context(STYLE):
        curve = figures(Story.of(job, world.history, world.now))[f"{job.name}-curve"]
    last = forecast.remaining(job).last
    assert last is not None and last.expected > job.epochs_trained, "a job that is not done"
    drawn = band(curve)
    assert drawn[0][0] == pytest.approx(job.epochs[0].epochs_trained)
    assert drawn[-1][0] >= last.expected
    assert drawn[-1][1] <= job.target <= drawn[0][1]
    [end] = [text for text in legend(curve) if text.startswith("predicted end: ")]
    assert end == f"predicted end: {last.expected:.0f}\n({last.low:.0f} to {last.high:.0f}) passes"


def test_the_band_of_a_job_that_reached_its_target_ends_with_its_last_epoch() -> None:
    world = one_job()
    job = world.job("digits")
    with mpl.rc_context(STYLE):
        curve = figures(Story.of(job, world.history, world.now))["digits-curve"]
    x, low, _ = band(curve)[-1]
    assert x == pytest.approx(job.epochs_trained) and low <= job.target
    assert not any("predicted end" in text for text in legend(curve))


def marks(figure: Figure, marker: str) -> set[tuple[float, float]]:
    """Where the marks of a refusal are drawn, by allocation."""
    lines = [line for line in figure.axes[0].lines if line.get_marker() == marker and len(line.get_xdata())]
    return {(round(float(line.get_xdata()[0])), int(float(line.get_ydata()[0]))) for line in lines}


def test_the_surface_marks_what_was_probed_predicted_chosen_and_refused(faulty: dict[str, Figure]) -> None:
    surface = faulty["faulty-speed"]
    decision = last_decision(faulty_job().history, "faulty")
    assert decision is not None
    refused = {one.allocation for one in decision.choices() if one.verdict is Verdict.TOO_DEAR}
    assert refused and marks(surface, REFUSED[Verdict.TOO_DEAR][0]) == refused
    assert {"predicted only", "probed", "path", "chosen", "refused: too dear (cost of an epoch)"} == legend(surface)
    [star] = [line for line in surface.axes[0].lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == decision.chosen
    costs = {formatting.amount(one.cost) for one in decision.choices() if one.verdict is Verdict.TOO_DEAR}
    assert costs <= {text.get_text() for text in surface.axes[0].texts}


def test_the_surface_marks_what_gains_nothing_and_what_has_no_room() -> None:
    world = half_way()
    with mpl.rc_context(STYLE):
        surface = figures(Story.of(world.job("digits"), world.history, world.now))["digits-speed"]
    assert marks(surface, REFUSED[Verdict.NO_GAIN][0]) == {(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)}
    assert marks(surface, REFUSED[Verdict.NO_ROOM][0]) == {(3, 2), (3, 3)}
    assert {
        "refused: no gain (speed against the chosen)",
        "refused: no room (speed against the chosen)",
    } <= legend(surface)


def test_the_speed_of_a_job_without_servers_is_a_curve_over_its_workers(tmp_path: Path) -> None:
    world = pytorch_job(8)
    story = Story.of(world.job("torch"), world.history, world.now)
    with mpl.rc_context(STYLE):
        made = figures(story)
    assert legend(made["torch-allocation"]) == {"workers", "probe"}
    drawn = made["torch-speed"].axes
    assert (len(drawn), drawn[0].get_xlabel(), drawn[0].get_ylabel()) == (1, "workers", "epochs/s")
    decision = last_decision(world.history, "torch")
    assert decision is not None and story.job.speed is not None
    lines = {line.get_label(): line for line in drawn[0].lines}
    assert lines["fitted"].get_xdata().tolist() == [1, 2, 3, 4]
    assert list(lines["chosen"].get_xdata()) == [decision.chosen.workers]
    probed = {epoch.allocation.workers for epoch in decision.job.epochs if epoch.kind is EpochKind.PROBE}
    assert set(lines["probed"].get_xdata()) == probed
    refused = {one.allocation.workers for one in decision.choices()[1:]}
    shown = [lines[label].get_xdata() for label in lines if str(label).startswith("refused: ")]
    assert {workers for each in shown for workers in each} == refused
    assert len(plot([story], tmp_path, ["svg"])) == 6


def test_every_axis_says_what_it_measures(faulty: dict[str, Figure]) -> None:
    for name, figure in faulty.items():
        if name != "faulty":
            assert figure.axes[0].get_ylabel()
            assert figure.axes[0].get_xlabel() or figure.axes[1].get_xlabel(), name


def test_a_job_without_a_budget_says_so() -> None:
    world = one_job(budget={"unlimited": True})
    with mpl.rc_context(STYLE):
        made = figures(Story.of(world.job("digits"), world.history, world.now))
    assert "no budget" in legend(made["digits-money"])


def test_a_running_job_can_be_drawn_and_files_are_what_their_names_say(tmp_path) -> None:
    world = half_way()
    paths = plot([Story.of(world.job("digits"), world.history, world.now)], tmp_path, ["png", "svg"])
    assert len(paths) == 12
    for path in paths:
        start = path.read_bytes()[:8]
        assert start == b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else start.startswith(b"<?xml")


def test_jobs_that_met_are_drawn_together_and_others_are_not(tmp_path) -> None:
    world = two_jobs()
    stories = [Story.of(job, world.history, world.now) for job in world.reducer.jobs.values()]
    alone = Story.of(steady_job().job("steady"), steady_job().history, world.now)
    progress = replace(alone.job.progress, submitted_at=2e6)
    late = replace(alone, job=replace(alone.job, progress=progress), now=2e6 + 60, attempts=[])
    assert [path.name for path in plot_together([*stories, late], tmp_path, ["png"])] == ["jobs.png"]
    assert plot_together([stories[0], late], tmp_path) == []
    figure = together(stories)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["digits", "pictures", ""]
    assert {"digits", "pictures", "target"} == legend(figure, 2)


def many(count: int) -> list[Story]:
    world = World.of(nodes(8, 4.0))
    for number in range(count):
        world.submit(spec(f"job-{number}", maxEpochs=3))
    world.run()
    return [Story.of(job, world.history, world.now) for job in world.reducer.jobs.values()]


def test_no_job_is_left_out_of_the_figures_of_many(tmp_path: Path) -> None:
    stories = many(20)
    files = plot_together(stories, tmp_path, ["svg"])
    assert [path.name for path in files] == ["jobs.svg", "jobs.2.svg", "jobs.3.svg"]
    drawn = [re.findall(r">(job-\d+)<", path.read_text()) for path in files]
    assert [len(set(names)) for names in drawn] == [8, 8, 4]
    assert {name for names in drawn for name in names} == {story.job.name for story in stories}
    assert len({tuple(re.findall(r">time since the first epoch .*?<", path.read_text())) for path in files}) == 1


def test_a_comparison_of_many_jobs_draws_each_with_a_look_of_its_own() -> None:
    of = tuple(Progress(f"job-{n}", (0.1, 0.2), (1.0, 2.0), (0.5, 0.4 - n / 100)) for n in range(20))
    figure = comparison.draw(Comparison("loss", True, "USD", of, (), (), (), ()))
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {one.name for one in of}
    looks = {(str(line.get_color()), line.get_linestyle()) for line in figure.axes[0].get_lines()}
    assert len(looks) == 20


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_job_gives_the_same_file(kind: str) -> None:
    world = one_job()
    contents = []
    for _ in range(2):
        with mpl.rc_context(STYLE):
            made = figures(Story.of(world.job("digits"), world.history, world.now))
            contents.append(rendered(made["digits-money"], kind))
    assert contents[0] == contents[1]
