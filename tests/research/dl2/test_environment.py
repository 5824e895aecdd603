"""The environment in Gymnasium's shape gives what the slots give that Coach trains with."""

from __future__ import annotations

import numpy as np
import pytest

from coach_research.dl2.environment import Environment
from coach_research.dl2.slots import Case
from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.scenario import load

GIVEN = {**load("dl2-baselines").parameters, "jobs": 12}


def test_an_episode_of_random_actions_does_each_job_once() -> None:
    made, rng = Environment(Case.of(GIVEN)), np.random.default_rng(1)
    features, info = made.reset(seed=3)
    assert features.shape[0] == made.case.window
    rewards, ended = 0.0, False
    while not ended:
        action = int(rng.choice(np.flatnonzero(info["mask"])))
        features, reward, ended, truncated, info = made.step(action)
        assert not truncated
        rewards += reward
    assert rewards == pytest.approx(12)
    with pytest.raises(ValueError, match="after the end"):
        made.step(0)


def test_void_alone_is_one_worker_and_one_server_for_all_as_in_the_simulator() -> None:
    made = Environment(Case.of(GIVEN))
    made.reset(seed=5)
    ended, info = False, {}
    while not ended:
        *_, ended, _, info = made.step(made.actions - 1)
    assert info["mean"] == pytest.approx(measured(GIVEN, 5, each_slot("static:1x1"))["mean completion, slots"])


def test_an_action_that_is_not_possible_is_refused() -> None:
    made = Environment(Case.of(GIVEN))
    with pytest.raises(ValueError, match="before reset"):
        made.step(0)
    _, info = made.reset()
    refused = int(np.flatnonzero(~info["mask"])[0])
    for action in (refused, -1, made.actions):
        with pytest.raises(ValueError, match="is not possible"):
            made.step(action)
