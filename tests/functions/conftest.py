"""Functions run in their own environment: tests host them as processes, and import only what is framework-free."""

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "functions"))

from tests.functions.hosting import PYTHON, Gang, Template, living


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if Path(PYTHON).exists():
        return
    skip = pytest.mark.skip(reason=f"no functions environment at {PYTHON}; set COACH_FUNCTIONS_PYTHON")
    for item in items:
        if item.get_closest_marker("mxnet"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def mark() -> Iterator[str]:
    """In the environment of every process of this run, so that those left behind can be found.

    All templates are closed when this ends, whichever framework's tests came first.
    """
    made = uuid.uuid4().hex
    yield made
    until = time.monotonic() + 30
    while (left := living(made)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, f"processes left behind: {left}"


@pytest.fixture(scope="session")
def template(mark: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """One process that has imported MXNet, for all zygotes of this run."""
    running = Template(tmp_path_factory.mktemp("template") / "t.sock", COACH_TEST_MARK=mark)
    yield running
    running.close()


@pytest.fixture(scope="session")
def warm_gang(template: Template, mark: str) -> Iterator[Gang]:
    gang = Gang(2, 2, COACH_ZYGOTE_TEMPLATE=str(template.path), COACH_TEST_MARK=mark)
    yield gang
    gang.close()


@pytest.fixture
def gang(warm_gang: Gang) -> Iterator[Gang]:
    """Two workers and two servers, without a group."""
    warm_gang.fresh_group()
    yield warm_gang
    warm_gang.stop()


@pytest.fixture
def python() -> str:
    return PYTHON


def run_python(code: str) -> str:
    """What a snippet prints in the functions' environment."""
    result = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout
