"""Both drivers, the live handler and the simulator, are fed the events of real runs: they do the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training.fidelity import Recorded
from coach.core.estimation.cost import USUAL_CALLS, USUAL_CALLS_PER_SECOND
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.platforms.base import Cluster
from coach.plugins import policy
from coach.simulation.dynamics.from_journal import learn
from coach.simulation.reducer_simulation import Driver
from tests.simulation.real_runs import JOURNALS, ONE_OF_EACH

pytestmark = pytest.mark.standard


class Fed(Handler):
    """The live handler without its I/O: the answers are those of the recording."""

    def _send(self, event: ev.Event) -> None:
        """Nothing but the recorded events counts."""

    def _carry_out(self, action: act.Action) -> None:
        """What came of it is recorded."""

    def feed(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            self._events.put_nowait(event)


class Nowhere:
    """A platform that is never asked for anything."""

    linger_seconds = 0.0
    programs_outlive = False
    places_pods = False

    async def open(self, _events: Any) -> Cluster:
        return Cluster(())

    async def close(self) -> None:
        return None


async def live(events: Sequence[ev.Event], path: Path) -> list[act.Action]:
    taken: list[act.Action] = []
    journal = Journal.write(path)
    async with Fed(Nowhere(), journal, policy("coach")) as handler:  # type: ignore[arg-type]
        left = len(events)

        def observe(_event: ev.Event, actions: Sequence[act.Action]) -> None:
            nonlocal left
            left -= 1
            taken.extend(actions)

        handler.observers.append(observe)
        handler.feed(events)
        await handler.wait(lambda: left == 0)
    written = [record for _, record in journal.records()]
    journal.close()
    assert [record for record in written if isinstance(record, act.Action)] == taken
    return taken


def simulated(recorded: Recorded, events: Sequence[ev.Event]) -> list[act.Action]:
    first, *others = events
    assert isinstance(first, ev.HandlerStarted)
    records: list[Any] = []
    driver = Driver(first.nodes, policy("coach"), journal=records.append, begin=first.at)
    driver.dynamics.update({name: learn([run]) for name, run in recorded.runs.items()})
    for event in others:
        driver.now = max(driver.now, event.at)
        driver.send(event)
    return [record for record in records if isinstance(record, act.Action)]


@pytest.mark.parametrize("recorded", ONE_OF_EACH)
def test_the_live_handler_and_the_simulator_do_the_same(recorded: Recorded, tmp_path: Path) -> None:
    events = [record for record in recorded.records if isinstance(record, ev.Event)]
    ours = asyncio.run(live(events, tmp_path / "journal.db"))
    assert len(ours) > 20
    assert simulated(recorded, events) == ours


@pytest.mark.parametrize("recorded", JOURNALS, ids=lambda recorded: recorded.name)
def test_epochs_take_about_as_many_calls_as_predictions_of_cost_have(recorded: Recorded) -> None:
    orders = {each.token: each for each in recorded.records if isinstance(each, act.RunEpoch)}
    done = [each for each in recorded.records if isinstance(each, ev.EpochFinished)]
    expected = sum(
        len(orders[each.token].pods) * (USUAL_CALLS + USUAL_CALLS_PER_SECOND * (each.at - orders[each.token].at))
        for each in done
    )
    assert expected == pytest.approx(sum(each.invocations for each in done), rel=0.2)
