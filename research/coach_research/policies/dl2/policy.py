"""DL² (Peng et al., IEEE TPDS 2021): a trained network hands out workers and servers, one inference after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from coach.core.cluster import NOTHING, Allocation, Resources, Role
from coach.core.errors import UserError
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason, kept
from coach.core.policies.api.parameters import parsed
from coach.core.policies.api.policy import Policy
from coach.core.policies.drf import DrfPolicy
from coach.core.policies.sharing.progressive_filling import Filling
from coach_research.policies.dl2.flat import FlatInference, flat_features
from coach_research.policies.dl2.network import STEPS, Array, Inference, Network, job_features
from coach_research.workload import FloatArray

#: At these workers and servers the speeds of jobs are compared.
COMPARED = tuple(Allocation(w, s) for w in (1, 2, 4, 8, 16) for s in (1, 2, 4, 8, 16))
#: The weights unless others are named.
WEIGHTS = "figure-9"
#: Inferences of one decision, for each job of the window: more are taken as a network that finds no end.
INFERENCES = 100


class NoDecisionError(Exception):
    """A score of the network is no number, or it finds no end."""


@dataclass(frozen=True)
class DrfInstead(Policy):
    """DRF, whose steps give another reason."""

    reason: Reason
    cadence: float | None = None
    name = "drf in place of dl2"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        decision = DrfPolicy().allocate(jobs, cluster)
        steps = (s._replace(reason=self.reason) if s.reason is Reason.FAIR else s for s in decision.steps)
        return AllocationDecision(decision.allocations, tuple(steps))


@dataclass(frozen=True)
class Dl2Policy(Policy):
    """Each job first gets its minimum; then the network gives a job a worker, a server or both, until it says "void".

    Choices: the action with the highest score is taken, of those that limits, money and capacity allow. A job's kind is
    the one in training whose speeds, relative to one worker and one server, are nearest to the job's own.

    Where the network gives something that is no number, finds no end, or (live) takes more than `slow_after` seconds of
    a core, DRF decides instead, and the steps say so.
    """

    network: Network
    #: Its file (.npz), or the name of one that comes with Coach; "": `figure-9`.
    weights: str = ""
    slow_after: float = 1.0
    cadence: float | None = None
    fallback: ClassVar[Policy | None] = DrfInstead(Reason.TOO_SLOW)
    registered: ClassVar[str] = "dl2"
    separable_if_rigid: ClassVar[bool] = True
    syntax: ClassVar[str] = "dl2, dl2:<file.npz> of `coach train dl2`"

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """The policy that `text`, behind `dl2:`, names: weights, or parameters. None where it is wrong.

        Raises UserError where there are no such weights, or they cannot be read.
        """
        keywords = parsed(cls, f"weights={text}" if text and "=" not in text else text)
        if keywords is None:
            return None
        name = keywords.get("weights", "") or WEIGHTS
        try:
            file = Path(name) if name.endswith(".npz") else resources.files(__package__) / f"{name}.npz"
            return cls(Network.from_bytes(file.read_bytes()), **keywords)
        except FileNotFoundError as error:
            right = f"a file that ends in .npz, as `coach train dl2` writes, or one that comes with Coach: {WEIGHTS}"
            raise UserError(f"dl2:{name}: no such weights; {right}") from error
        except (OSError, ValueError) as error:
            raise UserError(f"the weights {name} of the policy dl2 cannot be read: {error}") from error

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                filling.fill(lambda filling: _hand_out(filling, self.network, cluster))
        except NoDecisionError:
            return DrfInstead(Reason.FALLBACK).allocate(jobs, cluster)
        return filling.decision(Reason.LEARNED, lambda share: 0.0, "")


def _hand_out(filling: Filling, network: Network, cluster: ClusterView) -> None:
    for share in filling.open():
        if share.given is None:
            filling.give(share, share.next())
    window = filling.shares[: network.window]
    if not window:
        return
    kinds = np.array([_kind(share.job, network) for share in window])
    slots = np.array([share.seconds(_smallest(share.job)) / network.slot for share in window])

    inference = (FlatInference if network.flat else Inference)(
        network.weights, 1, network.window if network.flat else len(window)
    )
    waited = np.array([(cluster.now - share.job.created) / network.slot for share in window])
    left = np.minimum(1.0, slots * network.progress[kinds, 1, 1])
    capacity = _vector(sum((node.capacity for node in cluster.nodes), NOTHING))

    def features(places: slice) -> Array:
        counts = np.array([share.given or (0, 0) for share in window[places]])
        if not network.flat:
            return job_features(len(network.kinds), kinds[places], slots[places], counts, network.most)
        held = np.array([
            share.given.workers * _vector(share.job.requests[Role.WORKER])
            + share.given.servers * _vector(share.job.requests[Role.SERVER]) if share.given else 0 * capacity
            for share in window[places]
        ])  # fmt: skip
        shares = (held / np.where(capacity > 0, capacity, np.inf)).max(axis=1)
        return flat_features(kinds[places], waited[places], left[places], shares, counts)

    inference.start(0, features(slice(None)), np.array([share.given is not None for share in window], bool))
    refused = np.zeros((len(window), len(STEPS)), bool)
    for place, share in enumerate(window):
        refused[place] = share.closed
    for _ in range(INFERENCES * len(window)):
        of_places, (void,) = inference.scores()
        jobs = of_places[0, : len(window)]
        scores = np.where(refused, -np.inf, jobs)
        if not (np.isfinite(jobs).all() and np.isfinite(void)):
            raise NoDecisionError
        place, step = divmod(int(scores.argmax()), len(STEPS))
        if scores[place, step] <= void:
            return
        share = window[place]
        to = share.more(*STEPS[step])
        if to is None or not filling.fits(share, to):
            refused[place, step] = True
            continue
        filling.give(share, to)
        refused[place] |= share.closed
        inference.change(np.array([0]), np.array([place]), features(slice(place, place + 1)))
    raise NoDecisionError


def _vector(resources: Resources) -> FloatArray:
    return np.array([resources.cpu, resources.memory, resources.gpu])


def _smallest(job: JobView) -> Allocation:
    return Allocation(1, min(1, job.maximum.servers))


def _kind(job: JobView, network: Network) -> int:
    """The kind whose speeds are nearest to the job's, by the mean square of the logarithm of their ratio."""
    return kept(job, ("dl2", network), lambda: _nearest(job, network))


def _nearest(job: JobView, network: Network) -> int:
    most = job.maximum
    compared = [
        at for at in COMPARED if at.workers <= most.workers and at.servers <= most.servers and max(at) <= network.most
    ]
    if not compared:
        return 0
    speeds = np.log([job.speed(at) / job.speed(_smallest(job)) for at in compared])
    w, s = np.array(compared).T
    known = np.log(network.progress[:, w, s] / network.progress[:, 1, 1][:, None])
    return int(((known - speeds) ** 2).mean(axis=1).argmin())
