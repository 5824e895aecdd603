"""A short chaos run; `make chaos N=100 SEED=1` is the long one, and results/chaos says how many lives there were."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.draw import Blow, Instant, Victim
from tests.chaos.stage import Outcome, Stage

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(300)]

BLOWS = [
    Blow(Victim.WORKER, "SIGKILL", Instant.TRAINING, "worker", 3, 0.4),
]


def test_a_process_that_is_hit_at_any_instant_costs_an_epoch_at_most() -> None:
    async def main() -> list[Outcome]:
        async with Stage.open() as stage:
            return [await stage.live(f"life-{number}", blow) for number, blow in enumerate(BLOWS)]

    outcomes = asyncio.run(main())
    assert [(outcome.lost, bool(outcome.struck)) for outcome in outcomes] == [([], True)] * len(BLOWS)
