"""DL² as published: its state, its network's gradient, imitation of DRF, and a short training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coach_research.dl2 import published
from coach_research.dl2.learner import VALIDATION, play
from coach_research.dl2.published import (
    REPLAY,
    FlatForward,
    PublishedSlots,
    Replay,
    _explore,
    flat,
    learn,
)
from coach_research.dl2.slots import Case
from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.policies.dl2.flat import COLUMNS, FlatInference
from coach_research.policies.dl2.network import STEPS
from coach_research.scenario import load

pytestmark = pytest.mark.standard


def parameters(**changes: Any) -> dict[str, Any]:
    return {**load("dl2-baselines").parameters, "jobs": 20, **changes}


def world(**changes: Any) -> PublishedSlots:
    case = Case.of(parameters(**changes))
    trace = case.trace(np.random.default_rng([1, 0]))
    return PublishedSlots(case, 1, iter([trace, trace]))


def test_the_state_is_the_paper_s_six_rows() -> None:
    made = world()
    there = made.there[0]
    first = made.features[0, 0].tolist()
    assert first[0] == made.kind[0, 0] + 1
    assert first[1:3] == [0, 1]
    assert first[4:] == [1, 1]
    assert first[3] == pytest.approx(2 * 2 / (500 * 8)) or first[3] == pytest.approx(1 / (500 * 2))
    assert not made.features[0, ~there].any()
    made.act(np.array([1]))  # a server for the first job
    assert made.features[0, 0, 4:].tolist() == [1, 2]
    made.end(0)
    assert made.features[0, 0, 1] == 1
    assert 0 < made.features[0, 0, 2] <= 1


def test_the_gradient_is_that_of_the_outputs() -> None:
    rng = np.random.default_rng(1)
    weights = {name: array.astype(np.float64) for name, array in flat(5, 4, rng).items()}
    inputs, slope = rng.standard_normal((3, 5)), rng.standard_normal((3, 4))
    gradient = FlatForward(weights, inputs).backward(slope)
    for name, array in weights.items():
        for at in [tuple(rng.integers(side) for side in array.shape) for _ in range(5)]:
            before, values = array[at], []
            for change in (1e-5, -1e-5):
                array[at] = before + change
                values.append(float((FlatForward(weights, inputs).outputs * slope).sum()))
            array[at] = before
            assert gradient[name][at] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-3, abs=1e-4)


@pytest.mark.full
def test_after_imitation_jobs_end_as_under_drf_and_training_goes_on_from_there() -> None:
    given = parameters()
    case = Case.of(given)
    made = learn(case, 1, 32, 16, 2)
    assert len(made) == 3
    drf = np.mean(
        [measured(given, seed, each_slot("drf"))["mean completion, slots"] for seed in (VALIDATION, VALIDATION + 1)]
    )
    assert made[0][0] == pytest.approx(drf, rel=0.05)
    assert made[0][1]["w0"].shape == (240, 256)
    assert not np.array_equal(made[0][1]["w2"], made[-1][1]["w2"])
    again = play(case, made[-1][1], range(VALIDATION, VALIDATION + 2), PublishedSlots, FlatInference)
    assert again.mean() == pytest.approx(made[-1][0])


def test_its_file_decides_each_slot_in_the_simulator_as_in_training(tmp_path: Path) -> None:
    given = parameters(nodes=60)
    case = Case.of(given)
    weights = flat(COLUMNS * case.window, len(STEPS) * case.window + 1, np.random.default_rng(4))
    weights["w2"] *= 20
    path = tmp_path / "flat.npz"
    path.write_bytes(published.network(case, weights, {"seed": 4}).to_bytes())
    for seed in (5, 6):
        found = measured(given, seed, each_slot(f"dl2:{path}"))["mean completion, slots"]
        (trained,) = play(case, weights, range(seed, seed + 1), PublishedSlots, FlatInference)
        assert found == pytest.approx(trained, abs=1e-6)
        assert found != pytest.approx(measured(given, seed, each_slot("static:1x1"))["mean completion, slots"])


def test_a_job_with_far_more_servers_than_workers_gets_a_worker_now_and_then() -> None:
    made = world()
    made.counts[0, 0] = 1, 12
    possible, rng = made.possible(), np.random.default_rng(1)
    chosen = []
    for _ in range(200):
        actions = np.array([5])
        _explore(made, possible, actions, rng)
        chosen.append(int(actions[0]))
    assert set(chosen) == {0, 5}
    assert 5 < chosen.count(0) < 40


def test_the_replay_keeps_the_last_and_prefers_high_rewards() -> None:
    replay, rng = Replay(), np.random.default_rng(1)
    one = np.zeros(3, np.float32), np.zeros((1, 3), bool)
    replay.add([(*one, 0)] * REPLAY, 1.0)
    replay.add([(*one, 1)] * (REPLAY // 2), 9.0)
    assert len(replay.kept) == len(replay.rewards) == REPLAY
    _, _, actions, rewards = replay.draw(rng)
    assert actions.mean() > 0.75
    assert set(rewards.tolist()) == {1.0, 9.0}
