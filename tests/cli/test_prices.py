"""`coach prices`: prices of machines listed, searched and compared."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.cli.test_commands import run

pytestmark = pytest.mark.standard


@pytest.fixture(autouse=True)
def shipped(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COACH_CATALOGS", raising=False)


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    code, out, _ = run(capsys, "prices", *words, "-o", "json")
    assert code == 0
    return json.loads(out)


def test_a_gpu_below_a_price_is_found_the_cheapest_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "--gpu", "h100", "--below", "3")
    assert [row["each"] for row in found] == sorted(row["each"] for row in found) and found
    assert all(row["gpu"] == "H100" and row["price"] / row["gpus"] <= 3 for row in found)
    assert all(row["price"] == row["spot"] for row in rows(capsys, "--gpu", "H100", "--spot"))


def test_words_clouds_and_regions_choose(capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["gpu"] for row in rows(capsys, "l40s")} == {"L40S"}
    assert {row["cloud"] for row in rows(capsys, "--cloud", "lambda")} == {"lambda"}
    assert {row["region"] for row in rows(capsys, "--region", "eu-", "--all")} == {
        "eu-central-1",
        "eu-north1",
    }
    assert len(rows(capsys, "--all")) > len(rows(capsys))


def test_csv_has_the_same_rows_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    table = csv.DictReader(io.StringIO(run(capsys, "prices", "-o", "csv")[1]))
    assert [row["offer"] for row in table] == [row["offer"] for row in rows(capsys)]


def test_the_table_says_where_its_prices_are_from_and_how_old(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "prices", "--gpu", "H200")
    assert code == 0 and "nebius/gpu-h200-sxm_1gpu-16vcpu-200gb" in out
    assert "shipped with Coach, read 20" in out
    assert "no offer is like that" in run(capsys, "prices", "H900")[1]
    code, _, err = run(capsys, "prices", "--cloud", "moon")
    assert code == 2 and "no prices of a cloud 'moon'; there are aws" in err
