"""Pollux's artifact: what is read of it, and one workload compared with its published run."""

from __future__ import annotations

from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach_research import scenario
from coach_research.commands import experiment
from coach_research.experiments.clusters import pollux

needs = pytest.mark.skipif(bool(pollux.missing()), reason=f"needs what is no part of Coach: {pollux.missing()}")


def test_where_the_artifact_is_missing_the_command_that_gets_it_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"git clone .*osdi21-artifact https://github\.com/petuum/adaptdl"):
        experiment.command(["pollux"], quick=True, folder=tmp_path)


@needs
def test_a_job_takes_as_long_as_its_epochs_need_steps() -> None:
    """ImageNet on 2 nodes of 4 GPUs: 90 epochs at a batch of 1,600, of which each GPU has 200 at once."""
    application = pollux.of("imagenet")
    seconds = 100.0 / pollux.Chosen((application,) * 2, 1600)(((0, 4, 0), (1, 4, 0)))
    assert seconds == pytest.approx(application.steps(1600) * application.step((4, 4), 200)[0])
    assert pollux.Chosen((application,) * 2, 1600)(((0, 8, 0),)) == pytest.approx(100.0 / seconds)


@needs
@pytest.mark.parametrize(("load", "workload", "published"), [(0.5, 1, 1450.9), (1, 6, 3469.7)])
def test_tiresias_ends_as_in_the_artifact(load: float, workload: int, published: float) -> None:
    parameters = {**scenario.load("pollux").parameters, "policies": ["tiresias"], "loads": [load]}
    found = pollux.replicate(parameters, workload)
    assert found[f"tiresias, load {load:g}: mean completion, s"] == pytest.approx(published, rel=0.02)
