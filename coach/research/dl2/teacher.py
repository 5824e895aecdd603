"""DRF's decisions as examples: what the paper's network learns first (section 4.2)."""

from __future__ import annotations

import numpy as np

from coach.core.policies.dl2.network import STEPS, Array
from coach.research.dl2.slots import Bools, Case, Ints, Slots

#: Both a worker and a server.
BUNDLE = len(STEPS) - 1
#: Slots, played in so many copies at once, and how many inferences of each are kept.
SLOTS, COPIES, KEPT = 300, 16, 30


def decisions(
    case: Case,
    rng: np.random.Generator,
    kind: type[Slots] = Slots,
) -> tuple[Array, Bools, Bools, Ints]:
    """Features, jobs that are there, possible actions and DRF's action, of about `KEPT` inferences of each slot.

    DRF gives a bundle to the job with the smallest dominant share, of equals to the oldest. Void ends a slot in which
    no bundle is possible.
    """
    world = kind(case, COPIES, iter(lambda: case.trace(rng), None))
    found: list[tuple[Array, Bools, Bools, int]] = []
    played, everyone = 0, np.arange(COPIES)
    shares = (case.uses[:, :2] / case.capacity).transpose(0, 2, 1)  # [kind, resource, worker or server]
    lengths = np.full(COPIES, case.window * case.most)
    length = np.zeros(COPIES, int)
    while played < SLOTS:
        possible = world.possible()
        share = (shares[world.kind] @ world.counts[:, :, :, None])[:, :, :, 0].max(axis=2)
        job = np.where(possible[:, :, BUNDLE], share, np.inf).argmin(axis=1)
        void = ~possible[everyone, job, BUNDLE]
        action = np.where(void, len(STEPS) * case.window, len(STEPS) * job + BUNDLE)
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
    features, there, all_possible, actions = zip(*found, strict=True)
    return np.stack(features), np.stack(there), np.stack(all_possible), np.array(actions)
