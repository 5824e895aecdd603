"""What pages say about the program, compared with the program."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from coach.cli.commands import COMMANDS, app
from coach.core.jobs.actions import Action
from coach.core.jobs.reasons import Reason, State
from coach.core.spec.job import TrainingJob
from coach.jobfiles.schema import branches, tree
from scripts.generate import job_file_page
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
NUMBERS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
#: Words of what Coach lacks that are too general to be an option or a field of that thing.
GENERAL = {"several", "machines", "more", "without", "whole", "models", "trials", "data", "search", "clouds"}


def fields(node: dict[str, Any]) -> set[str]:
    """The names of all fields below a schema's node, in lower case."""
    part, _ = branches(node)
    inner = part.get("properties", {}) if part is not None else {}
    return {name.lower() for name in inner} | {name for one in inner.values() for name in fields(one)}


def options() -> set[str]:
    """The names of all commands and options."""
    group: Any = typer.main.get_command(app)
    found = set(COMMANDS)
    for command in (group.get_command(None, name) for name in COMMANDS):
        found |= {name.lstrip("-") for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return found


LACKED = re.findall(r"What (\w+) has and Coach lacks: (.+)\.", (DOCS / "advanced/coming-from.md").read_text())


def test_the_page_says_of_each_of_four_what_coach_lacks() -> None:
    assert [other for other, _ in LACKED] == ["SkyPilot", "Kubeflow", "Tune", "Slurm"]


@pytest.mark.parametrize(("other", "lacked"), LACKED)
def test_what_coach_is_said_to_lack_is_neither_an_option_nor_a_field(other: str, lacked: str) -> None:
    words = {word for word in re.findall(r"[a-z]{4,}", lacked.lower())} - GENERAL
    known = options() | fields(tree())
    assert words, other
    assert not {word for word in words if word in known or word.removesuffix("s") in known}


def test_a_spot_field_would_be_noticed():
    assert "spot" in fields(tree()) and "deadline" in options()


def test_the_architecture_counts_the_orders():
    orders = {kind.__name__ for kind in Action.__subclasses__() if kind.__module__ == Action.__module__}
    assert f"and {NUMBERS[len(orders) - 10]} orders" in (DOCS / "project/architecture.md").read_text(encoding="utf-8")


def test_a_programs_usual_workers_are_those_of_the_page():
    spec = {"program": {"command": ["a"]}, "budget": {"unlimited": True}}
    job = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "a"}}

    def workers(**given: Any) -> tuple[int, int]:
        found = TrainingJob.from_json(job | {"spec": spec | given}).spec.workers
        return found.min, found.max

    assert workers() == (1, 1) and workers(workers={"min": 3}) == (3, 3)
    page = job_file_page.fields()
    assert "A program's default is 1 and 1, or both what `min` is." in page


def test_every_way_in_which_a_job_succeeds_is_exit_code_0():
    page = (DOCS / "reference/cli.md").read_text(encoding="utf-8")
    assert re.search(
        r"\| 0 \| .*at its target, or, without one, with its program, its limit or its budget used \|", page
    )
    assert {reason.value for reason in Reason if reason.state is State.SUCCEEDED} == {
        "TargetReached", "BudgetUsed", "LimitReached", "NoGainExpected", "ProgramEnded",
    }  # fmt: skip
