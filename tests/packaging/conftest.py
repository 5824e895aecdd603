"""One API server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.packaging.api_server import ApiServer, api_server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("cluster")) as server:
        yield server
