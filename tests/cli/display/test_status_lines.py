"""What the live display shows, at the widths people have."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from coach.cli.display import summary, tables
from coach.cli.display.status_lines import Running, job_lines, screen
from coach.cli.display.whole_table import Screen
from coach.platforms.base import Progress
from coach.report.row_types import ForecastRow, JobRow
from coach.report.status import job_row
from tests.report.golden import assert_golden
from tests.report.recorded_jobs import half_way, two_jobs

HINT = "Ctrl-C stops at the end of the running epochs"


def row(name: str, state: str = "Training", **changes: object) -> JobRow:
    fields = {
        "reason": {"Training": "TrainingEpoch", "Probing": "ProbingSpeed", "Waiting": "WaitingCapacity"}.get(
            state, "TargetReached"
        ),
        "message": "",
        "epoch": 7,
        "framework": "mxnet",
        "metric": "loss",
        "value": 0.21312,
        "best": 0.2101,
        "loss": 0.21312,
        "accuracy": 0.9312,
        "target": 0.2,
        "consecutive_hits": 0,
        "epochs_in_a_row": 3,
        "best_loss": 0.2101,
        "best_accuracy": 0.9322,
        "workers": 2,
        "servers": 1,
        "spent": 0.0021,
        "reserved": 0.001,
        "budget": 0.01,
        "account": None,
        "currency": "USD",
        "eta": 80.0,
        "eta_low": 50.0,
        "eta_high": 130.0,
        "seconds": 93.0,
        "training_seconds": 81.0,
        "priority": 0,
        "submitted_at": None,
        "started_at": None,
        "ended_at": None,
    }
    return JobRow(name=name, state=state, **{**fields, **changes})


def epoch_8(samples: int, total: int) -> Running:
    return Running("epoch 8", Progress("", "training", samples, total))


ROWS = [
    row("lenet-digits"),
    row("resnet-on-cifar-with-a-long-name", "Probing", budget=None, eta=None, eta_low=None, eta_high=None),
    row(
        "waits",
        "Waiting",
        message="needs 2 workers x 1 cpu, best partial fit 1, blocked by job lenet-digits",
        epoch=0,
        loss=None,
        value=None,
        workers=None,
        servers=None,
        eta=None,
        spent=0.0,
    ),
    row("done", "Succeeded", eta=None),
]
RUNNING = {
    "lenet-digits": epoch_8(4480, 8000),
    "resnet-on-cifar-with-a-long-name": Running("mini-epoch 8", Progress("", "evaluating", 960, 960)),
}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_display_at_common_widths(width: int) -> None:
    assert_golden(f"screen-{width}.txt", screen(ROWS, RUNNING, HINT, (width, 24)).plain)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("height", [4, 6, 8, 12, 24, 50])
def test_the_display_never_leaves_the_terminal(width: int, height: int) -> None:
    rows = [replace(row, name=f"{row.name}-{i}") for i in range(5) for row in ROWS]
    lines = screen(rows, RUNNING, HINT, (width, height)).plain.split("\n")
    assert len(lines) < height
    assert max(map(cell_len, lines)) <= width


def test_jobs_that_do_something_are_shown_first_where_there_is_little_room() -> None:
    many = [row(f"done-{i}", "Succeeded", eta=None) for i in range(30)] + [row("works")]
    text = screen(many, {}, HINT, (80, 12)).plain
    assert "works" in text
    assert "and 24 more jobs: coach ps" in text


def test_nothing_wide_moves_when_a_number_grows() -> None:
    short = screen(ROWS, {"lenet-digits": epoch_8(5, 8000)}, HINT, (100, 24)).plain
    long = screen(ROWS, {"lenet-digits": epoch_8(7999, 8000)}, HINT, (100, 24)).plain
    assert [line.find("/ 8,000") for line in short.split("\n")] == [line.find("/ 8,000") for line in long.split("\n")]


def test_a_full_bar_is_full_and_an_empty_one_empty() -> None:
    def bar(samples: int) -> str:
        text = screen([ROWS[0]], {"lenet-digits": epoch_8(samples, 100)}, "", (120, 24))
        return "".join(c for c in text.plain if c in "━─")

    assert set(bar(0)) == {"─"}
    assert set(bar(100)) == set(bar(120)) == {"━"}
    assert bar(50).count("━") == bar(50).count("─")


def test_a_job_that_says_why_it_failed_says_so_in_ps() -> None:
    failed = row("broken", "Failed", reason="ModelInvalid", message="models/x.py: no net()", eta=None)
    assert "no net()" in "\n".join(line.plain for line in job_lines([failed], {}, 80, ended=True))
    assert "no net()" not in "\n".join(line.plain for line in job_lines([failed], {}, 80))


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_the_summary_at_common_widths(width: int) -> None:
    console = Screen(width=width, color_system=None)
    with console.capture() as capture:
        console.print(summary.summary([ROWS[0], ROWS[3]], width))
        console.print(summary.summary([row(f"job-{i}") for i in range(5)], width))
    assert_golden(f"summary-{width}.txt", capture.get())


@pytest.mark.parametrize(("jobs", "shown"), [(1, 1), (3, 3), (4, 0)])
def test_the_end_of_a_run_compares_what_was_predicted_of_few_jobs_with_what_they_took(jobs: int, shown: int) -> None:
    rows = [row(f"job-{i}", "Succeeded", eta=None) for i in range(jobs)]
    values = (80.0, 61.0, 130.0, 0.0021, 0.0012, 0.0042)
    forecasts = {
        one.name: [
            ForecastRow(one.name, 0.1, 1, *[None] * 6, 93.0, 0.0031),
            ForecastRow(one.name, 0.5, 7, *values, 93.0, 0.0031),
        ]
        for one in rows
    }
    console = Screen(width=80, color_system=None)
    with console.capture() as capture:
        summary.ending(console, rows, forecasts)
    lines = [line.split() for line in capture.get().splitlines()]
    assert lines.count(["10", "%", "too", "early", "-"]) == shown
    assert lines.count(["50", "%", "1m20s", "(1m01s-2m10s)", "0.0021", "(0.0012-0.0042)"]) == shown
    assert lines.count(["real", "1m33s", "0.0031"]) == shown


def test_the_table_of_ps() -> None:
    console = Screen(width=120, color_system=None)
    with console.capture() as capture:
        console.print(tables.jobs_table(ROWS))
    assert_golden("ps.txt", capture.get())


def test_rows_of_simulated_jobs_can_be_shown_too() -> None:
    for world in (half_way(2), two_jobs()):
        rows = [job_row(job, world.now) for job in world.reducer.jobs.values()]
        lines = screen(rows, {}, HINT, (80, 24)).plain.split("\n")
        assert lines[0].startswith("NAME")
        assert sum("digits" in line for line in lines) == 1


def test_a_target_that_looks_out_of_reach_is_named_where_a_job_trains() -> None:
    assert tables.reason(row("a", message="with 1 worker")) == "trains"
    doubt = "its target looks out of reach: coach why a"
    assert tables.reason(row("a", message=f"with 1 worker; {doubt}")) == doubt


@pytest.mark.parametrize(("epochs", "said"), [(2, "too early"), (3, "-")])
def test_before_the_third_epoch_a_job_that_trains_is_too_young_for_a_time(epochs: int, said: str) -> None:
    assert tables.eta(row("a", epoch=epochs, eta=None)) == said


def test_the_table_and_the_lines_have_the_same_columns() -> None:
    rows = [row("a")]
    of_table = [str(column.header) for column in tables.jobs_table(rows).columns]
    assert of_table == [*tables.job_columns(rows), "REASON"]
    assert all(head in job_lines(rows, {}, 200)[0].plain for head in tables.job_columns(rows))
