"""What is read of each line of corpus.txt, to which anybody may add one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from coach.core.spec.program import at_most_one
from coach.platforms.program_metrics.base import Wanted
from coach.platforms.program_metrics.collector import Lines
from coach.platforms.program_metrics.reader import Reader
from coach.platforms.program_metrics.text import in_percent

CORPUS = Path(__file__).with_name("corpus.txt")
ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\e": "\x1b"}


def rows() -> list[tuple[str, str, str]]:
    """Target, value and text of each row."""
    found = []
    for row in CORPUS.read_text(encoding="utf-8").splitlines():
        if row and not row.startswith("# "):
            target, value, text = row.split(" :: ", 2)
            for written, meant in ESCAPES.items():
                text = text.replace(written, meant)
            found.append((target, value, text))
    return found


def read(target: str, text: str) -> float | None:
    """The metric's value in the last report of a text."""
    bounded = at_most_one(target)
    reader, lines = Reader(Wanted(target, bounded=bounded, percent=in_percent(target) and not bounded)), Lines()
    found = [one for piece in (text.encode(), b"") for line in lines.more(piece) for one in reader.line(line)]
    return next((one.values[target] for one in reversed(found) if target in one.values), None)


@pytest.mark.parametrize(("target", "value", "text"), rows())
def test_what_programs_print_is_read_as_it_is_meant(target: str, value: str, text: str) -> None:
    found = read(target, text)
    if value == "none" or found is None:
        assert (value, found) == ("none", None)
    else:
        assert found == pytest.approx(float(value), nan_ok=True) or (found == math.inf and value == "inf")
