"""Every row of cases.md: jobs in, allocations out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coach.plugins import policy
from tests.core.policies.policy_examples import Epochs, Job, allocation, cluster, decided, server_speed

PAGE = Path(__file__).parents[3] / "tests/core/policies/cases.md"
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]
FIELDS = {"min": "minimum", "max": "maximum", "now": "current"}


def job(text: str, place: int) -> Job:
    """`a work=50 epochs=5 min=2x1`: the job a, `place` seconds younger than the first of its row."""
    name, *words = text.split()
    given = dict(word.split("=") for word in words)
    law = {key: float(given.pop(key, usual)) for key, usual in (("work", 100.0), ("traffic", 0.0))}
    fields: dict[str, Any] = {FIELDS[key]: allocation(given.pop(key)) for key in FIELDS if key in given}
    if "epochs" in given:
        fields["remaining_epochs"] = Epochs(*[float(given.pop("epochs"))] * 3)
    fields |= {key: (int if key == "priority" else float)(value) for key, value in given.items()}
    return Job(name, speed_of=server_speed(**law), **{"created": float(place)} | fields)


@pytest.mark.parametrize(("name", "nodes", "jobs", "answer", "why"), ROWS, ids=[f"{row[0]}: {row[2]}" for row in ROWS])
def test_a_row_of_the_page(name: str, nodes: str, jobs: str, answer: str, why: str) -> None:
    asked = [job(text, place) for place, text in enumerate(jobs.split(","))]
    found = decided(policy(name), asked, cluster(*map(float, nodes.split())))
    assert ", ".join(f"{each} {given}" for each, given in found.items()) == answer, why


def test_the_page_has_rows() -> None:
    assert len(ROWS) == len(re.findall(r"^\| `", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) >= 17
