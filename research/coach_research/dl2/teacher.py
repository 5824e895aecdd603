"""Decisions of other policies as examples: what the paper's network learns first (section 4.2).

Each teacher decides as the policy of its name, one inference at a time, until it has nothing more to give: "void".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from coach_research.dl2.slots import STEP, Bools, Case, Ints, Slots
from coach_research.policies.dl2.network import STEPS, Array
from coach_research.workload import FloatArray

#: Both a worker and a server.
BUNDLE = len(STEPS) - 1
#: Slots, played in so many copies at once, and how many inferences of each are kept.
SLOTS, COPIES, KEPT = 300, 16, 30
#: How much a teacher wants each action of each copy, [copy, job, step]; -inf: not at all.
Wishes = Callable[[Slots], FloatArray]


def _bundles(order: FloatArray) -> FloatArray:
    """A bundle for the job that is first in `order` [copy, job], the least first; of equals for the oldest."""
    found = np.full((*order.shape, len(STEPS)), -np.inf)
    found[:, :, BUNDLE] = -order
    return found


def drf(world: Slots) -> FloatArray:
    """The job with the smallest dominant share."""
    case = world.case
    shares = (case.uses[:, :2] / case.capacity).transpose(0, 2, 1)  # [kind, resource, worker or server]
    return _bundles((shares[world.kind] @ world.counts[:, :, :, None])[:, :, :, 0].max(axis=2))


def fifo(world: Slots) -> FloatArray:
    """The oldest job that has less than it may have; where that has no room, no job."""
    wanting = world.there & (world.counts < world.case.most).all(axis=2)
    places = np.arange(world.case.window)
    return _bundles(np.where(places == wanting.argmax(axis=1)[:, None], 0.0, np.inf))


def srtf(world: Slots) -> FloatArray:
    """The job that would end first with all it may have."""
    left = np.take_along_axis(world.left, world.number, axis=1)
    return _bundles(left / world.case.progress[world.kind, world.case.most, world.case.most])


def optimus(world: Slots) -> FloatArray:
    """The worker or the server that saves most of the remaining time for its dominant share, if any saves time."""
    case = world.case
    left = np.take_along_axis(world.left, world.number, axis=1)
    size = (case.uses / case.capacity).max(axis=2)
    found = np.full((*left.shape, len(STEPS)), -np.inf)
    now = case.progress[world.kind, world.counts[:, :, 0], world.counts[:, :, 1]]
    for step in range(BUNDLE):
        to = np.minimum(world.counts + STEP[step], case.most)
        ahead = case.progress[world.kind, to[:, :, 0], to[:, :, 1]]
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = left * (1 / now - 1 / ahead) / size[world.kind, step]
        found[:, :, step] = np.where(gain > 0, gain, -np.inf)
    return found


TEACHERS: Mapping[str, Wishes] = {"drf": drf, "fifo": fifo, "srtf": srtf, "optimus": optimus}


def actions(world: Slots, wishes: Wishes) -> Ints:
    """The teacher's next action in each copy."""
    wanted = np.where(world.possible(), wishes(world), -np.inf).reshape(len(world.now), -1)
    found: Ints = np.where(np.isfinite(wanted.max(axis=1)), wanted.argmax(axis=1), wanted.shape[1])
    return found


def decisions(
    case: Case,
    rng: np.random.Generator,
    kind: type[Slots] = Slots,
    teacher: str = "drf",
) -> tuple[Array, Bools, Bools, Ints]:
    """Features, jobs that are there, possible actions and the teacher's, of about `KEPT` inferences of each slot."""
    world = kind(case, COPIES, iter(lambda: case.trace(rng), None))
    found: list[tuple[Array, Bools, Bools, int]] = []
    played = 0
    lengths = np.full(COPIES, case.window * case.most)
    length = np.zeros(COPIES, int)
    while played < SLOTS:
        possible = world.possible()
        action = actions(world, TEACHERS[teacher])
        void = action == len(STEPS) * case.window
        # Ends are rare: keep all of them.
        for copy in np.flatnonzero(void | (rng.random(COPIES) < KEPT / lengths)):
            found.append(
                (
                    world.features[copy].copy(),
                    world.there[copy].copy(),
                    possible[copy].copy(),
                    int(action[copy]),
                )
            )
        world.act(action)
        length += 1
        for copy in np.flatnonzero(void):
            world.end(int(copy))
            lengths[copy], length[copy] = max(1, length[copy]), 0
            played += 1
    features, there, all_possible, chosen = zip(*found, strict=True)
    return np.stack(features), np.stack(there), np.stack(all_possible), np.array(chosen)
