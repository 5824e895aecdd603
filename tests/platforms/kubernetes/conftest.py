"""One API server with gangs and two nodes for the tests of this folder that need no controllers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, api_server, served


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("api-server")) as started:
        served(started.admin, yaml.safe_load((ROOT / "deploy/chart/files/gang-crd.yaml").read_text()))
        for name in ("n1", "n2"):
            started.admin.create("/api/v1/nodes", {"metadata": {"name": name}})
        yield started
