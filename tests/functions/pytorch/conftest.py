"""One template and one gang of PyTorch functions for all tests here; skipped where no torch was found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.functions.hosting import PYTORCH_PYTHON, Gang, Template

FRAMEWORK = {"COACH_FRAMEWORK": "pytorch"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if Path(PYTORCH_PYTHON).exists():
        return
    skip = pytest.mark.skip(reason=f"no Python with torch at {PYTORCH_PYTHON}; make setup FRAMEWORK=pytorch")
    for item in items:
        if item.get_closest_marker("pytorch"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def pytorch_template(mark: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    running = Template(tmp_path_factory.mktemp("template") / "t.sock", COACH_TEST_MARK=mark, **FRAMEWORK)
    yield running
    running.close()


@pytest.fixture(scope="session")
def warm_pytorch_gang(pytorch_template: Template, mark: str) -> Iterator[Gang]:
    path = str(pytorch_template.path)
    gang = Gang(3, 0, network=31, COACH_ZYGOTE_TEMPLATE=path, COACH_TEST_MARK=mark, **FRAMEWORK)
    yield gang
    gang.close()


@pytest.fixture
def gang(warm_pytorch_gang: Gang) -> Iterator[Gang]:
    """Three workers and no server, without a group."""
    warm_pytorch_gang.fresh_group()
    yield warm_pytorch_gang
    warm_pytorch_gang.stop()
