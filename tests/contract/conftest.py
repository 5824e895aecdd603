"""Fixtures of the contract suite: the engines, and one running function for all cases with equal settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import table
from tests.contract.engine import FUNCTIONS_PYTHON, HOST, NUCLIO, SPARE, Engine, Running, real_missing
from tests.required import missing


@pytest.fixture(scope="session", autouse=True)
def functions_python() -> None:
    """Functions need a Python with nuclio_sdk; without one the suite cannot run."""
    if not FUNCTIONS_PYTHON.exists():
        missing(
            f"{FUNCTIONS_PYTHON} does not exist: make the functions' environment, or set COACH_FUNCTIONS_PYTHON"
        )


@pytest.fixture(scope="session", params=[HOST, SPARE, NUCLIO], ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Coach's host always; Nuclio's processor, which no registry has, only where it was given."""
    chosen: Engine = request.param
    if chosen.real and (absent := real_missing()):
        pytest.skip(absent)
    return chosen


class Functions:
    """Starts the functions of the table when a case first needs them."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._running: dict[str, Running] = {}

    def get(self, case: table.Case) -> Running:
        running = self._running.get(case.host)
        if running is None or running.process.poll() is not None:
            folder = self._folder / f"function{len(self._running)}"
            running = self._engine.start(folder, table.source(case.host), **case.config)
            self._running[case.host] = running
            running.wait_ready()
        return running

    def close(self) -> None:
        for running in self._running.values():
            running.__exit__()


@pytest.fixture(scope="session")
def functions(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Functions]:
    made = Functions(engine, tmp_path_factory.mktemp(engine.name))
    try:
        yield made
    finally:
        made.close()
