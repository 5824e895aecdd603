"""TrainingJobs on a real API server, reconciled with a real service on a platform in memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.cli import main
from coach.controller.controller import Controller
from coach.core.cluster import Node, Resources
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.kubernetes_api.client import Api
from coach.service.operations import Service
from tests.core.lifecycle.faulty_cluster import SPEC
from tests.handler.fake_platform import FakePlatform
from tests.packaging.api_server import ApiServer
from tests.service.conftest import running

pytestmark = pytest.mark.processes

EVENTS = "/api/v1/namespaces/default/events"
JOBS = "/apis/coach.dev/v1alpha1/namespaces/default/trainingjobs"


class Cluster:
    """The TrainingJobs as a user sees and changes them."""

    path = JOBS

    def __init__(self, server: ApiServer) -> None:
        self._http = server.admin.http

    async def ask(self, method: str, name: str = "", body: Any = None) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        path = f"{self.path}/{name}" if name else self.path
        answer = await asyncio.to_thread(self._http.request, method, path, json=body, headers={"content-type": kind})
        return answer.json()

    async def apply(self, name: str, folder: Path, **spec: Any) -> None:
        model = folder / "net.py"
        model.write_text("def net(): ...\n")
        whole = {**SPEC["spec"], "model": {"file": str(model)}, "maxEpochs": 4, **spec}
        made = await self.ask("POST", body={**SPEC, "metadata": {"name": name}, "spec": whole})
        assert made.get("metadata", {}).get("uid"), made

    async def until(self, name: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The status of a job once `done` holds of it."""
        status: dict[str, Any] = {}
        try:
            async with asyncio.timeout(120):
                while True:
                    status = (await self.ask("GET", name)).get("status", {})
                    if isinstance(status, dict) and done(status):
                        return status
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"{name}: {status}")

    async def events(self, name: str) -> list[dict[str, Any]]:
        """What `kubectl events` shows of a job; the last one comes just after its status."""
        async with asyncio.timeout(120):
            while True:
                found = (await asyncio.to_thread(self._http.get, EVENTS)).json()["items"]
                found = [event for event in found if event["involvedObject"]["name"] == name]
                found.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
                status = (await self.ask("GET", name))["status"]
                if found and found[-1]["message"].startswith(status["state"]):
                    return found
                await asyncio.sleep(0.05)

    async def gone(self, name: str) -> None:
        async with asyncio.timeout(120):
            while (await self.ask("GET", name)).get("kind") != "Status":
                await asyncio.sleep(0.05)


@pytest.fixture
def reconciled(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a controller for the length of a test's body."""
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))

    def run(body: Callable[[Cluster, FakePlatform, Service], Awaitable[None]], platform: FakePlatform) -> None:
        async def main() -> None:
            cluster = Cluster(server)
            async with running(StateDirectory(tmp_path / "home"), platform, [tmp_path]) as service:
                controller = Controller(Api.connect, service.service, [tmp_path])
                task = asyncio.create_task(controller.run())
                try:
                    await body(cluster, platform, service.service)
                finally:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

        asyncio.run(main())

    return run


def holds(status: dict[str, Any]) -> dict[str, bool]:
    return {one["type"]: one["status"] == "True" for one in status["conditions"]}


