"""The network's gradient, imitation of DRF, a short training, and going on after a stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coach.core.errors import UserError
from coach.plugins import policy
from coach_research.dl2 import training
from coach_research.dl2.federated import Federation
from coach_research.dl2.gradients import Forward
from coach_research.dl2.learner import VALIDATION, Learner, Recipe, imitation_slope, play
from coach_research.dl2.slots import Case
from coach_research.experiments import dl2_baselines
from coach_research.policies.dl2.network import Inference, Network, fresh
from coach_research.scenario import load

pytestmark = pytest.mark.standard

SMALL = Recipe(batches=12, copies=16, slots=60, kept=1500, minibatch=256, warm_up=2, phases=8, validate=4,
               validation_traces=3)  # fmt: skip


def case(**changes: Any) -> Case:
    return Case.of({**load("dl2-baselines").parameters, "jobs": 30, **changes})


def test_the_gradient_is_that_of_the_outputs() -> None:
    rng = np.random.default_rng(1)
    weights = {name: array.astype(np.float64) for name, array in fresh(2, 4, 3, rng).items()}
    features, there = rng.standard_normal((3, 5, 5)), (rng.random((3, 5, 1)) < 0.7).astype(float)
    outputs, void = rng.standard_normal((3, 5, 3)), rng.standard_normal(3)

    def value() -> float:
        found = Forward(weights, features, there)
        return float((found.outputs * outputs).sum() + (found.void * void).sum())

    gradient = Forward(weights, features, there).backward(outputs, void)
    for name, array in weights.items():
        for at in np.ndindex(array.shape):
            before = array[at]
            array[at] = before + 1e-6
            up = value()
            array[at] = before - 1e-6
            down = value()
            array[at] = before
            assert gradient[name][at] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-5), (name, at)


def test_one_job_looked_at_again_gives_the_scores_of_all_looked_at() -> None:
    rng = np.random.default_rng(2)
    weights = fresh(2, 8, 3, rng)
    features = rng.random((2, 6, 5)).astype(np.float32)
    there = np.array([[True] * 6, [True] * 4 + [False] * 2])
    inference = Inference(weights, 2, 6)
    for state in (0, 1):
        inference.start(state, features[state], there[state])
    features[[0, 1], [5, 2]] += 0.5
    inference.change(np.array([0, 1]), np.array([5, 2]), features[[0, 1], [5, 2]])
    outputs, void = inference.scores()
    anew = Forward(weights, features, there[:, :, None].astype(np.float32))
    assert np.where(there[:, :, None], outputs, 0) == pytest.approx(
        np.where(there[:, :, None], anew.outputs, 0), abs=1e-5
    )
    assert void == pytest.approx(anew.void, abs=1e-5)


@pytest.mark.full
def test_a_network_that_imitates_drf_completes_jobs_as_drf_does_in_the_simulator(
    tmp_path: Path,
) -> None:
    """Within 5 %: issue's first slice."""
    learner = Learner(case(jobs=60), Recipe(), 1)
    assert learner.imitate() < 0.5 * np.log(41)
    learner.best_weights = learner.actor
    path = tmp_path / "drf.npz"
    path.write_bytes(learner.network({}).to_bytes())
    given = {**load("dl2-baselines").parameters, "jobs": 60, "policies": {"DRF": "drf", "DL²": f"dl2:{path}"}}
    for seed in (1, 2):
        found = dl2_baselines.replicate(given, seed)
        assert found["DL² / DRF"] == pytest.approx(1, abs=0.05)


@pytest.mark.full
def test_a_short_training_is_better_than_no_training() -> None:
    small = case()
    learner = Learner(small, SMALL, 1)
    before = play(small, learner.actor, range(VALIDATION, VALIDATION + 3)).mean()
    while not learner.ended:
        learner.step()
    after = play(small, learner.best_weights, range(VALIDATION, VALIDATION + 3)).mean()
    assert after == pytest.approx(learner.best)
    assert after < 0.8 * before
    assert [row[0] for row in learner.curve] == [4, 8, 12]


