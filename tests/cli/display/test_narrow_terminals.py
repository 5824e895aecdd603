"""What commands print on narrow terminals, and into pipes: every number is whole or not there."""

from __future__ import annotations

import functools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest

from coach.cli.display.output import Format, console
from coach.cli.display.status_lines import Running, screen
from coach.cli.jobs.plan import _show_budgets
from coach.cli.main import invoke
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.base import Progress
from coach.report.budget_plan import BudgetPlan, BudgetRow
from coach.report.status import job_row
from coach_research.commands.experiment import _show
from coach_research.comparison import Comparison
from tests.cli.conftest import ROOT, keep
from tests.core.lifecycle.faulty_cluster import World, nodes, spec
from tests.report.recorded_jobs import BUDGET, faulty_job, half_way

pytestmark = pytest.mark.standard

WIDTHS = [40, 60, 80, 100]
JOBS = [f"digits-{number}" for number in range(12)]


@functools.cache
def twelve_jobs() -> World:
    world = World.of(nodes(8, 4.0))
    for name in JOBS:
        world.submit(spec(name, budget=BUDGET))
    world.run()
    return world


@pytest.fixture
def twelve(home: StateDirectory) -> None:
    keep(home, twelve_jobs())
    keep(home, faulty_job(), number=2)


def numbers(text: str) -> set[str]:
    """Every word with a digit in it; what joins two numbers parts words too, as narrow lines have it closer."""
    return {word.strip(",;()") for word in re.split(r"\s+|→|/", text) if re.search(r"\d", word)}


COMMANDS = [
    ("ps",),
    ("show", "digits-3"),
    ("show", "faulty"),
    ("compare", *JOBS),
    ("prune", "--all", "--dry-run"),
    ("experiment",),
    ("simulate", "--trace", "tests/data/traces/own.csv", "--nodes", "2x8x32x2", "--processes", "1", "--policy",
     "fifo,srtf,drf,tetris,optimus,coach,fitgpp,lrtp,kod2,round-robin,static:1,specon:interval=60"),
]  # fmt: skip


@pytest.mark.usefixtures("twelve")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_pipe_of_any_width_has_the_same_numbers(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert invoke(command) == 0
    whole = numbers(capsys.readouterr().out)
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        assert invoke(command) == 0
        found = numbers(capsys.readouterr().out)
        # Its own columns are all that it says of a number: from 100 columns on there is more to see.
        assert found <= whole | ({"100"} if command[0] == "show" else set()), width
        if command[0] in {"compare", "prune", "simulate", "experiment"}:
            assert found == whole, width


@pytest.mark.usefixtures("twelve")
@pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[-1]])
def test_compare_of_twelve_jobs_in_a_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    command = [sys.executable, "-m", "coach.cli.main", "compare", *JOBS]
    process = subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        shown += part
    os.close(master)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r", "")
    assert max(map(len, text.splitlines())) <= width
    monkeypatch.setenv("COLUMNS", "1000")
    assert invoke(["compare", *JOBS]) == 0
    assert numbers(text) == numbers(capsys.readouterr().out)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_an_experiment_gave_and_what_budgets_buy(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        Comparison(
            "fitgpp", "slowdown of jobs, 95th percentile, fitgpp", "", 1234.5, 987.65, 9.8, 901.2, 1310.7, 8, -0.19996,
            0.0079, 0.1, "read off a figure", False, "open", "", "judged", "table 2",
        )
    ]  # fmt: skip
    bought = BudgetRow(1.25, 16, 16, 20, 3725.0, 0.123456, 0.111111, 0.234567, 0.012345, None, None, None, "")
    plan = BudgetPlan("digits", "USD", "loss", 12, (bought,), 0.1, 0.1, 0.2, ((0.5, 0.012345),), ())
    texts = []
    for columns in (1000, width):
        monkeypatch.setenv("COLUMNS", str(columns))
        _show(rows, Format.TABLE)
        _show_budgets(console(), plan)
        texts.append(numbers(capsys.readouterr().out))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_live_display_cuts_no_number(width: int) -> None:
    world = half_way()
    rows = [job_row(job, world.now) for job in world.reducer.jobs.values()]
    running = {row.name: Running("epoch 9", Progress("", "training", 12_345, 67_890)) for row in rows}
    whole = numbers(screen(rows, running, "", (1000, 40)).plain)
    shown = screen(rows, running, "", (width, 40)).plain
    assert numbers(shown) <= whole
    assert max(map(len, shown.splitlines())) <= width


def test_columns_that_the_live_display_leaves_out_are_named() -> None:
    world = half_way()
    rows = [job_row(job, world.now) for job in world.reducer.jobs.values()]
    assert "not shown: ETA" in screen(rows, {}, "", (40, 40)).plain
    assert "not shown" not in screen(rows, {}, "", (100, 40)).plain
