"""Names of policies: how they are spelled, and policies that packages bring."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach.core.policies.api.parameters import form, parsed, spelled
from coach.core.policies.tetris import TetrisPolicy
from coach.plugins import POLICIES, policy, reactive
from tests.core.policies.policy_examples import Job, cluster, decided


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


def test_every_name_makes_a_policy_for_events_too() -> None:
    for name in POLICIES:
        assert hasattr(reactive({"static": "static:2x1"}.get(name, name)), "react")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_name_makes_a_policy_that_can_be_asked_for_allocations(name: str) -> None:
    spec = {"static": "static:2x1", "coach": "coach:cheapest"}.get(name, name)
    assert hasattr(policy(spec), "allocate")
    assert policy(spec).name == spec


def _install(folder: Path, entry: str, code: str) -> None:
    """A package as an installer leaves it: a module and its metadata."""
    (folder / "queues.py").write_text(textwrap.dedent(code))
    metadata = folder / "queues-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: queues\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[coach.policies]\n{entry}\n")


def test_a_package_brings_its_own_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    _install(
        tmp_path,
        "newest-first = queues:NewestFirst",
        """
        from dataclasses import dataclass
        from coach.core.policies.api.base import Reason
        from coach.core.policies.sharing.progressive_filling import Filling, one_by_one

        @dataclass
        class NewestFirst:
            patience: int = 3
            cadence: float | None = None
            name = "newest-first"

            def allocate(self, jobs, cluster):
                filling = Filling(jobs, cluster)
                line = sorted(filling.shares, key=lambda share: -share.job.created)
                filling.fill(lambda filling: one_by_one(line, filling))
                return filling.decision(Reason.QUEUE, lambda share: self.patience, "s")
        """,
    )
    jobs = [Job("a"), Job("b", created=1.0)]
    assert decided(policy("newest-first"), jobs, cluster(8)) == {"a": "-", "b": "4x4"}
    assert policy("newest-first:patience=9").patience == 9  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="newest-first"):
        policy("oldest-first")


def test_a_package_s_mistake_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    _install(tmp_path, "none-at-all = queues:DECIDE", "DECIDE = 3\n")
    monkeypatch.delitem(__import__("sys").modules, "queues", raising=False)
    with pytest.raises(
        UserError, match=r"'none-at-all' of an installed package is 3; it must be a dataclass"
    ):
        policy("none-at-all")
