"""Jobs that ran in virtual time, for tests of reports. Those that are cached must not be changed."""

from __future__ import annotations

import functools
from typing import Any

from coach.core.jobs import actions as act
from coach.core.jobs.reasons import Reason
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec

BUDGET = {"amount": 0.05, "currency": "USD"}


@functools.cache
def steady_job() -> World:
    """A job with one allocation all along, and one epoch that did not count: what it does follows from no estimate."""
    started = 0

    def fault(_: act.RunEpoch) -> tuple[Reason, float] | None:
        nonlocal started
        started += 1
        return (Reason.PEER_LOST, 0.5) if started == 3 else None

    world = World.of(nodes(2, 4.0))
    policy = {"name": "static", "workers": 2, "servers": 1}
    world.submit(spec("steady", budget=BUDGET, policy=policy, target={"loss": 0.6}), FaultyDynamics(fault=fault))
    world.run()
    return world


def one_job(name: str = "digits", **changes: Any) -> World:
    """A job that has ended well."""
    world = World.of(nodes(2, 4.0))
    world.submit(spec(name, **{"budget": BUDGET, **changes}))
    world.run()
    return world


@functools.cache
def two_jobs() -> World:
    """Two jobs, one after its loss and one after its accuracy, that share a cluster; both have ended."""
    world = World.of(nodes(2, 4.0))
    world.submit(spec("digits", budget=BUDGET))
    world.submit(spec("pictures", target={"accuracy": 0.9}), FaultyDynamics(loss=lambda x: 1 / (0.1 * x + 0.5)))
    world.run()
    return world


@functools.cache
def faulty_job() -> World:
    """A job with two epochs that did not count, which used up its budget."""
    started = 0

    def fault(_: act.RunEpoch) -> tuple[Reason, float] | None:
        nonlocal started
        started += 1
        return (Reason.PEER_LOST, 0.5) if started in (3, 9) else None

    world = World.of(nodes(2, 4.0))
    dynamics = FaultyDynamics(fault=fault, loss=lambda x: 1 / (0.5 * x + 0.5) + 0.1)
    world.submit(spec("faulty", budget={"amount": 0.01, "currency": "USD"}, target={"loss": 0.15}), dynamics)
    world.run()
    return world


def half_way(epochs: int = 8, budget: float = 0.05) -> World:
    """Two jobs in the middle of training; `budget` in USD."""
    world = World.of(nodes(2, 4.0))
    world.submit(spec("digits", budget={"amount": budget, "currency": "USD"}))
    world.submit(spec("pictures", target={"accuracy": 0.9}), FaultyDynamics(loss=lambda x: 1 / (0.1 * x + 0.5)))
    world.run(
        until=lambda: len(world.job("digits").epochs) == epochs and world.job("digits").attempts.running is not None
    )
    return world


def pytorch_job(epochs: int | None = None) -> World:
    """A job without servers: that has ended well, or is in the middle of training."""
    world = World.of(nodes(2, 4.0))
    document = spec("torch", budget=BUDGET, framework="pytorch", workers={"min": 1, "max": 4})
    del document["spec"]["servers"]
    world.submit(document, FaultyDynamics(speed=lambda w, s: 0.1 * w / (1 + 0.15 * (w - 1))))
    job = world.job("torch")
    world.run(until=lambda: epochs is not None and len(job.epochs) == epochs and job.attempts.running is not None)
    return world
