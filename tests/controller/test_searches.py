"""TrainingSearches on a real API server, reconciled with a real service on a platform in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.cli import main
from coach.service.operations import Service
from tests.controller.test_controller import Cluster, holds, reconciled
from tests.handler.test_search import Rates
from tests.service.test_searches import document

pytestmark = pytest.mark.processes
__all__ = ["reconciled"]


class Searches(Cluster):
    """The TrainingSearches as a user sees and changes them."""

    path = "/apis/coach.dev/v1alpha1/namespaces/default/trainingsearches"

    async def make(self, name: str, folder: Path, **spec: Any) -> dict[str, Any]:
        (folder / "model.py").write_text("def net(): ...\n")
        found = document(**spec)
        found["metadata"] = {"name": name}
        found["spec"]["template"]["model"] = {"file": str(folder / "model.py")}
        made: dict[str, Any] = await self.ask("POST", body=found)
        return made


def test_a_search_goes_to_a_cluster_by_a_command(reconciled: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def net(): ...\n")
    found = document()
    found["spec"]["template"]["model"] = {"file": str(tmp_path / "model.py")}
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(found))

    async def body(_: Cluster, platform: Rates, service: Service) -> None:
        searches = Searches(server)
        words = ["--namespace", "default", "search", str(tmp_path / "search.yaml")]
        assert await asyncio.to_thread(main.invoke, words) == 0
        status = await searches.until(found["metadata"]["name"], complete)
        assert status["parameters"] == "optimizer.learningRate=0.1"
        await searches.ask("DELETE", found["metadata"]["name"])
        await searches.gone(found["metadata"]["name"])

    reconciled(body, Rates())


def complete(status: dict[str, Any]) -> bool:
    return bool(status.get("conditions")) and holds(status).get("Complete", False)


def test_an_applied_search_runs_and_its_status_has_the_best(reconciled: Any, server: Any, tmp_path: Path) -> None:
    async def body(_: Cluster, platform: Rates, service: Service) -> None:
        searches = Searches(server)
        made = await searches.make("rates", tmp_path, finalSeeds=2)
        assert made["metadata"].get("uid"), made
        status = await searches.until("rates", complete)
        row = service.searches.standing(next(service.searches.all()).definition).row()
        assert status["parameters"] == "optimizer.learningRate=0.1" and status["best"] == row.job
        assert status["trials"] == 4 and "with 2 other seeds" in status["value"] and status["value"].startswith("loss ")
        assert status["checkpoint"] == row.checkpoint and status["spent"].endswith(" USD") and holds(status)["Ready"]
        # It can be given more money, and nothing else of it changes.
        changed = await searches.ask("PATCH", "rates", {"spec": {"pruner": "none"}})
        assert "cannot change" in changed["message"]
        await searches.ask("PATCH", "rates", {"spec": {"budget": {"amount": 6.0}}})
        await searches.until("rates", lambda one: complete(one) and float(one["left"].split()[0]) > 5.5)
        await searches.ask("DELETE", "rates")
        await searches.gone("rates")
        # Applied again it is another search, with another name for its jobs.
        await searches.make("rates", tmp_path)
        again = await searches.until("rates", complete)
        assert again["best"].startswith("rates-2-")
        await searches.ask("DELETE", "rates")
        await searches.gone("rates")

    reconciled(body, Rates())


def test_a_search_that_is_deleted_stops_and_a_mistake_is_said(reconciled: Any, server: Any, tmp_path: Path) -> None:
    platform = Rates()
    platform.epoch_seconds = 60.0

    async def body(_: Cluster, platform: Rates, service: Service) -> None:
        searches = Searches(server)
        await searches.make("wrong", tmp_path, parameters={"optimiser.rate": "0.1,0.2"})
        status = await searches.until("wrong", lambda one: bool(one.get("conditions")))
        (ready,) = status["conditions"]
        assert ready["status"] == "False" and "optimiser" in ready["message"], ready
        refused = await searches.make("too-many", tmp_path, parallel=0)
        assert "parallel" in refused["message"]
        await searches.make("rates", tmp_path)
        await searches.until("rates", lambda one: one.get("trials") == 1)
        for name in ("rates", "wrong"):
            await searches.ask("DELETE", name)
            await searches.gone(name)
        async with asyncio.timeout(120):
            while service.jobs["rates-1"].gang.pods:
                await asyncio.sleep(0.05)
        assert service.jobs["rates-1"].stop.suspend

    reconciled(body, platform)
