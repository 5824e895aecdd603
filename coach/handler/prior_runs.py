"""What earlier jobs measured, for those that are like them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from coach.core.cluster import Allocation, Node
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs.epoch import Epoch, EpochKind
from coach.core.jobs.reasons import State
from coach.core.spec.job import TrainingJob
from coach.handler.state.state_directory import StoredJob


def known_points(
    past: Iterable[StoredJob], spec: TrainingJob, nodes: tuple[Node, ...]
) -> tuple[KnownSpeed, ...]:
    """The median speeds that earlier jobs like `spec` measured on these very nodes, and the least part of computing.

    Alike are jobs with the same model (by hash), data, batch size, mode and resources: what an epoch's work is.
    """
    epochs: dict[Allocation, list[Epoch]] = {}
    for one in alike(past, spec, nodes):
        for epoch in one.job.epochs:
            epochs.setdefault(epoch.allocation, []).append(epoch)
    return tuple(
        KnownSpeed(
            *at,
            statistics.median(epoch.epochs_per_second for epoch in there),
            min((epoch.computing_part for epoch in there if epoch.computing_part > 0.0), default=0.0),
        )
        for at, there in sorted(epochs.items())
    )


def alike(past: Iterable[StoredJob], spec: TrainingJob, nodes: tuple[Node, ...]) -> Iterator[StoredJob]:
    """Earlier jobs like `spec` that ran epochs on these very nodes, and on no others."""
    for one in past:
        if (
            one.job.epochs
            and one.nodes == {nodes}
            and spec.spec.model.sha256
            and _work(one.job.job_file) == _work(spec)
        ):
            yield one


def known_epochs(past: Iterable[StoredJob], spec: TrainingJob) -> float | None:
    """Median passes over the data of earlier jobs like `spec` that reached the same target; None: there is none.

    How fast a job learns also depends on its optimizer, but neither on its resources nor on the nodes.
    """
    epochs_trained = [
        one.job.epochs_trained
        for one in past
        if one.job.state is State.SUCCEEDED
        and spec.spec.model.sha256
        and _learning(one.job.job_file) == _learning(spec)
        and any(epoch.kind is EpochKind.FULL for epoch in one.job.epochs)
    ]
    return statistics.median(epochs_trained) if epochs_trained else None


def _work(spec: TrainingJob) -> tuple[Any, ...]:
    of = spec.spec
    return of.model.sha256, of.data, of.batch_size, of.mode, of.resources


def _learning(spec: TrainingJob) -> tuple[Any, ...]:
    of = spec.spec
    return of.model.sha256, of.data, of.batch_size, of.mode, of.target, of.optimizer