def test_an_applied_job_runs_and_its_status_says_how(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("run", tmp_path)
        status = await cluster.until("run", lambda status: bool(status.get("completionTime")))
        job = service.jobs["run"]
        assert status["state"] == job.state.value and status["epochs"] == job.full_epoch_count
        assert holds(status)["Complete"] != holds(status)["Failed"]
        assert status["observedGeneration"] == 1 and status["target"].startswith("loss ")
        noted = await cluster.events("run")
        assert noted[-1]["reason"] == status["reason"] and status["message"] in noted[-1]["message"]
        assert {event["reason"] for event in noted} >= {"TrainingEpoch"}
        await cluster.ask("DELETE", "run")
        await cluster.gone("run")

    reconciled(body, FakePlatform(epoch_seconds=0.01))


def test_an_applied_job_names_an_offer_and_is_billed_by_it(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("priced", tmp_path, prices="nebius/cpu-d3_16vcpu-64gb@eu-north1:hour")
        await cluster.until("priced", lambda status: bool(status.get("completionTime")))
        job = service.jobs["priced"]
        assert job.spec.prices.offer == "nebius/cpu-d3_16vcpu-64gb@eu-north1:hour"
        assert job.money.ledger.spent == 396_800_000, "one machine for an hour begun"
        await cluster.apply("unpriced", tmp_path, prices="nebius/cpu-d3_16vcpu-65gb")
        status = await cluster.until("unpriced", lambda status: bool(status.get("message")))
        assert "no such offer" in status["message"] and "did you mean nebius/cpu-d3_16vcpu-64gb" in status["message"]
        for name in ("priced", "unpriced"):
            await cluster.ask("DELETE", name)
            await cluster.gone(name)

    reconciled(body, FakePlatform(epoch_seconds=0.01))


def test_files_beside_the_model_file_travel_with_a_job_that_is_submitted(reconciled: Any, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    files = {"parts.py": "from lib import nets\n", "lib/nets.py": "net = 1\n"}
    for name, text in {"model.py": "import parts\n", **files}.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    spec = {**SPEC["spec"], "model": {"file": "model.py"}, "maxEpochs": 1}
    (folder / "job.yaml").write_text(yaml.safe_dump({**SPEC, "metadata": {"name": "beside"}, "spec": spec}))

    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        assert await asyncio.to_thread(main.invoke, ["--namespace", "default", "submit", str(folder / "job.yaml")]) == 0
        await cluster.until("beside", lambda status: bool(status.get("completionTime")))
        model = service.jobs["beside"].job_file.spec.model
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
        there = Path(model.file.removeprefix("file://")).parent
        assert model.files == hashes and not there.is_relative_to(folder)
        assert {name: (there / name).read_text() for name in files} == files
        await cluster.ask("DELETE", "beside")
        await cluster.gone("beside")

    reconciled(body, FakePlatform(epoch_seconds=0.01))


def test_a_job_that_was_deleted_and_applied_again_is_another_one(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        for _ in range(2):
            await cluster.apply("again", tmp_path)
            await cluster.until("again", lambda status: bool(status.get("completionTime")))
            await cluster.ask("DELETE", "again")
            await cluster.gone("again")
        assert list(service.jobs) == ["again", "again-2"]

    reconciled(body, FakePlatform(epoch_seconds=0.01))


def test_deleting_a_running_job_cancels_it_first(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("long", tmp_path)
        await cluster.until("long", lambda status: status.get("state") in ("Probing", "Training"))
        await cluster.ask("DELETE", "long")
        await cluster.gone("long")
        assert service.jobs["long"].state.value == "Cancelled" and not platform.pods

    reconciled(body, FakePlatform(epoch_seconds=600.0))


def test_suspend_and_resume(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("rest", tmp_path, suspend=True, maxEpochs=100, target={"loss": 0.001})
        status = await cluster.until("rest", bool)
        assert status["reason"] == "Suspended" and holds(status) == {"Suspended": True}
        assert not service.jobs
        await cluster.ask("PATCH", "rest", {"spec": {"suspend": False}})
        await cluster.until("rest", lambda status: status.get("epochs", 0) >= 1)
        await cluster.ask("PATCH", "rest", {"spec": {"suspend": True}})
        status = await cluster.until("rest", lambda status: holds(status)["Suspended"])
        assert status["state"] == "Waiting" and not platform.pods
        await cluster.ask("PATCH", "rest", {"spec": {"suspend": False}})
        await cluster.until("rest", lambda after: after["epochs"] > status["epochs"])
        await cluster.ask("DELETE", "rest")
        await cluster.gone("rest")

    reconciled(body, FakePlatform(epoch_seconds=0.2))


def test_a_larger_budget_lets_a_job_without_money_go_on(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("poor", tmp_path, budget={"amount": 0.00001, "currency": "USD"})
        status = await cluster.until("poor", lambda status: bool(status.get("completionTime")))
        assert status["state"] == "BudgetExhausted" and holds(status)["Failed"]
        assert [one["reason"] for one in status["conditions"] if one["type"] == "Failed"] == ["BudgetExhausted"]
        await cluster.ask("PATCH", "poor", {"spec": {"budget": {"amount": 5}}})
        status = await cluster.until("poor", lambda status: status.get("epochs", 0) >= 1)
        assert status["budget"] == "5.00 USD"
        await cluster.until("poor", lambda status: bool(status.get("completionTime")))
        await cluster.ask("DELETE", "poor")

    reconciled(body, FakePlatform(epoch_seconds=0.01))


def test_a_priority_that_was_changed_counts_from_the_next_decision_on(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("urgent", tmp_path)
        await cluster.until("urgent", lambda status: status.get("state") in ("Probing", "Training"))
        assert service.job("urgent").spec.priority == 0
        await cluster.ask("PATCH", "urgent", {"spec": {"priority": 7}})
        async with asyncio.timeout(120):
            while service.row("urgent").priority != 7:
                await asyncio.sleep(0.01)
        await cluster.ask("DELETE", "urgent")
        await cluster.gone("urgent")

    reconciled(body, FakePlatform(epoch_seconds=600.0))


def test_a_job_that_waits_has_its_expected_start_until_it_starts(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("first", tmp_path, timeLimit="1h")
        await cluster.until("first", lambda status: status.get("state") in ("Probing", "Training"))
        await cluster.apply("second", tmp_path, timeLimit="1h")
        status = await cluster.until("second", lambda status: "expectedStart" in status)
        start = status["expectedStart"]
        assert status["state"] == "Waiting"
        assert start["earliest"] <= start["expected"] <= start["latest"]
        assert "expectedStart" not in (await cluster.ask("GET", "first"))["status"]
        await cluster.ask("DELETE", "first")
        await cluster.until("second", lambda status: status["state"] != "Waiting" and "expectedStart" not in status)
        await cluster.ask("DELETE", "second")
        await cluster.gone("second")

    reconciled(body, FakePlatform(nodes=(Node("node-0", Resources(1.7, 16.0)),), epoch_seconds=600.0))


def test_what_the_api_server_cannot_see_is_refused_in_the_words_of_validate(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("wrong", tmp_path, model={"file": "/etc/passwd"})
        status = await cluster.until("wrong", bool)
        assert holds(status) == {"Failed": True} and status["reason"] == "Invalid"
        assert status["message"].startswith('spec.model.file: outside of what is allowed ("/etc/passwd")')
        await cluster.apply("at-odds", tmp_path, mode="async", clip={"norm": 1})
        status = await cluster.until("at-odds", bool)
        assert status["message"].startswith("spec.clip: not in asynchronous mode")
        assert not service.jobs
        for name in ("wrong", "at-odds"):
            await cluster.ask("DELETE", name)
            await cluster.gone(name)

    reconciled(body, FakePlatform())


def test_labels_that_name_another_job_change_nothing_of_it(reconciled: Any, tmp_path: Path) -> None:
    async def body(cluster: Cluster, platform: FakePlatform, service: Service) -> None:
        await cluster.apply("mine", tmp_path)
        mine = await cluster.ask("GET", "mine")
        names = {"trainingjob-uid": mine["metadata"]["uid"], "trainingjob": "mine", "job": "mine", "index": "0"}
        labels = {f"coach.dev/{key}": value for key, value in names.items()}
        await cluster.ask("POST", body={**mine, "metadata": {"name": "theirs", "labels": labels}})
        for name in ("mine", "theirs"):
            await cluster.until(name, lambda status: bool(status.get("workers")))
        await cluster.ask("PATCH", "theirs", {"spec": {"priority": 7}})
        await cluster.ask("DELETE", "theirs")
        await cluster.gone("theirs")
        job = service.jobs["mine"]
        assert not job.ended and not job.stop.cancel and job.spec.priority == 0 and service.jobs["theirs"].ended
        await cluster.ask("DELETE", "mine")
        await cluster.gone("mine")

    reconciled(body, FakePlatform(epoch_seconds=3600.0))
