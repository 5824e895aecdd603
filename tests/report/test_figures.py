"""Figures show what they promise, and the same job gives the same file."""

from dataclasses import replace

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from coach.report.figures import STYLE, Story, figures, plot, rendered
from coach.report.together import plot_together, together
from tests.report.past import faulty_job, half_way, one_job, steady_job, two_jobs

pytestmark = pytest.mark.standard


@pytest.fixture(scope="module")
def faulty() -> dict[str, Figure]:
    world = faulty_job()
    with mpl.rc_context(STYLE):
        return figures(Story.of(world.job("faulty"), world.history, world.now))


def legend(figure: Figure, axes: int = 0) -> set[str]:
    drawn = figure.axes[axes].get_legend()
    assert drawn is not None
    return {text.get_text() for text in drawn.get_texts()}


def test_each_job_has_four_figures_and_a_page(faulty: dict[str, Figure]) -> None:
    assert list(faulty) == ["faulty", "faulty-curve", "faulty-allocation", "faulty-money", "faulty-speed"]


def test_the_curve_has_its_target_and_the_fit(faulty: dict[str, Figure]) -> None:
    assert {"epoch", "mini-epoch", "target 0.15", "fitted", "80 % interval"} == legend(faulty["faulty-curve"])
    assert {"epoch", "mini-epoch"} == legend(faulty["faulty-curve"], 1)


def test_the_allocation_marks_probes_and_attempts_that_did_not_count(faulty: dict[str, Figure]) -> None:
    assert {"workers", "servers", "probe", "did not count"} == legend(faulty["faulty-allocation"])


def test_the_money_has_its_reservations_and_its_budget(faulty: dict[str, Figure]) -> None:
    assert {"reserved", "spent", "budget 0.01"} == legend(faulty["faulty-money"])


def test_the_surface_has_its_measured_points_and_the_path(faulty: dict[str, Figure]) -> None:
    assert {"measured", "last", "path"} == legend(faulty["faulty-speed"])


def test_every_axis_says_what_it_measures(faulty: dict[str, Figure]) -> None:
    for name, figure in faulty.items():
        if name != "faulty":
            assert figure.axes[0].get_ylabel()
            assert figure.axes[0].get_xlabel() or figure.axes[1].get_xlabel(), name


def test_a_job_without_a_budget_says_so() -> None:
    world = one_job(budget="none")
    with mpl.rc_context(STYLE):
        made = figures(Story.of(world.job("digits"), world.history, world.now))
    assert "no budget" in legend(made["digits-money"])


def test_a_running_job_can_be_drawn_and_files_are_what_their_names_say(tmp_path) -> None:
    world = half_way()
    paths = plot([Story.of(world.job("digits"), world.history, world.now)], tmp_path, ["png", "svg"])
    assert len(paths) == 10
    for path in paths:
        start = path.read_bytes()[:8]
        assert start == b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else start.startswith(b"<?xml")


def test_jobs_that_met_are_drawn_together_and_others_are_not(tmp_path) -> None:
    world = two_jobs()
    stories = [Story.of(job, world.history, world.now) for job in world.reducer.jobs.values()]
    alone = Story.of(steady_job().job("steady"), steady_job().history, world.now)
    late = replace(alone, job=replace(alone.job, submitted_at=2e6), now=2e6 + 60, attempts=[])
    assert [path.name for path in plot_together([*stories, late], tmp_path, ["png"])] == ["jobs.png"]
    assert plot_together([stories[0], late], tmp_path) == []
    figure = together(stories)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["digits", "pictures", ""]
    assert {"digits", "pictures", "target"} == legend(figure, 2)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_job_gives_the_same_file(kind: str) -> None:
    world = one_job()
    contents = []
    for _ in range(2):
        with mpl.rc_context(STYLE):
            made = figures(Story.of(world.job("digits"), world.history, world.now))
            contents.append(rendered(made["digits-money"], kind))
    assert contents[0] == contents[1]
