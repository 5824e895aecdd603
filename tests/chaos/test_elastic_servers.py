"""Faults of a job with elastic parameter servers; `make chaos N=100 SEED=1 SERVERS=elastic` is the long run."""

from __future__ import annotations

import asyncio

import pytest

from coach.core.spec.training import ParameterServer
from tests.chaos.draw import Fault, Instant, Victim
from tests.chaos.stage import Outcome, Stage

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(600)]


def test_workers_and_servers_survive_each_other_at_any_instant() -> None:
    faults = [
        Fault(Victim.WORKER, "SIGKILL", Instant.TRAINING, "worker", 3, 0.4),
        Fault(Victim.SERVER, "SIGKILL", Instant.TRAINING, "server", 2, 0.4),
    ]

    async def main() -> list[Outcome]:
        async with Stage.open(servers_are=ParameterServer.ELASTIC) as stage:
            return [await stage.run_with(f"run-{number}", fault) for number, fault in enumerate(faults)]

    outcomes = asyncio.run(main())
    assert [(outcome.lost, bool(outcome.struck)) for outcome in outcomes] == [([], True)] * len(faults)
    repeated = [outcome.attempts - outcome.epochs for outcome in outcomes]
    assert repeated == [0, 0], "a lost worker or server costs no attempt"
