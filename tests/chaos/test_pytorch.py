"""Faults of a PyTorch job's processes; `make chaos N=100 SEED=1 FRAMEWORK=pytorch` is the long run."""

from __future__ import annotations

import asyncio

import pytest

from coach.core.spec.training import Framework
from tests.chaos.draw import Fault, Instant, Victim
from tests.chaos.stage import Outcome, Stage

pytestmark = [pytest.mark.pytorch, pytest.mark.timeout(300)]


def test_pytorch_workers_survive_each_other_at_any_instant() -> None:
    faults = [
        Fault(Victim.WORKER, "SIGKILL", Instant.TRAINING, "worker", 3, 0.4),
        Fault(Victim.FUNCTION, "SIGKILL", Instant.FORMING, "worker", 1, 0.5),
        Fault(Victim.WORKER, "SIGSTOP", Instant.TRAINING, "worker", 2, 0.3),
    ]

    async def main() -> list[Outcome]:
        async with Stage.open(Framework.PYTORCH) as stage:
            return [await stage.run_with(f"run-{number}", fault) for number, fault in enumerate(faults)]

    outcomes = asyncio.run(main())
    assert [(outcome.lost, bool(outcome.struck)) for outcome in outcomes] == [([], True)] * len(faults)
    repeated = [outcome.attempts - outcome.epochs for outcome in outcomes]
    assert repeated[0] == repeated[2] == 0, "a lost worker costs no attempt"
