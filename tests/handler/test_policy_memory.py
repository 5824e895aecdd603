"""What a policy remembers of a job outlives the handler: it is journalled, and a new handler's policy takes it up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coach.core.cluster import Node, Resources
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.plugins import policy
from tests.core.lifecycle.faulty_cluster import spec
from tests.handler.fake_platform import FakePlatform

pytestmark = pytest.mark.standard

#: Three workers and a server are 3.6 of its cores, so a trial finds no room beside them.
NODE = Node("node-0", Resources(4.0, 16.0))


def best_effort(name: str) -> TrainingJob:
    return TrainingJob.from_json(
        spec(
            name,
            target={"loss": 0.12},
            maxEpochs=60,
            workers={"min": 3, "max": 3},
            servers={"min": 1, "max": 1},
        )
    )


def trial(name: str) -> TrainingJob:
    one = {"min": 1, "max": 1}
    return TrainingJob.from_json(spec(name, **{"class": "trial-and-error"}, maxEpochs=2, workers=one, servers=one))


def killed_after(path: Path, name: str, body: Callable[[Handler], Awaitable[None]]) -> dict[str, Job]:
    """A handler of a new policy until `body` has ended; then it dies without a word, and its functions with it."""
    memory = FakePlatform(nodes=(NODE,), epoch_seconds=0.01)

    async def main() -> dict[str, Job]:
        journal = Journal.write(path)
        handler = Handler(memory, journal, policy(name))
        await handler.__aenter__()
        try:
            await asyncio.wait_for(body(handler), 60)
            return dict(handler.jobs)
        finally:
            handler._loop.cancel()
            for task in handler._tasks:
                task.cancel()
            await asyncio.gather(handler._loop, *handler._tasks, return_exceptions=True)
            journal.close()

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["fitgpp", "lrtp", "rand"])
def test_a_job_that_was_preempted_as_often_as_it_may_be_is_not_preempted_again_after_a_restart(
    tmp_path: Path, name: str
) -> None:
    journal, checkpoints = tmp_path / "journal.db", tmp_path.as_uri()

    async def is_preempted(handler: Handler) -> None:
        handler.submit(best_effort("long"), checkpoints)
        await handler.wait(lambda: "long" in handler.jobs and len(handler.jobs["long"].epochs) >= 2)
        handler.submit(trial("first"), checkpoints)
        await handler.wait(lambda: "first" in handler.jobs and handler.jobs["first"].ended)

    before = killed_after(journal, name, is_preempted)
    assert not before["long"].ended
    assert before["long"].decision.policy_state["preempted"] == 1

    async def does_not_again(handler: Handler) -> None:
        done = len(handler.jobs["long"].epochs)
        await handler.wait(lambda: len(handler.jobs["long"].epochs) > done)
        handler.submit(trial("second"), checkpoints)
        await handler.wait(lambda: "second" in handler.jobs and handler.jobs["second"].ended)

    after = killed_after(journal, name, does_not_again)
    assert after["long"].decision.policy_state["preempted"] == 1
    assert after["long"].ended
    assert (after["second"].progress.started_at or 0.0) >= (after["long"].progress.ended_at or math.inf)


def test_specon_knows_after_a_restart_what_had_converged(tmp_path: Path) -> None:
    journal, checkpoints = tmp_path / "journal.db", tmp_path.as_uri()

    def category(handler: Handler) -> str:
        return str(handler.jobs["long"].decision.policy_state.get("category")) if "long" in handler.jobs else ""

    async def converges(handler: Handler) -> None:
        handler.submit(best_effort("long"), checkpoints)
        await handler.wait(lambda: category(handler) == "CC")

    # A sample after every epoch; the first two gains are more than alpha.
    before = killed_after(journal, "specon:alpha=0.05,interval=0.001", converges)["long"]
    assert not before.ended

    async def goes_on(handler: Handler) -> None:
        assert handler.jobs["long"].decision.policy_state == before.decision.policy_state
        done = len(handler.jobs["long"].epochs)
        await handler.wait(lambda: len(handler.jobs["long"].epochs) > done + 1)

    # With one that samples no more, what it remembers is what the earlier one knew.
    after = killed_after(journal, "specon:alpha=0.05,interval=100000", goes_on)["long"]
    assert after.decision.policy_state == before.decision.policy_state
