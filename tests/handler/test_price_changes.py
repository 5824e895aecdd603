"""A handler follows the prices of the offers that its jobs are billed by."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coach.core.jobs import events as ev
from coach.core.jobs import fold
from coach.core.spec.job import TrainingJob
from coach.handler import handler as handler_module
from coach.handler.handler import Handler
from coach.handler.price_changes import changed
from coach.handler.state.journal import Journal
from coach.jobfiles.prices import prices_of
from coach.plugins import policy
from tests.core.lifecycle.faulty_cluster import spec
from tests.handler.fake_platform import FakePlatform

HEAD = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region\n"


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COACH_CATALOGS", str(tmp_path / "catalogs"))
    file = tmp_path / "catalogs/mine/vms.csv"
    file.parent.mkdir(parents=True)
    file.write_text(f"{HEAD}big,,,16,64,8.0,,north\n")
    return file


def test_a_changed_price_becomes_a_record_and_the_jobs_price(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_module, "LOOK_SECONDS", 0.05)

    async def main() -> list[ev.PricesChanged]:
        journal = Journal.write(tmp_path / "journal.db")
        try:
            async with Handler(FakePlatform(), journal, policy("coach")) as handler:
                content = spec("a", maxEpochs=10_000, target={"loss": 0.0001}, prices=prices_of("mine/big:hour"))
                handler.submit(TrainingJob.from_json(content), tmp_path.as_uri())
                await asyncio.wait_for(handler.wait(lambda: "a" in handler.jobs), 60)
                assert handler.jobs["a"].price_book.instance.hour == 8.0
                catalogue.write_text(f"{HEAD}big,,,16,64,12.5,,north\n")
                new = handler.wait(lambda: handler.jobs["a"].price_book.instance.hour == 12.5)
                await asyncio.wait_for(new, 60)
                handler.cancel("a")
                await asyncio.wait_for(handler.wait(lambda: handler.jobs["a"].ended), 60)
            return [record for _, record in journal.records() if isinstance(record, ev.PricesChanged)]
        finally:
            journal.close()

    (record,) = asyncio.run(main())
    assert record.why == "mine/big:hour costs 12.5 USD an hour, it was 8"
    assert record.prices["instance"] == {"hour": 12.5, "cpu": "16000m", "memory": "65536Mi", "gpu": 0, "whole": True,
                                         "byHour": True}  # fmt: skip


@pytest.mark.parametrize("line", ["", "big,,,32,64,9.0,,north\n", "other,,,16,64,1.0,,north\n"])
def test_an_offer_that_is_gone_or_another_machine_now_keeps_its_price(catalogue: Path, line: str) -> None:
    content = spec("a", prices=prices_of("mine/big"))
    submitted = ev.JobSubmitted(0.0, "a", TrainingJob.from_json(content).to_json(), "")
    job = fold.submitted(submitted)
    assert list(changed([job])) == []
    catalogue.write_text(f"{HEAD}{line}")
    assert list(changed([job])) == []
    catalogue.write_text(f"{HEAD}big,,,16,64,9.0,,north\n")
    assert [name for name, _, _ in changed([job])] == ["a"]
