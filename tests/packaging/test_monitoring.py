"""Rules, alerts and the dashboard ask for what the handler exports: its page of metrics is a real service's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coach.core.jobs.reasons import Reason
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.base import EpochError, EpochOrder
from tests.docs.pages import ROOT
from tests.handler.fake_platform import CLUSTER, FakePlatform
from tests.packaging.test_chart import rendered, with_helm
from tests.service.conftest import URL, running
from tests.service.test_api import ENDLESS

FILES = ROOT / "deploy/chart/files"
RULES = [rule for group in yaml.safe_load((FILES / "rules.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
#: Labels that Prometheus adds to what it scrapes.
ADDED = {"namespace", "le"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The series of a handler with an account, and a job that has trained, failed and waits; their labels."""
    home = StateDirectory(tmp_path_factory.mktemp("metrics") / "home")
    (home.path.parent / "model.py").write_text("def net(): ...\n")

    def fail(order: EpochOrder) -> None:
        raise EpochError(Reason.FUNCTION_LOST, "lost", 1)

    async def main() -> str:
        async with running(home, FakePlatform(nodes=CLUSTER)) as api:
            await api.ask("PUT", "/accounts/team", json={"amount": 5, "currency": "USD"})
            await api.submit("a", budget={"amount": 1, "currency": "USD"})
            await api.ended("a")
            await api.submit("b", **{**ENDLESS, "maxEpochs": 100_000, "budget": {"amount": 1, "currency": "USD"}})
            await api.until("b", lambda row: row["loss"] is not None)
            api.platform.on_epoch = fail
            await api.until("b", lambda row: row["state"] == "Waiting")
            return (await api.http.get(f"{URL}/metrics")).text

    page = asyncio.run(main())
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def selectors(expression: Any) -> Iterator[Any]:
    """The selectors of series in a parsed query, whatever they are in."""
    if isinstance(expression, promql.VectorSelector):
        yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (inner := getattr(expression, name, None)) is not None and not callable(inner):
            yield from selectors(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from selectors(inner)


def queries() -> list[tuple[str, str]]:
    """Every query, with its rule's or its panel's name."""
    of_rules = [(rule.get("record") or rule["alert"], rule["expr"]) for rule in RULES]
    return of_rules + [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize(("name", "query"), queries(), ids=lambda one: one[:40])
def test_every_query_names_a_series_that_the_handler_exports(
    exported: dict[str, set[str]], name: str, query: str
) -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    asked = list(selectors(promql.parse(query.replace("$namespace", ".*"))))
    assert asked
    for one in asked:
        assert one.name in exported.keys() | recorded, f"{name}: {one.name}"
        labels = {matcher.name for matcher in one.matchers.matchers} - ADDED
        assert labels <= exported.get(one.name, set()), f"{name}: {one.name} has no label {labels}"


def test_the_panels_are_where_no_other_is_and_ask_the_chosen_prometheus() -> None:
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in DASHBOARD["panels"]]
    cells = [(x + dx, y + dy) for x, y, w, h in places for dx in range(w) for dy in range(h)]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {"${datasource}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_every_reason_that_an_alert_leaves_out_is_one() -> None:
    (waits,) = [rule["expr"] for rule in RULES if rule.get("alert") == "CoachJobWaits"]
    (matcher,) = [one for found in selectors(promql.parse(waits)) for one in found.matchers.matchers]
    assert set(matcher.value.split("|")) <= {reason.value for reason in Reason}


def test_the_page_has_every_alert() -> None:
    page = (ROOT / "docs/reference/kubernetes.md").read_text()
    assert [rule["alert"] for rule in RULES if "alert" in rule and f"`{rule['alert']}`" not in page] == []


@with_helm
def test_the_chart_ships_them_where_they_are_wanted() -> None:
    assert "ServiceMonitor" not in {kind for kind, _ in rendered()}
    on = ("--set", "monitoring.enabled=true", "--set", "monitoring.labels.release=prometheus")
    objects = rendered(*on)
    monitor = objects["ServiceMonitor", "coach"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    chosen = monitor["spec"]["selector"]["matchLabels"]
    ports = {
        port["name"]
        for (kind, _), one in objects.items()
        if kind == "Service" and chosen.items() <= one["metadata"]["labels"].items()
        for port in one["spec"]["ports"]
    }
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in ports and endpoint["authorization"]["credentials"]["name"] == "coach-token"
    assert [rule for group in objects["PrometheusRule", "coach"]["spec"]["groups"] for rule in group["rules"]] == RULES
    assert json.loads(objects["ConfigMap", "coach-dashboard"]["data"]["coach.json"]) == DASHBOARD
