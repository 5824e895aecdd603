"""One API server with the kinds of Nuclio, gangs, and a node, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, served
from tests.platforms.nuclio import controllers


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with controllers.api_server_with_nuclio(tmp_path_factory.mktemp("api-server")) as one:
        served(one.admin, yaml.safe_load((ROOT / "deploy/chart/files/gang-crd.yaml").read_text()))
        one.admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
        yield one
