"""The teachers decide as the policies of their names do in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from coach_research.dl2.learner import Learner, Recipe
from coach_research.dl2.slots import Case, Slots
from coach_research.dl2.teacher import TEACHERS, actions, decisions
from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.scenario import load

pytestmark = pytest.mark.standard

#: The most is small, so that a slot has few inferences; all jobs are in the window.
GIVEN = {**load("dl2-baselines").parameters, "jobs": 30, "most": 5}


@pytest.mark.parametrize("name", list(TEACHERS))
@pytest.mark.parametrize("nodes", [500, 60])
def test_jobs_end_under_a_teacher_as_under_its_policy(name: str, nodes: int) -> None:
    given = {**GIVEN, "nodes": nodes}
    case = Case.of(given)
    trace = case.trace(np.random.default_rng([3, 0]))
    world = Slots(case, 1, iter([trace, trace]))
    while not world.means:
        if not world.act(actions(world, TEACHERS[name]))[0]:
            world.end(0)
    expected = measured(given, 3, each_slot(name))["mean completion, slots"]
    assert world.means[0] == pytest.approx(expected, rel=1e-6 if nodes == 500 else 0.02)


def test_examples_of_optimus_have_no_bundles_and_those_of_the_others_nothing_else() -> None:
    for name in TEACHERS:
        *_, chosen = decisions(Case.of(GIVEN), np.random.default_rng(1), teacher=name)
        steps = set((chosen[chosen < 3 * 40] % 3).tolist())
        assert steps == ({0, 1} if name == "optimus" else {2})


@pytest.mark.full
def test_a_softened_start_decides_as_before_and_ends_a_slot_as_often_as_is_said() -> None:
    case = Case.of(GIVEN)
    recipe = Recipe(teacher="drf", imitation_rate=1e-3, soften=10, void=0.01)
    learner = Learner(case, recipe, 1)
    learner.imitate(100)
    assert learner.actor["w2"] == pytest.approx(learner.imitated["w2"] / 10)
    assert not learner.actor["w3"].any()
    learner.actor["b3"] -= 100  # without void the order of the others is what it was
    learner.imitated["b3"] -= 1000
    tests = range(1, 3)
    assert learner.test(tests, learner.actor) == pytest.approx(learner.test(tests, learner.imitated))
