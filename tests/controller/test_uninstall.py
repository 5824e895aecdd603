"""What `helm uninstall` runs first, on a real API server; tests/kubernetes runs it with a handler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coach.controller.reconcile import FINALIZER
from coach.controller.uninstall import end_all, let_go
from coach.platforms.kubernetes_api.client import Api
from tests.core.lifecycle.faulty_cluster import SPEC
from tests.packaging.api_server import ApiServer

pytestmark = pytest.mark.processes

JOBS = "/apis/coach.dev/v1alpha1/namespaces/{}/trainingjobs"


def test_jobs_that_no_handler_releases_do_not_stay(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    held: dict[str, Any] = {"name": "held", "finalizers": [FINALIZER]}
    jobs = JOBS.format("released")
    server.admin.create("/api/v1/namespaces", {"metadata": {"name": "released"}})
    for metadata in ({"name": "free"}, held):
        server.admin.create(jobs, {**SPEC, "metadata": metadata})

    async def body() -> None:
        async with await Api.connect(namespace="released") as api:
            assert await end_all(api, seconds=1.0) == ["held"]
            assert await end_all(api, seconds=1.0) == []

    asyncio.run(body())
    assert server.admin.get(jobs)["items"] == []


def test_a_namespace_that_is_deleted_is_not_held_back(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    admin, jobs = server.admin, JOBS.format("leaving")
    admin.create("/api/v1/namespaces", {"metadata": {"name": "leaving"}})
    admin.create(jobs, {**SPEC, "metadata": {"name": "held", "finalizers": [FINALIZER]}})

    async def body() -> None:
        async with await Api.connect(namespace="leaving") as api:
            await let_go(api)
            assert admin.get(f"{jobs}/held")["metadata"]["finalizers"] == [FINALIZER], "the namespace stays"
            assert admin.http.delete("/api/v1/namespaces/leaving").status_code == 200
            await let_go(api)
            assert "finalizers" not in admin.get(f"{jobs}/held")["metadata"]

    asyncio.run(body())
