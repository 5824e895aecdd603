"""DL² as published: one network over all places of the window, imitation of DRF, then actor and critic with replay.

From the paper (section 4) and, where it is silent, from the published code: two layers of 256, Adam with 1e-4, batches
of 256, entropy, r - V(s) for every inference of a slot, the last 8,192 inferences, of which those with a higher reward
are drawn more often, and job-aware exploration. Choices: full jobs stay in the window; the probabilities of replayed
inferences are computed again (the published code uses the stored ones); several slots are played at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coach_research.dl2.gradients import Adam
from coach_research.dl2.learner import TRAINING, VALIDATION, log_softmax, masked, play, traces
from coach_research.dl2.slots import Bools, Case, Ints, Slots
from coach_research.dl2.teacher import decisions
from coach_research.policies.dl2.flat import COLUMNS, FlatInference, outputs
from coach_research.policies.dl2.network import STEPS, Array, Network, Weights

WIDTH, REPLAY, BATCH = 256, 8192, 256
COPIES = 16
#: The published weight is of the mean over the actions.
ENTROPY = 0.1
#: Probability of an action that explores, for a state that asks for one.
EXPLORE = 0.1
#: More workers than so many times the servers, or the other way round, asks for exploration.
RATIO = 10


class PublishedSlots(Slots):
    """The paper's state: kind, slots since the arrival, part left, dominant share, workers, servers."""

    @staticmethod
    def columns(case: Case) -> int:
        """Of the features of a job."""
        return COLUMNS

    def _describe(self, copy: int) -> None:
        number, there = self.number[copy], self.there[copy]
        rows = self.features[copy]
        rows[:, 0] = self.kind[copy] + 1
        rows[:, 1] = self.now[copy] - self.arrival[copy, number]
        rows[:, 2] = self.left[copy, number]
        self._describe_one(np.full(len(number), copy), np.arange(len(number)))
        rows *= there[:, None]

    def _describe_one(self, copies: Ints, jobs: Ints) -> None:
        counts = self.counts[copies, jobs]
        uses = self.case.uses[self.kind[copies, jobs], :2]
        held = (uses * counts[:, :, None]).sum(axis=1) / self.case.capacity
        self.features[copies, jobs, 3] = held.max(axis=1)
        self.features[copies, jobs, 4:] = counts


def flat(inputs: int, outputs: int, rng: np.random.Generator) -> Weights:
    """Two layers, and the outputs."""

    def layer(rows: int, columns: int, scale: float = 1.0) -> Array:
        found: Array = (rng.standard_normal((rows, columns)) * scale * np.sqrt(2 / rows)).astype(np.float32)
        return found

    return {
        "w0": layer(inputs, WIDTH), "b0": np.zeros(WIDTH, np.float32), "w1": layer(WIDTH, WIDTH),
        "b1": np.zeros(WIDTH, np.float32), "w2": layer(WIDTH, outputs, 0.1), "b2": np.zeros(outputs, np.float32),
    }  # fmt: skip


class FlatForward:
    """Outputs for inputs [state, input], and the way back."""

    def __init__(self, w: Weights, inputs: Array) -> None:
        self.w, self.inputs = w, inputs
        self.first, self.second, self.outputs = outputs(w, inputs)

    def backward(self, slope: NDArray[Any]) -> Weights:
        """The gradient of the weights from that of the outputs."""
        out = slope.astype(np.float32)
        second = (out @ self.w["w2"].T) * (self.second > 0)
        first = (second @ self.w["w1"].T) * (self.first > 0)
        return {
            "w0": self.inputs.T @ first, "b0": first.sum(axis=0), "w1": self.first.T @ second,
            "b1": second.sum(axis=0), "w2": self.second.T @ out, "b2": out.sum(axis=0),
        }  # fmt: skip


def network(case: Case, weights: Weights, about: dict[str, Any]) -> Network:
    """As a policy reads it."""
    progress = case.progress.astype(np.float32)
    return Network(weights, case.kinds, progress, case.slot, case.most, case.window, True, about)


