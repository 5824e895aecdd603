"""One template and one gang of PyTorch functions for all tests here."""

from collections.abc import Iterator

import pytest

from tests.functions.hosting import Elastic, Gang, Template
from tests.functions.pytorch.test_elastic import OPTIMIZER, SAMPLES
from tests.functions.pytorch.test_training import MLP, epoch

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


@pytest.fixture
def group(gang: Gang) -> Elastic:
    return Elastic(gang)


@pytest.fixture(scope="module")
def undisturbed(warm_pytorch_gang: Gang, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """The report of one worker that trains the same in peace."""
    warm_pytorch_gang.fresh_group()
    message = epoch(tmp_path_factory.mktemp("plain"), text=MLP, samples=SAMPLES, optimizer=OPTIMIZER)
    yield warm_pytorch_gang.epoch(1, 0, **message)
    warm_pytorch_gang.stop()
