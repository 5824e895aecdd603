"""DL²'s cluster in the shape of Gymnasium's environments: `reset`, and `step` with five returns; it is not imported.

Not what Coach trains with, which plays many copies at once; for those who bring a learner of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coach_research.dl2.slots import Bools, Case, Slots
from coach_research.policies.dl2.network import STEPS, Array


class Environment:
    """One trace an episode. An action is 3 times the job of the window plus the step, or the last for void."""

    def __init__(self, case: Case) -> None:
        self.case = case
        #: How many actions there are.
        self.actions = len(STEPS) * case.window + 1
        self._world: Slots | None = None

    def reset(self, *, seed: int = 0, options: Any = None) -> tuple[Array, dict[str, Bools]]:
        """The features of each job of the window [job, column]; and which actions are possible (`mask`)."""
        del options
        trace = self.case.trace(np.random.default_rng([seed, 0]))
        self._world = Slots(self.case, 1, iter([trace, trace]))
        return self._seen(self._world)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Features, reward, whether all jobs are done, False, and the mask (at the end also the mean completion time).

        The reward is that of the slot, on its void: the part of each job that was done, summed. Raises ValueError for
        an action that is not possible, or before `reset`.
        """
        world = self._world
        if world is None:
            raise ValueError("step before reset, or after the end of the episode")
        if not 0 <= action < self.actions or not self._mask(world)[action]:
            raise ValueError(f"action {action} is not possible; the mask says which are")
        going = bool(world.act(np.array([action]))[0])
        reward = 0.0 if going else float(world.end(0).sum())
        features, info = self._seen(world)
        if not world.means:
            return features, reward, False, False, dict(info)
        self._world = None
        return features, reward, True, False, {**info, "mean": world.means[0]}

    @staticmethod
    def _mask(world: Slots) -> Bools:
        return np.append(world.possible()[0].ravel(), True)

    def _seen(self, world: Slots) -> tuple[Array, dict[str, Bools]]:
        return world.features[0].copy(), {"mask": self._mask(world)}
