"""One API server with Coach's kinds for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, api_server, served


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("api-server")) as started:
        for kind in ("trainingjob", "trainingbudget", "trainingsearch"):
            served(started.admin, yaml.safe_load((ROOT / f"deploy/chart/files/{kind}-crd.yaml").read_text()))
        yield started