@pytest.mark.parametrize(
    "changes",
    [
        {"critic": "unscaled", "bundles": False},
        {"critic": "sum", "bundles": False},
        pytest.param({"critic": "none", "bundles": False}, marks=pytest.mark.full),
        pytest.param({"reward": "own"}, marks=pytest.mark.full),
    ],
)
def test_the_ablations_run(changes: dict[str, Any]) -> None:
    learner = Learner(case(), Recipe(**{**vars(SMALL), "batches": 3, **changes}), 1)
    while not learner.ended:
        learner.step()
    assert np.isfinite(learner.best)
    assert all(np.isfinite(array).all() for array in learner.actor.values())


@pytest.mark.full
def test_a_training_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CHECKPOINT", 2)
    recipe = Recipe(**{**vars(SMALL), "batches": 5})
    whole, parts = tmp_path / "whole.npz", tmp_path / "parts.npz"
    training.train(case(), recipe, 3, whole, {"workload": "x"})

    def stop(done: float) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(case(), recipe, 3, parts, {"workload": "x"}, progress=stop)
    checkpoint = parts.with_suffix(".checkpoint")
    assert checkpoint.is_file()
    with pytest.raises(UserError, match="other settings"):
        training.train(case(), recipe, 4, parts, {"workload": "x"}, resume=True)
    training.train(case(), recipe, 3, parts, {"workload": "x"}, resume=True)
    assert whole.read_bytes() == parts.read_bytes()
    assert whole.with_suffix(".svg").read_bytes() == parts.with_suffix(".svg").read_bytes()
    assert not checkpoint.exists()
    assert Network.from_bytes(whole.read_bytes()).about["seed"] == 3


@pytest.mark.parametrize(
    ("spec", "workload", "slots"), [("dl2", "dl2-baselines", 6.0), ("dl2:contended", "dl2-contended", 7.0)]
)
def test_a_network_that_comes_with_coach_is_of_the_command_that_it_names(
    spec: str, workload: str, slots: float
) -> None:
    network = policy(spec).network  # type: ignore[attr-defined]
    assert network.about["workload"] == workload
    assert network.about["command"].startswith("coach train dl2 ")
    full = Case.of(load(workload).parameters)
    assert network.kinds == full.kinds
    assert network.progress == pytest.approx(full.progress, rel=1e-6)
    assert play(full, network.weights, range(VALIDATION, VALIDATION + 1))[0] < slots


def test_a_network_without_bundles_is_tested_without_them() -> None:
    learner = Learner(case(), Recipe(bundles=False), 1)
    learner.actor["b2"][:] = -10, -10, 10  # only bundles, if there were any
    assert learner.test(range(1, 2)) == pytest.approx(
        play(case(), {**learner.actor, "b3": np.array([1e6], np.float32)}, range(1, 2))
    )
    assert learner.test(range(1, 2)) > 1.3 * play(case(), learner.actor, range(1, 2))


@pytest.mark.parametrize(
    ("loss", "value"),
    [
        ("cross-entropy", lambda p, y: -np.log((p * y).sum())),
        ("square", lambda p, y: ((p - y) ** 2).sum()),
        ("absolute", lambda p, y: np.abs(p - y).sum()),
    ],
)
def test_the_slope_of_imitation_is_that_of_its_loss(loss: str, value: Any) -> None:
    scores = np.random.default_rng(2).standard_normal(5)

    def odds(of: Any) -> Any:
        return np.exp(of) / np.exp(of).sum()

    found = imitation_slope(odds(scores)[None], np.array([3]), loss)[0]
    for at, step in enumerate(1e-6 * np.eye(5)):
        ends = [value(odds(scores + sign * step), np.eye(5)[3]) for sign in (1, -1)]
        assert found[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)


def test_a_common_network_has_what_each_cluster_learned_on_jobs_of_its_own() -> None:
    small = replace(SMALL, batches=4, copies=4, slots=10, kept=200, minibatch=32, warm_up=1, validation_traces=1)
    together = Federation(case(jobs=10), small, 1, clusters=2)
    first, second = together.clusters
    begun = {name: array.copy() for name, array in first.actor.items()}
    together.train()
    assert (first.batches, second.batches, len(together.curve)) == (2, 2, 2)
    assert first.slots >= 20 and second.slots >= 20
    assert together.best == min(found for _, found in together.curve) < np.inf
    assert any((first.actor[name] != begun[name]).any() for name in begun)
    assert any((first.actor[name] != second.actor[name]).any() for name in begun), "one is a change behind"
