"""A policy whose decisions take too long gives way to its fallback; the journal says when."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.lifecycle.reducer import Reducer
from coach.core.spec.job import TrainingJob
from coach.handler.handler import SLOW_DECISIONS, Handler
from coach.handler.state.codec import EVENTS, Record
from coach.handler.state.journal import Journal
from coach.plugins import policy
from tests.core.lifecycle.faulty_cluster import spec
from tests.handler.fake_platform import FakePlatform


def run(path: Path, name: str, *jobs: str) -> list[Record]:
    """Run jobs to their ends; the whole journal."""

    async def main() -> list[Record]:
        journal = Journal.write(path)
        try:
            async with Handler(FakePlatform(), journal, policy(name)) as handler:
                for job in jobs:
                    handler.submit(TrainingJob.from_json(spec(job, maxEpochs=12)), path.parent.as_uri())
                ended = handler.wait(lambda: all(job in handler.jobs and handler.jobs[job].ended for job in jobs))
                await asyncio.wait_for(ended, 60)
            return [record for _, record in journal.records()]
        finally:
            journal.close()

    return asyncio.run(main())


def reasons(records: list[Record]) -> list[set[str]]:
    """Those of each decision of the policy."""
    chosen = [record for record in records if isinstance(record, act.SetAllocation) and record.kind is EpochKind.FULL]
    return [{step.reason for step in record.why} for record in chosen]


def test_after_slow_decisions_in_a_row_the_fallback_decides_until_the_handler_starts_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    records = run(path, "dl2:slow_after=0", "a")
    learned, slow = {"learned"}, {"fallback, too slow"}
    found = reasons(records)
    assert found[:SLOW_DECISIONS] == [learned] * SLOW_DECISIONS
    assert found[-1] == slow
    assert found.count(learned) + found.count(slow) == len(found)
    (said,) = (record for record in records if isinstance(record, ev.PolicySlow))
    assert said.policy == "dl2:slow_after=0"
    assert said.seconds > 0
    again = run(path, "dl2:slow_after=0", "b")[len(records) :]
    assert reasons(again)[0] == learned
    assert reasons(again)[-1] == slow


def test_the_events_alone_give_the_same_decisions(tmp_path: Path) -> None:
    records = run(tmp_path / "journal.db", "dl2:slow_after=0", "a", "b")
    reducer = Reducer(policy("dl2:slow_after=0"))
    again: list[Record] = []
    for record in records:
        if type(record).__name__ in EVENTS:
            again += [record, *reducer.react(record)]  # type: ignore[arg-type]
    assert again == records


def test_a_patient_policy_or_one_without_a_fallback_goes_on(tmp_path: Path) -> None:
    for name in ("dl2:slow_after=1000", "drf"):
        records = run(tmp_path / f"{name}.db", name, "a")
        assert not any(isinstance(record, ev.PolicySlow) for record in records)
