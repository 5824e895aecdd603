"""How Coach trains DL²'s network: proximal policy optimization (Schulman et al. 2017), a critic that looks at each job.

The reward of a slot is the paper's, the sum over the jobs of the part of each that was done; nothing beyond it counts.
What differs from the paper, and why, is in docs/advanced/policies.md: shared weights for all jobs; a critic with one
prediction for each job, in units of what one worker and one server do; and an advantage for each inference of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coach_research.dl2.gradients import Adam, Forward
from coach_research.dl2.slots import Bools, Case, Ints, Slots
from coach_research.policies.dl2.network import STEPS, Array, Inference, Network, Weights, fresh

#: The score of what is not possible.
NEVER = np.float32(-1e9)
#: Slots after the last arrival in which a trace should end.
LONGEST = 1000
#: Traces of validation have the seeds from the first number on, those of training from the second.
VALIDATION, TRAINING = 1_000_000, 2_000_000


@dataclass(frozen=True)
class Recipe:
    """The settings of a training."""

    batches: int = 45
    width: int = 32
    copies: int = 64
    #: Slots, and inferences kept, in a batch.
    slots: int = 200
    kept: int = 6144
    minibatch: int = 512
    rate: float = 1e-3
    critic_rate: float = 2e-3
    entropy: float = 3e-4
    clip: float = 0.2
    passes: int = 2
    critic_passes: int = 3
    #: Batches in which only the critic learns.
    warm_up: int = 5
    #: How far the advantage looks ahead within the slot.
    trace: float = 0.5
    #: "each": a prediction for each job, scaled by its kind; "unscaled"; "sum": one for all; "none": the mean reward.
    critic: str = "each"
    #: An inference's reward is of "all" jobs in the slot, or of the job that it gave something ("own"; void then has
    #: no advantage; with a critic of each job).
    reward: str = "all"
    bundles: bool = True
    #: Whose decisions are imitated first: "" or a name of `teacher.TEACHERS`.
    teacher: str = ""
    #: With a larger one the hidden layers grow, so that each step of learning changes the scores more than it should.
    imitation_rate: float = 5e-3
    #: What imitation makes small, of the probabilities p and the teacher's decision y: "cross-entropy" -ln p of y,
    #: "square" the sum of (p - y)², "absolute" that of |p - y|.
    imitation_loss: str = "cross-entropy"
    #: What imitates has its scores divided by `soften`; `void` is then the probability of void (0: stays as it is).
    soften: float = 1.0
    void: float = 0.0
    #: The copies begin in one of so many slots of their traces.
    phases: int = 30
    validate: int = 5  #: every so many batches
    validation_traces: int = 10


#: With these a network learns on from what it imitated (scenario dl2-from-drf); without, it stays there.
START: Mapping[str, Any] = {"imitation_rate": 1e-3, "soften": 10.0, "void": 0.005}


def traces(case: Case, first: int) -> Iterator[tuple[Ints, Ints]]:
    """Traces with the seeds from `first` on."""
    while True:
        yield case.trace(np.random.default_rng([first, 0]))
        first += 1


def masked(outputs: Array, void: Array, possible: Bools) -> Array:
    """The scores of all actions [state, action]; void is the last."""
    scores = np.where(possible, outputs, NEVER).reshape(len(void), -1)
    found: Array = np.concatenate([scores, void[:, None]], axis=1)
    return found


def log_softmax(scores: Array) -> Array:
    """Logarithms of the probabilities."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    found: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def imitation_slope(odds: Array, decided: Ints, loss: str) -> Array:
    """The gradient of `Recipe.imitation_loss` of the scores, whose probabilities are `odds` [state, action]."""
    wrong = odds.copy()
    wrong[np.arange(len(odds)), decided] -= 1
    if loss == "cross-entropy":
        return wrong
    each = 2 * wrong if loss == "square" else np.sign(wrong)
    found: Array = odds * (each - (each * odds).sum(axis=1, keepdims=True))
    return found


