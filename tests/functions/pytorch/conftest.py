"""One template and one gang of PyTorch functions for all tests here."""

from collections.abc import Iterator

import pytest

from tests.functions.hosting import Gang, Template

FRAMEWORK = {"COACH_FRAMEWORK": "pytorch"}


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
