"""This machine's own price: what its owner writes is kept among the user's defaults, and nothing else there changes."""

from pathlib import Path

import pytest
import yaml

from coach.core.cluster import Resources
from coach.core.errors import UserError
from coach.core.spec.resources import InlinePrices
from coach.jobfiles.own_prices import keep, prices_of

MACHINE = Resources(16.0, 64.0, 4.0)


@pytest.mark.parametrize(
    ("texts", "gang", "hour"),
    [
        (["0.40USD/gpuh"], Resources(4.0, 8.0, 2.0), 0.80),
        (["0.40USD/gpuh", "0.02USD/coreh", "0.002USD/gibh"], Resources(4.0, 8.0, 2.0), 0.896),
        (["0.40usd/GPUh", " 0.02 USD / coreh"], Resources(4.0, 8.0, 2.0), 0.88),
        (["1.20USD/h"], Resources(4.0, 8.0, 2.0), 0.60),  # half of the machine's GPUs
        (["1.20USD/h"], Resources(16.0, 8.0, 1.0), 1.20),
    ],
)
def test_an_hour_costs_what_its_owner_says(texts: list[str], gang: Resources, hour: float) -> None:
    book = InlinePrices.model_validate(prices_of(texts, MACHINE)).book()
    assert book.currency == "USD" and book.rate(gang) * 3600 == pytest.approx(hour)


@pytest.mark.parametrize(
    "texts", [[], ["0.40USD"], ["0.40/gpuh"], ["1USD/gpuh", "2USD/gpuh"], ["1USD/gpuh", "1EUR/h"], ["1gpuh/h"]]
)
def test_what_is_no_price_is_an_error_with_one_that_is(texts: list[str]) -> None:
    with pytest.raises(UserError, match=r"0\.40USD/gpuh"):
        prices_of(texts, MACHINE)


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ("", {}),
        ("# mine\nbudget: {currency: EUR}", {"budget": {"currency": "EUR"}}),
        ("prices: flat # for now\nseed: 3\n", {"seed": 3}),
        ("seed: 3\nprices:\n  name: old\n  currency: EUR\n# the end\nbatchSize: 4\n", {"seed": 3, "batchSize": 4}),
    ],
)
def test_it_takes_the_place_of_earlier_prices_and_the_rest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, left: dict[str, object]
) -> None:
    file = tmp_path / "config" / "defaults.yaml"
    monkeypatch.setenv("COACH_DEFAULTS", str(file))
    if before:
        file.parent.mkdir()
        file.write_text(before)
    prices = prices_of(["0.40USD/gpuh"], MACHINE)
    assert keep(prices) == file
    assert yaml.safe_load(file.read_text()) == left | {"prices": prices}
    assert all(line in file.read_text() for line in before.splitlines() if line.startswith("#"))
    keep("flat")
    assert yaml.safe_load(file.read_text()) == left | {"prices": "flat"}


def test_what_is_no_file_of_defaults_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COACH_DEFAULTS", "/dev/null")
    with pytest.raises(UserError, match="not a file"):
        keep("flat")
    file = tmp_path / "defaults.yaml"
    monkeypatch.setenv("COACH_DEFAULTS", str(file))
    file.write_text("- a list\n")
    with pytest.raises(UserError, match="not a mapping"):
        keep("flat")
    assert file.read_text() == "- a list\n"