def learn(
    case: Case,
    seed: int,
    slots: int,
    every: int,
    validation: int,
    *,
    teacher: str = "drf",
    progress: Callable[[int], object] = lambda slots: None,
) -> list[tuple[float, Weights]]:
    """Train for so many slots: mean completion on validation traces, and weights, at first and after `every` slots."""
    rng = np.random.default_rng([seed, 1])
    inputs = COLUMNS * case.window
    actor, critic = flat(inputs, len(STEPS) * case.window + 1, rng), flat(inputs, 1, rng)
    _imitate(case, actor, rng, teacher)
    found: list[tuple[float, Weights]] = []

    def validate() -> None:
        seeds = range(VALIDATION, VALIDATION + validation)
        mean = float(play(case, actor, seeds, PublishedSlots, FlatInference).mean())
        found.append((mean, {name: array.copy() for name, array in actor.items()}))

    validate()
    world = PublishedSlots(case, COPIES, traces(case, TRAINING + 1_000_000 * seed))
    replay = Replay()
    steps, values = Adam(actor, 1e-4), Adam(critic, 1e-4)
    pending: list[list[tuple[Array, Bools, int]]] = [[] for _ in range(COPIES)]
    played = 0
    while played < slots:
        possible = world.possible()
        out = FlatForward(actor, world.features.reshape(COPIES, -1)).outputs
        logs = log_softmax(masked(out[:, :-1].reshape(possible.shape), out[:, -1], possible))
        noise = -np.log(-np.log(rng.random(logs.shape, np.float32) + 1e-20) + 1e-20)
        actions = (logs + noise).argmax(axis=1)
        _explore(world, possible, actions, rng)
        for copy in range(COPIES):
            pending[copy].append((world.features[copy].ravel().copy(), possible[copy].copy(), int(actions[copy])))
        going = world.act(actions)
        for copy in np.flatnonzero(~going).tolist():
            replay.add(pending[copy], float(world.end(copy).sum()))
            pending[copy] = []
            played += 1
            progress(played)
            _learn(actor, critic, steps, values, replay.draw(rng))
            if played % every == 0:
                validate()
    return found


def _imitate(case: Case, actor: Weights, rng: np.random.Generator, teacher: str, count: int = 600) -> None:
    features, _, possible, action = decisions(case, rng, PublishedSlots, teacher)
    steps, flatted = Adam(actor, 1e-3), features.reshape(len(features), -1)
    for _ in range(count):
        rows = rng.integers(len(action), size=BATCH)
        found = FlatForward(actor, flatted[rows])
        allowed = possible[rows]
        slope = np.exp(log_softmax(masked(found.outputs[:, :-1].reshape(allowed.shape), found.outputs[:, -1], allowed)))
        slope[np.arange(BATCH), action[rows]] -= 1
        steps.step(found.backward(slope / BATCH))


def _explore(world: Slots, possible: Bools, actions: Ints, rng: np.random.Generator) -> None:
    """Job-aware exploration: the first job whose workers and servers are far apart gets what it has less of."""
    workers, servers = world.counts[:, :, 0], world.counts[:, :, 1]
    uneven = world.there & ((workers > RATIO * servers) | (servers > RATIO * workers))
    for copy in np.flatnonzero(uneven.any(axis=1) & (rng.random(len(actions)) < EXPLORE)):
        job = int(uneven[copy].argmax())
        step = int(workers[copy, job] > servers[copy, job])
        if possible[copy, job, step]:
            actions[copy] = len(STEPS) * job + step


class Replay:
    """The last inferences with the reward of their slot."""

    def __init__(self) -> None:
        self.kept: list[tuple[Array, Bools, int]] = []
        self.rewards: list[float] = []

    def add(self, inferences: list[tuple[Array, Bools, int]], reward: float) -> None:
        """Those of one slot."""
        self.kept = [*self.kept, *inferences][-REPLAY:]
        self.rewards = [*self.rewards, *[reward] * len(inferences)][-REPLAY:]

    def draw(self, rng: np.random.Generator) -> tuple[Array, Bools, Ints, Array]:
        """A batch, by reward to the power of 0.9."""
        odds = np.maximum(np.array(self.rewards), 1e-3) ** 0.9
        rows = rng.choice(len(odds), BATCH, p=odds / odds.sum())
        features, possible, actions = zip(*(self.kept[row] for row in rows), strict=True)
        rewards = np.array([self.rewards[row] for row in rows], np.float32)
        return np.stack(features), np.stack(possible), np.array(actions), rewards


def _learn(actor: Weights, critic: Weights, steps: Adam, values: Adam, batch: tuple[Array, Bools, Ints, Array]) -> None:
    features, possible, actions, rewards = batch
    worth = FlatForward(critic, features)
    error = worth.outputs[:, 0] - rewards
    values.step(worth.backward(error[:, None] / BATCH))
    found = FlatForward(actor, features)
    logs = log_softmax(masked(found.outputs[:, :-1].reshape(possible.shape), found.outputs[:, -1], possible))
    odds = np.exp(logs)
    gain = -error[:, None]
    slope = odds * gain
    slope[np.arange(BATCH), actions] -= gain[:, 0]
    entropy = -(odds * logs).sum(axis=1, keepdims=True)
    slope += ENTROPY / logs.shape[1] * odds * (logs + entropy)
    steps.step(found.backward(slope / BATCH))
