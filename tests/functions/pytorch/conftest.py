"""One template and one gang of PyTorch functions for all tests here; skipped where no torch was found."""

import os
from collections.abc import Iterator

import pytest

from coach.core.errors import PermanentError
from coach.platforms.local import pytorch_runtime
from tests.functions.hosting import Gang, Template

FRAMEWORK = {"COACH_FRAMEWORK": "pytorch"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.get_closest_marker("pytorch")]
    if not mine or os.environ.get("COACH_REQUIRE_ALL") == "1":
        return
    try:
        pytorch_runtime.torch()
    except PermanentError as error:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=str(error)))


@pytest.fixture(scope="session")
def pytorch_template(mark: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    running = Template(tmp_path_factory.mktemp("template") / "t.sock", COACH_TEST_MARK=mark, **FRAMEWORK)
    yield running
    running.close()


@pytest.fixture(scope="session")
def warm_pytorch_gang(pytorch_template: Template, mark: str) -> Iterator[Gang]:
    path = str(pytorch_template.path)
    gang = Gang(3, 2, network=31, COACH_ZYGOTE_TEMPLATE=path, COACH_TEST_MARK=mark, **FRAMEWORK)
    yield gang
    gang.close()


@pytest.fixture
def gang(warm_pytorch_gang: Gang) -> Iterator[Gang]:
    """Three workers and two servers, without a group."""
    warm_pytorch_gang.fresh_group()
    yield warm_pytorch_gang
    warm_pytorch_gang.stop()
