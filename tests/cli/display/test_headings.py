"""No heading of a table is cut, and no line is wider than the terminal, at 80 and at 120 columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Table

from coach.cli.display.output import Format, console
from coach.cli.display.status_lines import job_lines
from coach.cli.jobs.plan import _show as show_plan
from coach.cli.main import invoke
from coach.cli.simulate import _compare
from coach.handler.state.state_directory import StateDirectory
from coach.report.row_types import Plan, PlanRow
from coach.report.status import job_row
from coach_research.commands.experiment import _show
from coach_research.comparison import Comparison
from tests.cli.conftest import keep
from tests.report.recorded_jobs import faulty_job, half_way, two_jobs

pytestmark = [pytest.mark.usefixtures("width"), pytest.mark.standard]


@pytest.fixture(params=[80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


@pytest.fixture
def headings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The headings of every table that is printed."""
    found: list[str] = []
    render = Table.__rich_console__

    def noting(self: Table, *more: object) -> object:
        found.extend(str(column.header) for column in self.columns)
        return render(self, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Table, "__rich_console__", noting)
    yield found


def check(text: str, headings: list[str], width: int) -> None:
    heads = [line for line, rule in zip(text.splitlines(), text.splitlines()[1:], strict=False) if "───" in rule]
    for heading in headings:
        assert any(heading in head for head in heads), (heading, heads)
    assert max(len(line) for line in heads) <= width


@pytest.mark.parametrize("name", ["digits", "faulty"])
def test_show(
    home: StateDirectory, headings: list[str], width: int, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    keep(home, two_jobs())
    keep(home, faulty_job(), number=2)
    assert invoke(["show", name]) == 0
    assert {"OVERHEAD", "IDLE", "RESERVED"} <= set(headings)
    check(capsys.readouterr().out, headings, width)


def test_ps_as_a_table_and_as_lines(
    home: StateDirectory, headings: list[str], width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(home, two_jobs())
    keep(home, faulty_job(), number=2)
    assert invoke(["ps"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    spaced = head.replace("→", " → ").replace("/", " / ").split()
    assert spaced[:8] == ["NAME", "STATE", "EPOCH", "METRIC", "→", "TARGET", "W×S", "SPENT"]
    assert "ETA" in spaced


def test_the_lines_of_jobs_that_train(width: int) -> None:
    world = half_way()
    rows = [job_row(job, world.now) for job in world.reducer.jobs.values()]
    head = str(job_lines(rows, {}, width)[0])
    assert head.rsplit(maxsplit=1)[-1] == "ETA"
    assert "METRIC" in head


@pytest.mark.full
def test_estimators(headings: list[str], width: int, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = Path("tests/data/ps-speed/ps_speed.csv").read_text().splitlines()
    measured = tmp_path / "one-model.csv"
    measured.write_text("\n".join([lines[0], *(line for line in lines if "resnet-50" in line)]))
    assert invoke(["estimators", str(measured)]) == 0
    assert "OPTIMUS" in headings
    check(capsys.readouterr().out, headings, width)


def test_experiments(headings: list[str], width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["experiment"]) == 0
    check(capsys.readouterr().out, headings, width)


def test_what_an_experiment_gave(headings: list[str], width: int, capsys: pytest.CaptureFixture[str]) -> None:
    measure = "slowdown of jobs, 95th percentile, fitgpp"
    rows = [
        Comparison(
            name, measure, "", 1234.5, 987.65, 9.8, 901.2, 1310.7, 8, -0.19996, 0.0079, 0.1, "read off a figure",
            False, "open", "", role, "table 2",
        )
        for name in ("fitgpp-table-2", "kod2")
        for role in ("judged", "calibrated", "variant")
    ]  # fmt: skip
    _show(rows, Format.TABLE)
    check(capsys.readouterr().out, headings, width)


@pytest.mark.parametrize("known", [True, False])
def test_plan(headings: list[str], width: int, capsys: pytest.CaptureFixture[str], known: bool) -> None:
    spread = (3725.0, 4000.5, 5400.0) if known else (None, None, None)
    low, seconds, high = spread
    row = PlanRow(
        workers=16, servers=16, fits=False, measured=True, cost_per_hour=12.3456, hours_within_budget=1.5,
        seconds=seconds, seconds_low=low, seconds_high=high, cost=seconds and 0.012345, job_seconds=seconds,
        job_seconds_low=low, job_seconds_high=high, job_cost=seconds and 0.0123, job_cost_low=low and 0.0111,
        job_cost_high=high and 0.0145, within_budget=False,
    )  # fmt: skip
    plan = Plan(
        name="digits", epochs=20.0, epochs_low=3.0, epochs_high=60.0, epochs_known=known, prices="cloud",
        chance_of_running_out=0.05, epochs_provided_for=30,
        currency="USD", budget=1.0, known=(), unknown=(), probes=(), refusal="", rows=(row,), enough="",
    )  # fmt: skip
    show_plan(console(), plan)
    check(capsys.readouterr().out, headings, width)


def test_simulate_with_many_policies_and_long_names(
    headings: list[str], width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = dict.fromkeys(
        (
            "completion_mean",
            "completion_p50",
            "completion_p95",
            "waiting_mean",
            "makespan",
            "slowdown_mean",
            "cpu_used",
            "gpu_used",
            "money",
        ),
        0.123,
    )
    counts = dict.fromkeys(
        ("reached", "jobs", "resizes", "preemptions", "migrations", "jobs_better", "jobs_worse"), 12345
    )
    labels = [f"coach:mean-completion, default:deadlock_timeout={n}" for n in range(3)] + [
        "drf",
        "kod2",
        "static:2x2",
    ]
    _compare(console(), {label: measured | counts for label in labels})
    shown = capsys.readouterr().out
    assert {"coach:mean-completion, default:deadlock_timeout=2", "static:2x2"} <= set(headings)
    check(shown, headings, width)
