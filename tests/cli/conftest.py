"""A state folder of its own for each test, and journals that hold jobs of virtual time."""

import os
from pathlib import Path

import pytest

from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.core.lifecycle.faulty_cluster import World
from tests.one_template import lasting_template, one_template  # noqa: F401 - fixtures
from tests.report.conftest import greenwich  # noqa: F401 - a fixture
from tests.required import missing

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDirectory:
    """An empty state folder; commands find it by COACH_HOME."""
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")
    return StateDirectory(tmp_path / "home")


def keep(home: StateDirectory, world: World, number: int = 1) -> None:
    """Write what happened in `world` into a journal of `home`."""
    journal = Journal.write(home.journal(number))
    journal.append(world.history)
    journal.close()


@pytest.fixture(scope="session")
def functions() -> None:
    """Skips where the functions' Python is not there, unless everything is required."""
    if not (ROOT / ".venv-functions/bin/python").exists() and "COACH_FUNCTIONS_PYTHON" not in os.environ:
        missing("no Python for the functions: make setup")
