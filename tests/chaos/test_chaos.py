"""A short chaos run; `make chaos N=100 SEED=1` is the long one, and results/chaos says how many runs there were."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.chaos import runs
from tests.chaos.draw import Fault, Instant, Victim
from tests.chaos.stage import Outcome, Stage

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(600)]

FAULTS = [
    Fault(Victim.WORKER, "SIGKILL", Instant.TRAINING, "worker", 3, 0.4),
    Fault(Victim.HANDLER, "SIGKILL", Instant.EVALUATING, "worker", 3, 0.5),
]
MORE = [
    Fault(Victim.SERVER, "SIGSTOP", Instant.TRAINING, "server", 3, 0.6),
    Fault(Victim.SCHEDULER, "SIGKILL", Instant.PROBING, "scheduler", 1, 0.3),
    Fault(Victim.FUNCTION, "SIGSTOP", Instant.SETTLING, "worker", 2, 0.5),
    Fault(Victim.FUNCTION, "SIGKILL", Instant.STARTING, "server", 1, 0.9),
    Fault(Victim.ZYGOTE, "SIGKILL", Instant.FORMING, "worker", 1, 0.5),
]


@pytest.mark.full
@pytest.mark.parametrize("faults", [FAULTS, MORE], ids=["two", "more"])
def test_a_process_that_is_hit_at_any_instant_costs_an_epoch_at_most(faults: list[Fault]) -> None:
    async def main() -> list[Outcome]:
        async with Stage.open() as stage:
            started = [
                runs.run_with(fault, stage)
                if fault.victim is Victim.HANDLER
                else stage.run_with(f"run-{number}", fault)
                for number, fault in enumerate(faults)
            ]
            free = asyncio.Semaphore(3)

            async def one(run: Coroutine[Any, Any, Outcome]) -> Outcome:
                async with free:
                    return await run

            return await asyncio.gather(*(one(run) for run in started))

    outcomes = asyncio.run(main())
    assert [(outcome.lost, bool(outcome.struck)) for outcome in outcomes] == [([], True)] * len(outcomes)
