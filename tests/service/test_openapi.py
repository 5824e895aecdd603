"""The API's document is that of the code, and no request that it allows or forbids breaks the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

import coach
from coach.handler import endpoint
from coach.handler.endpoint import Endpoint
from coach.handler.state.state_directory import StateDirectory
from scripts.generate import openapi
from tests.cli.conftest import ROOT
from tests.service.conftest import job_text
from tests.service.test_api import ENDLESS
from tests.service.test_serve import served

pytestmark = pytest.mark.processes

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
]
#: Left out everywhere else (pyproject.toml): reading it takes as long as pytest itself.
pytest_plugins = ["schemathesis.pytest.plugin"]
#: It looks for MXNet and PyTorch, which takes seconds: it is asked once.
DOCTOR = "/api/v1/checks"
#: A stream has no end.
schema = schemathesis.openapi.from_path(ROOT / openapi.PAGE).exclude(path="/api/v1/stream")


def test_the_document_is_that_of_the_code() -> None:
    page = (ROOT / openapi.PAGE).read_text(encoding="utf-8")
    assert page == openapi.document(), "run: python -m scripts.generate"


def test_the_page_has_every_request_of_the_document() -> None:
    page = (ROOT / openapi.TABLE_PAGE).read_text(encoding="utf-8")
    assert openapi.page(page, openapi.document()) == page, "run: python -m scripts.generate"
    assert page.count("- `POST /api/v1/searches`:") == 1


def test_every_operation_has_a_method_of_both_clients() -> None:
    paths = json.loads(openapi.document())["paths"].values()
    operations = {one["operationId"] for path in paths for one in path.values()}
    for client in (coach.Client, coach.AsyncClient):
        assert operations <= set(dir(client))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A service with a job that runs and one that has ended. Requests wait only briefly."""
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "model.py").write_text("")
    home = StateDirectory(folder / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COACH_HOME", str(home.path))
        with served(folder, "1", "0.05") as running:
            found = endpoint.find(home)
            assert found is not None
            for text in (job_text("a", maxEpochs=100_000, **ENDLESS), job_text("b", maxEpochs=1)):
                body = {"files": [{"path": f"{folder}/job.yaml", "text": text}]}
                headers = {"Authorization": f"Bearer {found.token}"}
                assert (
                    httpx.post(f"{found.url}{endpoint.API}/jobs", json=body, headers=headers, timeout=60).status_code
                    == 201
                )
            yield found
            assert running.process.is_alive(), "it has survived"
            code, log = running.end(2)
    assert code == 0
    assert not [line for line in log if line["level"] in ("error", "critical")]
    assert not [line for line in log if found.token in str(line)] if found else True


@schema.exclude(path=DOCTOR).parametrize()
@settings(max_examples=2, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_documented(case: Any, service: Endpoint) -> None:
    case.call_and_validate(
        base_url=service.url, headers={"Authorization": f"Bearer {service.token}"}, checks=CHECKS, timeout=120
    )


def test_what_the_doctor_finds_is_as_documented(service: Endpoint) -> None:
    schema[DOCTOR]["GET"].Case().call_and_validate(
        base_url=service.url, headers={"Authorization": f"Bearer {service.token}"}, timeout=120,
        checks=[status_code_conformance, content_type_conformance, response_schema_conformance],
    )  # fmt: skip
