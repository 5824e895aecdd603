"""`coach budget`: budgets over jobs in a state folder without a service."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from coach.handler.state.state_directory import StateDirectory
from coach.report.row_types import AccountRow, SpendingRow
from tests.cli.conftest import keep
from tests.cli.test_commands import run, typed
from tests.core.lifecycle.faulty_cluster import World
from tests.core.lifecycle.test_accounts import job, world

pytestmark = pytest.mark.standard


def spent() -> World:
    """Two jobs of team-a and one of team-b, which is in team-a; they took until the next month."""
    one = world(0.004, "month")
    one.set_account("team-b", 0.003, "1h", "team-a")
    for name, account in (("first", "team-a"), ("second", "team-a"), ("third", "team-b")):
        one.submit(job(name, account))
    one.run()
    return one


def test_an_account_is_made_changed_and_listed(
    home: StateDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "budget", "list")[1].startswith("no account yet; make one with: coach budget set")
    code, out, _ = run(capsys, "budget", "set", "research", "500USD")
    assert code == 0 and "500 USD" in out
    code, out, _ = run(
        capsys, "budget", "set", "team-a", "50 usd/month", "--in", "research", "--timezone", "Asia/Tokyo"
    )
    assert code == 0 and "50 USD/month" in out and "00:00 Asia/Tokyo" in out
    assert run(capsys, "budget", "set", "team-a", "60USD/week", "--in", "research")[0] == 0
    rows = typed(list[AccountRow], json.loads(run(capsys, "budget", "list", "-o", "json")[1]))
    assert [(row.name, row.parent, row.amount, row.period, row.left) for row in rows] == [
        ("research", "", 500.0, "ever", 500.0),
        ("team-a", "research", 60.0, "week", 60.0),
    ]


def test_a_mistake_says_what_is_right(home: StateDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    for words, right in (
        (("set", "team-a", "fifty"), "such as 50USD/month"),
        (("set", "Team A", "50USD"), "lower-case letters"),
        (("set", "team-a", "50USD", "--in", "nobody"), "there is no account nobody"),
        (("show", "team-a"), "there is no account team-a; make it: coach budget set team-a 50USD/month"),
        (("report", "team-a"), "make it: coach budget set team-a 50USD/month"),
    ):
        code, out, err = run(capsys, "budget", *words)
        assert (code, out) == (2, "") and right in err


def test_the_report_sums_to_what_was_spent(home: StateDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    made = spent()
    keep(home, made)
    rows = typed(list[SpendingRow], json.loads(run(capsys, "budget", "report", "-o", "json")[1]))
    sums = {name: sum(row.spent for row in rows if row.job == name) for name in ("first", "second", "third")}
    assert sums == pytest.approx({name: made.job(name).ledger.spent / 1e9 for name in sums})
    assert {(row.account, row.since and row.since[:10]) for row in rows} >= {
        ("team-a", "1970-01-01"),
        ("team-a", "1970-02-01"),
    }
    table = list(csv.DictReader(io.StringIO(run(capsys, "budget", "report", "team-b", "-o", "csv")[1])))
    assert {row["job"] for row in table} == {"third"} and {row["account"] for row in table} == {"team-b"}
    assert "third" in run(capsys, "budget", "report")[1]


def test_an_account_is_shown_with_its_jobs_and_a_waiting_one_says_why(
    home: StateDirectory, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = world(0.02, "month")
    one.submit(job("first"))
    one.run(until=lambda: one.job("first").running is not None)
    one.submit(job("second"))
    keep(home, one)
    code, out, _ = run(capsys, "budget", "show", "team-a")
    assert code == 0 and "2, 1 waiting" in out
    assert "reserved by first" in " ".join(out.split())
    code, out, _ = run(capsys, "why", "second")
    assert "waits for money of its account" in out or "its handler ended" in out
    assert "/ team-a" in run(capsys, "ps")[1]
