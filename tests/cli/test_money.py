"""`coach budget` in a state folder without a service, and `coach prices`."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from pathlib import Path

import pytest

from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.report.row_types import AccountRow, SpendingRow
from tests.cli.conftest import keep
from tests.cli.test_commands import run, typed
from tests.core.lifecycle.accounts.test_accounts import job, world
from tests.core.lifecycle.faulty_cluster import World

pytestmark = pytest.mark.standard


def spent() -> World:
    """Two jobs of team-a and one of team-b, which is in team-a; they took until the next month."""
    one = world(0.004, "month")
    one.set_account("team-b", 0.003, "1h", "team-a")
    for name, account in (("first", "team-a"), ("second", "team-a"), ("third", "team-b")):
        one.submit(job(name, account))
    one.run()
    return one


def test_an_account_is_made_changed_and_listed(home: StateDirectory, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_report_sums_to_what_was_spent(home: StateDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    made = spent()
    keep(home, made)
    rows = typed(list[SpendingRow], json.loads(run(capsys, "budget", "report", "-o", "json")[1]))
    sums = {name: sum(row.spent for row in rows if row.job == name) for name in ("first", "second", "third")}
    assert sums == pytest.approx({name: made.job(name).money.ledger.spent / 1e9 for name in sums})
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
    one.run(until=lambda: one.job("first").attempts.running is not None)
    one.submit(job("second"))
    with contextlib.closing(Journal.write(home.journal(1))) as journal:  # as if its handler went on
        journal.append(one.history)
        code, out, _ = run(capsys, "budget", "show", "team-a")
        assert code == 0 and "2, 1 waiting" in out
        assert "reserved by first" in " ".join(out.split())
        code, out, _ = run(capsys, "why", "second")
        assert "waits for money of its account" in out
        assert "/ team-a" in run(capsys, "ps")[1]


# -- prices -----------------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COACH_CATALOGS", raising=False)


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    code, out, _ = run(capsys, "prices", *words, "-o", "json")
    assert code == 0
    return json.loads(out)


@pytest.mark.usefixtures("shipped")
def test_a_gpu_below_a_price_is_found_the_cheapest_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "--gpu", "h100", "--below", "3")
    assert [row["each"] for row in found] == sorted(row["each"] for row in found) and found
    assert all(row["gpu"] == "H100" and row["price"] / row["gpus"] <= 3 for row in found)
    assert all(row["price"] == row["spot"] for row in rows(capsys, "--gpu", "H100", "--spot"))


@pytest.mark.usefixtures("shipped")
def test_words_clouds_and_regions_choose(capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["gpu"] for row in rows(capsys, "l40s")} == {"L40S"}
    assert {row["cloud"] for row in rows(capsys, "--cloud", "lambda")} == {"lambda"}
    assert {row["region"] for row in rows(capsys, "--region", "eu-", "--all")} == {
        "eu-central-1",
        "eu-north1",
    }
    assert len(rows(capsys, "--all")) > len(rows(capsys))


@pytest.mark.usefixtures("shipped")
def test_csv_has_the_same_rows_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    table = csv.DictReader(io.StringIO(run(capsys, "prices", "-o", "csv")[1]))
    assert [row["offer"] for row in table] == [row["offer"] for row in rows(capsys)]


@pytest.mark.usefixtures("shipped")
def test_the_table_says_where_its_prices_are_from_and_how_old(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "prices", "--gpu", "H200")
    assert code == 0 and "nebius/gpu-h200-sxm_1gpu-16vcpu-200gb" in out
    assert "shipped with Coach, read 20" in out
    assert "no offer is like that" in run(capsys, "prices", "H900")[1]


@pytest.mark.usefixtures("shipped")
def test_currencies_are_converted_by_the_users_rate_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (usd,) = rows(capsys, "h200", "1gpu")
    (eur,) = rows(capsys, "h200", "1gpu", "--currency", "EUR", "--rate", "EUR=1.25USD")
    assert eur["currency"] == "EUR" and eur["hour"] == pytest.approx(usd["hour"] / 1.25)
    assert rows(capsys, "h200", "1gpu", "--currency", "eur", "--rate", "USD=0.8EUR") == [eur]
    file = tmp_path / "own/ours/vms.csv"
    file.parent.mkdir(parents=True)
    file.write_text("InstanceType,vCPUs,MemoryGiB,Price,Currency\nnode,16,64,0.80,EUR\n")
    monkeypatch.setenv("COACH_CATALOGS", str(tmp_path / "own"))
    assert "no rate between EUR and" in run(capsys, "prices")[2] + run(capsys, "prices", "--currency", "USD")[2]
    assert [row["currency"] for row in rows(capsys, "--cloud", "ours")] == ["EUR"]
    both = rows(capsys, "--currency", "USD", "--rate", "EUR=1.25USD", "--sort", "name", "--all")
    assert [row["offer"] for row in both] == sorted(row["offer"] for row in both)
    assert next(row["hour"] for row in both if row["cloud"] == "ours") == pytest.approx(1.0)


@pytest.mark.usefixtures("shipped")
def test_the_order_of_rows_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    prices = [row["price"] for row in rows(capsys, "--sort", "price")]
    assert prices == sorted(prices)
    sizes = [(row["gpus"], row["cpu"]) for row in rows(capsys, "--sort", "size")]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.usefixtures("shipped")
def test_old_prices_are_warned_of_where_no_table_says_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own/ours/vms.csv"
    file.parent.mkdir(parents=True)
    file.write_text("InstanceType,vCPUs,MemoryGiB,Price\nnode,16,64,0.80\n")
    os.utime(file, (1.7e9, 1.7e9))
    monkeypatch.setenv("COACH_CATALOGS", str(tmp_path / "own"))
    code, out, err = run(capsys, "prices", "--cloud", "ours", "-o", "json", "--max-age", "30")
    assert code == 0 and json.loads(out)
    assert "read 2023-11-14; older than 30 days, so look them up again" in err
    assert "older" not in run(capsys, "prices", "-o", "json", "--max-age", "100000")[2]


def test_what_clouds_take_for_functions_has_its_source_and_date(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "--functions")
    assert [row["offer"] for row in found] == ["aws/lambda", "azure/functions", "gcp/functions"]
    for row in found:
        assert str(row["source"]).startswith("https://") and len(str(row["date"])) == 10
