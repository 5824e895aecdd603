"""Names of policies: how they are spelled, and policies that packages bring."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from coach import plugins
from coach.core.errors import UserError
from coach.core.policies import Policy
from coach.core.policies.api.parameters import form, parsed, spelled
from coach.plugins import names, policy
from coach_research.policies.tetris import TetrisPolicy


@pytest.mark.parametrize("spec", ["tetris:weight=2", "drf:cadence=1200", "optimus:cadence=0.5"])
def test_parameters_are_part_of_the_name(spec: str) -> None:
    assert policy(spec).name == spec


def test_defaults_are_not_spelled_and_all_parameters_are_listed() -> None:
    assert policy("tetris:weight=1.0,cadence=60").name == "tetris:cadence=60"
    assert form("tetris", TetrisPolicy) == "tetris or tetris:weight=1,cadence=none"
    assert spelled("t", TetrisPolicy(weight=0.5, cadence=3.0)) == "t:weight=0.5,cadence=3"


@pytest.mark.parametrize(
    "argument", ["weight", "weight=", "weight=x", "weight=-1", "weight=nan", "w=1", "weight=1,weight=2", ","]
)
def test_what_is_no_parameter_or_no_value_is_refused(argument: str) -> None:
    assert parsed(TetrisPolicy, argument) is None
    with pytest.raises(UserError, match="tetris or tetris:weight=1,cadence=none"):
        policy(f"tetris:{argument}")


@pytest.mark.parametrize("name", sorted(names()))
def test_every_name_makes_a_policy_that_answers_both_drivers_and_has_that_name(name: str) -> None:
    spec = {"static": "static:2x1", "coach": "coach:cheapest"}.get(name, name)
    assert isinstance(policy(spec), Policy)
    assert policy(spec).name == spec


def _install(folder: Path, entry: str, code: str) -> None:
    """A package as an installer leaves it: a module and its metadata."""
    (folder / "queues.py").write_text(textwrap.dedent(code))
    metadata = folder / "queues-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: queues\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[coach.policies]\n{entry}\n")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "DECIDE = 3",
            r"is 3; it must be a dataclass and a Policy of coach",
        ),
        (
            "class DECIDE:\n    def allocate(self, jobs, cluster): ...",
            "it must be a dataclass and a Policy",
        ),
        (
            "from coach.core.policies.api.base import Reason",
            r"cannot be imported \(No module named 'coach.core.policies.api.base'\); what policies need is in coach",
        ),
    ],
)
def test_what_a_package_has_to_change_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    _install(tmp_path, "none-at-all = queues:DECIDE", code)
    monkeypatch.delitem(__import__("sys").modules, "queues", raising=False)
    with pytest.raises(UserError, match=words) as refused:
        policy("none-at-all")
    assert "docs/advanced/policies.md" in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (lambda: plugins.placement("default"), "--placement"),
        (lambda: plugins.extension("trace-simulation", "--trace"), "--trace"),
    ],
)
def test_what_needs_the_research_package_says_so(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[], object], options: str
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: [])
    with pytest.raises(UserError) as refused:
        asked()
    assert str(refused.value) == (
        f"{options}: this is in the research package, nothing was started; pip install ./research (in a clone of Coach)"
    )
    assert plugins.placement("gang") is None


def test_an_installed_policy_of_another_does_not_turn_these_tests_red(tmp_path: Path) -> None:
    """Not even a broken one: without the guard of `conftest.py` its name is a case of a test above, which fails."""
    _install(tmp_path, "queue = queues:DECIDE", "DECIDE = 3")
    where = {**os.environ, "PYTHONPATH": str(tmp_path)}
    seen = [sys.executable, "-c", "from coach import plugins; print(plugins.names())"]
    assert "queue'" in subprocess.run(seen, env=where, capture_output=True, text=True, check=True).stdout
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "every_name"]
    done = subprocess.run(
        tests, env=where, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