class Scores(Protocol):
    """`Inference`, or what answers as it does."""

    def start(self, state: int, features: Array, there: Bools) -> None:
        """See `Inference`."""

    def change(self, states: Ints, jobs: Ints, features: Array) -> None:
        """See `Inference`."""

    def scores(self) -> tuple[Array, Array]:
        """See `Inference`."""


def play(
    case: Case,
    weights: Weights,
    seeds: range,
    slots: type[Slots] = Slots,
    scores: Callable[[Weights, int, int], Scores] = Inference,
    *,
    bundles: bool = True,
) -> NDArray[np.float64]:
    """The mean completion time, in slots, on the traces of these seeds, with the best action each time.

    Infinite where a trace has not ended `LONGEST` slots after the last arrival: a job may be left with counts under
    which it takes for ever.
    """
    kept = [case.trace(np.random.default_rng([seed, 0])) for seed in seeds]
    world = slots(case, len(kept), iter([*kept, *kept]))
    world.bundles = bundles
    inference = scores(weights, len(kept), case.window)
    means = np.full(len(kept), np.nan)
    for copy in range(len(kept)):
        inference.start(copy, world.features[copy], world.there[copy])
    copies = np.arange(len(kept))
    while np.isnan(means).any():
        actions = masked(*inference.scores(), world.possible()).argmax(axis=1)
        actions[~np.isnan(means)] = len(STEPS) * case.window
        going = world.act(actions)
        jobs = actions // len(STEPS)
        inference.change(copies[going], jobs[going], world.features[copies[going], jobs[going]])
        for copy in np.flatnonzero(~going & np.isnan(means)).tolist():
            before = len(world.means)
            world.end(copy)
            if len(world.means) > before:
                means[copy] = world.means[-1]
            elif world.now[copy] > world.arrival[copy].max() + LONGEST:
                means[copy] = np.inf
            inference.start(copy, world.features[copy], world.there[copy])
    return means


@dataclass
class Batch:
    """Inferences kept for learning."""

    features: list[Array] = field(default_factory=list)
    there: list[Bools] = field(default_factory=list)
    possible: list[Bools] = field(default_factory=list)
    action: list[int] = field(default_factory=list)
    logarithm: list[float] = field(default_factory=list)
    advantage: list[float] = field(default_factory=list)
    #: What each job did in the slot [job], and its scale.
    done: list[NDArray[np.float64]] = field(default_factory=list)
    scale: list[NDArray[np.float64]] = field(default_factory=list)


