"""Every scenario: under Coach's host, under Nuclio's processor where it is given, and as last recorded."""

from pathlib import Path

import pytest

from tests.contract import record
from tests.contract.engine import NUCLIO, Engine
from tests.contract.page import render
from tests.contract.scenarios import Scenario
from tests.contract.scenarios_life import SCENARIOS

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_it_is_so(scenario: Scenario, engine: Engine, tmp_path: Path) -> None:
    assert scenario.run(engine, tmp_path / "run") == scenario.expected(engine)


@pytest.mark.parametrize("name", record.load()["facts"])
def test_it_was_so_under_nuclio(name: str) -> None:
    scenario = next((scenario for scenario in SCENARIOS if scenario.name == name), None)
    assert scenario is not None, "recorded, but no longer a scenario: record again"
    assert record.load()["facts"][name] == scenario.expected(NUCLIO)


def test_the_page_is_written_from_the_last_recorded_run() -> None:
    written = record.PAGE.read_text(encoding="utf-8")
    assert written == render(record.load()), "run python -m tests.contract.record --docs"
