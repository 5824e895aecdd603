"""One network that several clusters train, each on jobs of its own: asynchronous, as A3C (Mnih et al. 2016).

A cluster takes the common weights, plays a batch of its own slots, learns from it, and adds the change that this made
to the common weights; meanwhile the others have done the same, so its change is of weights that are as many changes
old as there are other clusters. Here the clusters take turns. Each has its own traces and its own state of Adam; A3C
adds single gradients, and shares the state of its optimizer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coach_research.dl2.learner import VALIDATION, Learner, Recipe
from coach_research.dl2.slots import Case
from coach_research.policies.dl2.network import Weights

#: The networks that are common.
PARTS = ("actor", "critic")


class Federation:
    """A training by `clusters`, which play the recipe's batches together."""

    def __init__(self, case: Case, recipe: Recipe, seed: int, clusters: int) -> None:
        each = replace(recipe, batches=recipe.batches // clusters, warm_up=-(-recipe.warm_up // clusters))
        self.clusters = [Learner(case, each, seed + 1000 * number) for number in range(clusters)]
        self.best, self.best_weights = np.inf, self.clusters[0].actor
        #: Slots that each cluster has played, and the mean completion time on the traces of validation.
        self.curve: list[tuple[int, float]] = []

    def train(self) -> None:
        """To the end; from what the first cluster imitates, where the recipe has a teacher."""
        first = self.clusters[0]
        if first.recipe.teacher:
            first.imitate()
        shared = _copied(first)
        for one in self.clusters[1:]:
            _take(one, shared)
        while not first.ended:
            for one in self.clusters:
                before = _copied(one)
                one.learn()
                for part, weights in _copied(one).items():
                    for name, array in weights.items():
                        shared[part][name] += array - before[part][name]
                _take(one, shared)
            self._validate(shared["actor"])

    def _validate(self, weights: Weights) -> None:
        first = self.clusters[0]
        found = float(first.test(range(VALIDATION, VALIDATION + first.recipe.validation_traces), weights).mean())
        self.curve.append((first.slots, found))
        if found < self.best:
            self.best, self.best_weights = found, {name: array.copy() for name, array in weights.items()}


def _copied(learner: Learner) -> dict[str, Weights]:
    return {part: {name: array.copy() for name, array in getattr(learner, part).items()} for part in PARTS}


def _take(learner: Learner, shared: dict[str, Weights]) -> None:
    """The common weights, in place: the learner's optimizers hold these arrays."""
    for part in PARTS:
        for name, array in getattr(learner, part).items():
            array[:] = shared[part][name]