class Learner:
    """One training; `step()` plays some slots and learns from them."""

    def __init__(self, case: Case, recipe: Recipe, seed: int) -> None:
        self.case, self.recipe, self.seed = case, recipe, seed
        #: Of each batch its own, so that a training that goes on is the same as one that never stopped.
        self.rng = np.random.default_rng([seed, 1])
        self.actor = fresh(len(case.kinds), recipe.width, len(STEPS), self.rng)
        self.critic = fresh(len(case.kinds), recipe.width, 1, self.rng)
        self._actor_steps = Adam(self.actor, recipe.rate)
        self._critic_steps = Adam(self.critic, recipe.critic_rate)
        self.batches = 0
        self.slots = 0
        #: The mean reward of slots, for a training without a critic.
        self.mean_reward = 0.0
        self.best = np.inf
        self.best_weights = self.actor
        #: The network after `imitate`, before it was softened.
        self.imitated = self.actor
        #: A row for each validation: batches, slots, gradient steps, mean completion.
        self.curve: list[tuple[int, int, int, float]] = []
        #: Inferences of a slot, by copy.
        self._lengths = np.full(recipe.copies, 300.0)

    # -- one batch -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One batch, and a validation where one is due."""
        self.learn()
        if (self.batches % self.recipe.validate == 0 and self.batches > self.recipe.warm_up) or self.ended:
            self.validate()

    def learn(self) -> None:
        """One batch."""
        recipe = self.recipe
        self.rng = np.random.default_rng([self.seed, 2, self.batches])
        batch = self._play()
        part = 1 - 0.95 * self.batches / max(1, recipe.batches)
        if recipe.critic != "none":
            self._learn_values(batch)
        if self.batches >= recipe.warm_up:
            self._learn_actions(batch, part)
        self.batches += 1

    @property
    def ended(self) -> bool:
        """Whether all batches were played."""
        return self.batches >= self.recipe.batches

    def validate(self) -> None:
        """Keep the weights if they are the best so far on the traces of validation."""
        found = float(self.test(range(VALIDATION, VALIDATION + self.recipe.validation_traces), self.actor).mean())
        self.curve.append((self.batches, self.slots, self._actor_steps.steps, found))
        if found < self.best:
            self.best = found
            self.best_weights = {name: array.copy() for name, array in self.actor.items()}

    def test(self, seeds: range, weights: Weights | None = None) -> NDArray[np.float64]:
        """The mean completion time on the traces of these seeds, with the best weights so far or with others."""
        return play(self.case, weights or self.best_weights, seeds, bundles=self.recipe.bundles)

    def network(self, about: dict[str, Any]) -> Network:
        """The best so far, as a policy reads it."""
        case = self.case
        return Network(
            self.best_weights,
            case.kinds,
            case.progress.astype(np.float32),
            case.slot,
            case.most,
            case.window,
            about=about,
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """All that a later process needs to go on (`restore`)."""
        parts = {
            "actor": self.actor, "critic": self.critic, "best": self.best_weights,
            "actor-mean": self._actor_steps.mean, "actor-square": self._actor_steps.square,
            "critic-mean": self._critic_steps.mean, "critic-square": self._critic_steps.square,
        }  # fmt: skip
        numbers = (
            self.batches, self.slots, self.mean_reward, self.best, self._actor_steps.steps, self._critic_steps.steps
        )  # fmt: skip
        return {
            "numbers": np.array(numbers, float), "curve": np.array(self.curve, float).reshape(-1, 4),
            "lengths": self._lengths,
            **{f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()},
        }  # fmt: skip

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `state()`."""
        parts: dict[str, Weights] = {}
        for key, array in state.items():
            part, _, name = key.partition("/")
            if name:
                parts.setdefault(part, {})[name] = array.copy()
        self.actor, self.critic, self.best_weights = parts["actor"], parts["critic"], parts["best"]
        for kind, steps in (("actor", self._actor_steps), ("critic", self._critic_steps)):
            steps.weights = parts[kind]
            steps.mean, steps.square = parts.get(f"{kind}-mean", {}), parts.get(f"{kind}-square", {})
        batches, slots, self.mean_reward, self.best, first, second = state["numbers"].tolist()
        self.batches, self.slots = int(batches), int(slots)
        self._actor_steps.steps, self._critic_steps.steps = int(first), int(second)
        self.curve = [(int(a), int(b), int(c), d) for a, b, c, d in state["curve"].tolist()]
        self._lengths = state["lengths"].copy()

    # -- playing ---------------------------------------------------------------------------------------------------

    def _world(self) -> Slots:
        """The copies, each somewhere in a trace."""
        recipe, case = self.recipe, self.case
        first = TRAINING + 1_000_000 * self.seed + self.batches * recipe.copies
        world = Slots(case, recipe.copies, traces(case, first))
        world.bundles = recipe.bundles
        for copy in range(recipe.copies):
            for _ in range(int(self.rng.integers(recipe.phases))):
                # Any allocation under which jobs end will do.
                world.counts[copy] = (min(2, case.most), max(1, case.most - 1))
                world.end(copy)
        return world

    def _scales(self, kinds: Ints) -> NDArray[np.float64]:
        """The unit of each job's prediction: what one worker and one server do in a slot, at most all of it."""
        if self.recipe.critic == "each":
            scales: NDArray[np.float64] = np.minimum(1.0, self.case.progress[kinds, 1, 1])
            return scales
        return np.ones(kinds.shape)

    def _play(self) -> Batch:
        recipe, case, world, rng = self.recipe, self.case, self._world(), self.rng
        actor = Inference(self.actor, recipe.copies, case.window)
        critic = Inference(self.critic, recipe.copies, case.window)
        for copy in range(recipe.copies):
            for one in (actor, critic):
                one.start(copy, world.features[copy], world.there[copy])
        scales = self._scales(world.kind) * world.there
        batch, played = Batch(), 0
        values: list[list[float]] = [[] for _ in range(recipe.copies)]
        chosen: list[list[tuple[int, Any]]] = [[] for _ in range(recipe.copies)]
        copies, rows = np.arange(recipe.copies), recipe.copies
        while played < recipe.slots:
            possible = world.possible()
            logs = log_softmax(masked(*actor.scores(), possible))
            noise = -np.log(-np.log(rng.random(logs.shape, np.float32) + 1e-20) + 1e-20)
            actions = (logs + noise).argmax(axis=1)
            seen, each = self._values(critic, scales)
            if recipe.reward == "own":
                # Void, the last action, is worth what was predicted.
                seen = np.append(each, np.zeros((rows, 1)), axis=1)[copies, actions // len(STEPS)]
            keep = rng.random(rows) < recipe.kept / recipe.slots / self._lengths
            for copy in range(rows):
                values[copy].append(seen[copy])
                if keep[copy]:
                    chosen[copy].append(
                        (
                            len(values[copy]) - 1,
                            (
                                world.features[copy].copy(), world.there[copy].copy(), possible[copy].copy(),
                                int(actions[copy]), float(logs[copy, actions[copy]]),
                            ),
                        )
                    )  # fmt: skip
            going = world.act(actions)
            jobs = actions // len(STEPS)
            ahead = copies[going], jobs[going]
            changed = world.features[ahead]
            actor.change(*ahead, changed)
            critic.change(*ahead, changed)
            for copy in np.flatnonzero(~going).tolist():
                kinds, there = world.kind[copy].copy(), world.there[copy].copy()
                done = world.end(copy)
                self._record(batch, values[copy], chosen[copy], done, self._scales(kinds) * there)
                self._lengths[copy] = 0.7 * self._lengths[copy] + 0.3 * len(values[copy])
                values[copy], chosen[copy] = [], []
                for one in (actor, critic):
                    one.start(copy, world.features[copy], world.there[copy])
                scales[copy] = self._scales(world.kind[copy]) * world.there[copy]
                played += 1
        self.slots += played
        return batch

    def _values(
        self, critic: Inference, scales: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The predicted reward of the slot [copy], and the part of each job [copy, job], where there is one."""
        nothing = np.zeros(scales.shape)
        if self.recipe.critic == "none":
            return np.full(len(scales), self.mean_reward), nothing
        outputs, total = critic.scores()
        if self.recipe.critic == "sum":
            return total.astype(float), nothing
        each: NDArray[np.float64] = scales * outputs[:, :, 0]
        return each.sum(axis=1), each

    def _record(self, batch: Batch, values: list[float], chosen: list[tuple[int, Any]], done: Any, scale: Any) -> None:
        reward = float(done.sum())
        self.mean_reward += 0.01 * (reward - self.mean_reward)
        if self.recipe.critic == "none":
            advantages = [reward - value for value in values]
        else:
            advantages, ahead = [0.0] * len(values), 0.0
            following = [*values[1:], reward]
            for at in reversed(range(len(values))):
                ahead = following[at] - values[at] + self.recipe.trace * ahead
                advantages[at] = ahead
        for at, (features, there, possible, action, logarithm) in chosen:
            if self.recipe.reward == "own":
                advantages[at] = float(np.append(done, 0.0)[action // len(STEPS)]) - values[at]
            batch.features.append(features)
            batch.there.append(there)
            batch.possible.append(possible)
            batch.action.append(action)
            batch.logarithm.append(logarithm)
            batch.advantage.append(advantages[at])
            batch.done.append(done)
            batch.scale.append(scale)

    # -- learning --------------------------------------------------------------------------------------------------

    def _minibatches(self, count: int, passes: int, size: int) -> Iterator[Ints]:
        for _ in range(passes):
            order = self.rng.permutation(count)
            for start in range(0, count - size // 2, size):
                yield order[start : start + size]

    def _learn_values(self, batch: Batch) -> None:
        features, there = np.stack(batch.features), np.stack(batch.there)[:, :, None].astype(np.float32)
        scale = np.stack(batch.scale)
        done = np.stack(batch.done)
        goal = (done / np.where(scale > 0, scale, 1.0)).astype(np.float32)
        total = done.sum(axis=1).astype(np.float32)
        for rows in self._minibatches(len(features), self.recipe.critic_passes, self.recipe.minibatch // 2):
            found = Forward(self.critic, features[rows], there[rows])
            if self.recipe.critic == "sum":
                error = found.void - total[rows]
                gradient = found.backward(np.zeros_like(found.outputs), error / np.float32(len(rows)))
            else:
                wrong = (found.outputs[:, :, 0] - goal[rows]) * there[rows, :, 0] / np.float32(len(rows))
                gradient = found.backward(wrong[:, :, None], np.zeros(len(rows), np.float32))
            self._critic_steps.step(gradient)

    def _learn_actions(self, batch: Batch, part: float) -> None:
        """`part`: of the rate and of the entropy's weight, as they fall."""
        recipe = self.recipe
        features, there = np.stack(batch.features), np.stack(batch.there)[:, :, None].astype(np.float32)
        possible, action = np.stack(batch.possible), np.array(batch.action)
        before = np.array(batch.logarithm, np.float32)
        advantage = np.array(batch.advantage, np.float32)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for rows in self._minibatches(len(features), recipe.passes, recipe.minibatch):
            found = Forward(self.actor, features[rows], there[rows])
            logs = log_softmax(masked(found.outputs, found.void, possible[rows]))
            odds, at = np.exp(logs), np.arange(len(rows))
            ratio = np.exp(logs[at, action[rows]] - before[rows])
            gain = advantage[rows]
            inside = np.where(gain > 0, ratio < 1 + recipe.clip, ratio > 1 - recipe.clip)
            # d(-ratio gain)/d score, and d(-weight entropy)/d score
            slope = (odds * (gain * ratio * inside)[:, None]).astype(np.float32)
            slope[at, action[rows]] -= gain * ratio * inside
            entropy = -(odds * logs).sum(axis=1, keepdims=True)
            slope += np.float32(recipe.entropy * part) * odds * (logs + entropy)
            self._actor_steps.step(_from_scores(found, slope / np.float32(len(rows))), recipe.rate * part)

    def imitate(self, steps: int = 300) -> float:
        """Learn the teacher's decisions before anything else: the last loss."""
        from coach_research.dl2.teacher import decisions

        teacher = self.recipe.teacher or "drf"
        features, there, possible, action = decisions(self.case, self.rng, teacher=teacher)
        rate, loss = Adam(self.actor, self.recipe.imitation_rate), np.inf
        for _ in range(steps):
            rows = self.rng.integers(len(action), size=256)
            found = Forward(self.actor, features[rows], there[rows][:, :, None].astype(np.float32))
            logs = log_softmax(masked(found.outputs, found.void, possible[rows]))
            odds, at = np.exp(logs), np.arange(len(rows))
            loss = float(-logs[at, action[rows]].mean())
            slope = imitation_slope(odds, action[rows], self.recipe.imitation_loss)
            rate.step(_from_scores(found, slope / np.float32(len(rows))))
        self.imitated = {name: array.copy() for name, array in self.actor.items()}
        self._soften(features, there, possible)
        return loss

    def _soften(self, features: Array, there: Bools, possible: Bools) -> None:
        """Let what imitates try other actions, and end a slot."""
        for name in ("w2", "b2", "w3", "b3"):
            self.actor[name] /= np.float32(self.recipe.soften)
        if self.recipe.void:
            found = Forward(self.actor, features, there[:, :, None].astype(np.float32))
            going = possible.any(axis=(1, 2))
            others = masked(found.outputs, found.void, possible)[going, :-1]
            # Void has the same score in every state, until it learns.
            score = np.median(np.log(np.exp(others).sum(axis=1)))
            self.actor["w3"][:] = 0
            self.actor["b3"][:] = score + np.log(self.recipe.void / (1 - self.recipe.void))


def _from_scores(found: Forward, slope: NDArray[Any]) -> Weights:
    outputs = slope[:, :-1].reshape(found.outputs.shape).astype(np.float32)
    return found.backward(outputs, slope[:, -1].astype(np.float32))
