"""Quantities in the spellings of the Kubernetes API."""

from __future__ import annotations

import pytest

from coach.core.spec.quantities import of_object


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4), ("500m", 0.5), ("100u", 1e-4), ("5n", 5e-9), ("129e6", 129e6), ("129E6", 129e6), ("1e-3", 1e-3),
        ("128974848000m", 128974848), ("123Mi", 123 * 2**20), ("1Ei", 2**60), ("2E", 2e18), ("2k", 2000), (".5", 0.5),
        ("1.", 1), ("+3", 3),
    ],
)  # fmt: skip
def test_every_spelling_of_the_api_is_read(text: str, number: float) -> None:
    assert of_object(text) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize("text", ["", "-1", "lots", "8GB", "1 Gi", "1e", "e6", "nan", "1e400", "1KI", "0x10"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        of_object(text)
