"""What nodes cost: by OpenCost's answers, recorded in tests/data/opencost, and by the labels that clouds set."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from coach.core.cluster import Instance
from coach.core.errors import UserError
from coach.platforms.kubernetes.node_prices import NodePrices, read_assets
from coach.platforms.kubernetes_api import nodes

ANSWERS = Path(__file__).parents[2] / "data/opencost"
NAME = "ip-192-168-36-40.us-east-2.compute.internal"
AWS = {"node.kubernetes.io/instance-type": "p5.48xlarge", "topology.kubernetes.io/region": "us-east-1"}


def node(name: str = NAME, provider: str = "aws:///us-east-1a/i-0", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": provider},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}},
    }


def answer(name: str) -> Any:
    return json.loads((ANSWERS / f"{name}.json").read_text())


@pytest.mark.parametrize("recorded", ["assets", "list-of-sets"])
def test_a_node_costs_what_it_cost_by_the_hour(recorded: str) -> None:
    assert read_assets(answer(recorded)) == {NAME: pytest.approx(5.488583 / 1222 * 60)}


def test_one_that_has_just_come_has_no_price_yet() -> None:
    assert read_assets(answer("new-node")) == {}


@pytest.mark.parametrize(
    ("recorded", "problem"),
    [
        (answer("error"), "no `data` with assets: error computing node assets"),
        (
            answer("node-without-cost"),
            r"a node without properties.name, totalCost or minutes; seen .* None, 1222",
        ),
        ([], "no `data` with assets; seen"),
        ({"data": 5}, "no `data` with assets; seen"),
    ],
)
def test_what_is_no_answer_is_one_clear_error(recorded: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_assets(recorded)


@contextlib.contextmanager
def opencost(status: int, body: bytes, asked: list[str]) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def by_offer(name: str) -> Instance:
    if "p5" not in name:
        raise UserError("all of them: coach prices --cloud aws")
    return Instance(98.32, 192.0, 2048.0, 8.0)


def test_opencost_is_asked_and_goes_before_labels() -> None:
    asked: list[str] = []
    with opencost(200, (ANSWERS / "assets.json").read_bytes(), asked) as url:
        prices = NodePrices(by_offer, url)
        asyncio.run(prices.look())
    assert asked == ["/assets?window=1h"]
    assert prices.of(node(**AWS)).price == Instance(pytest.approx(5.488583 / 1222 * 60), 8.0, 32.0, 1.0)
    assert prices.of(node("another", **AWS)).price == by_offer("p5"), "which OpenCost does not know"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b"Error getting assets: no data", "answers 500: Error getting assets: no data"),
        (200, b"<html>", "no JSON"),
        (200, b"{}", "no `data` with assets"),
    ],
)
def test_what_it_says_instead_is_said_once_and_labels_count(
    status: int, body: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), opencost(status, body, []) as url:
        prices = NodePrices(by_offer, url)
        asyncio.run(prices.look())
        asyncio.run(prices.look())
    (line,) = caplog.messages
    assert said in line and line.endswith("; prices are by the nodes' labels")
    assert prices.of(node(**AWS)).price == by_offer("p5")


def test_where_it_answers_no_longer_its_last_prices_stay(caplog: pytest.LogCaptureFixture) -> None:
    with opencost(200, (ANSWERS / "assets.json").read_bytes(), []) as url:
        prices = NodePrices(None, url)
        asyncio.run(prices.look())
    with caplog.at_level(logging.WARNING):
        asyncio.run(prices.look())
    assert "does not answer" in caplog.text and "the prices that it gave last stay" in caplog.text
    assert prices.of(node()).price is not None


@pytest.mark.parametrize(
    ("provider", "labels", "offer"),
    [
        ("aws:///us-east-1a/i-0", AWS, "aws/p5.48xlarge@us-east-1"),
        (
            "aws:///us-east-1a/i-0",
            {**AWS, "karpenter.sh/capacity-type": "spot"},
            "aws/p5.48xlarge@us-east-1:spot",
        ),
        (
            "aws:///us-east-1a/i-0",
            {**AWS, "karpenter.sh/capacity-type": "on-demand"},
            "aws/p5.48xlarge@us-east-1",
        ),
        ("aws:///x/i-0", {**AWS, "eks.amazonaws.com/capacityType": "SPOT"}, "aws/p5.48xlarge@us-east-1:spot"),
        ("gce://p/z/n", {"node.kubernetes.io/instance-type": "n2-standard-4"}, "gcp/n2-standard-4"),
        ("gce://p/z/n", {**AWS, "cloud.google.com/gke-spot": "true"}, "gcp/p5.48xlarge@us-east-1:spot"),
        ("kind://docker/kind/n", AWS, ""),
        ("aws:///us-east-1a/i-0", {}, ""),
    ],
)
def test_labels_that_clouds_set_name_the_offer(provider: str, labels: dict[str, str], offer: str) -> None:
    found = node(provider=provider, **labels)
    assert nodes.offer(found) == offer
    assert NodePrices().of(found).spot == offer.endswith(":spot")


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({**AWS, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "NVIDIA-H100-80GB-HBM3"),
        (AWS, "p5.48xlarge"),
        ({}, ""),
    ],
)
def test_a_node_is_of_the_kind_of_its_gpus_else_of_its_machine(labels: dict[str, str], kind: str) -> None:
    assert NodePrices().of(node(**labels)).kind == kind


@pytest.mark.parametrize(
    ("written", "factor"), [("2.5", 2.5), ("0", 1.0), ("-1", 1.0), ("nan", 1.0), ("1e9", 1.0), ("two", 1.0)]
)
def test_a_node_says_for_how_many_an_hour_of_its_gpus_counts(
    written: str, factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    found = node()
    assert NodePrices().of(found).gpu_factor == 1.0
    found["metadata"]["annotations"] = {"coach.dev/gpu-factor": written}
    assert NodePrices().of(found).gpu_factor == factor
    assert (f"{written!r} is no number above 0" in caplog.text) == (factor == 1.0)


def test_an_annotation_goes_before_labels() -> None:
    found = node(**AWS)
    found["metadata"]["annotations"] = {"coach.dev/offer": "nebius/gpu-h100-sxm_1gpu-16vcpu-200gb:hour"}
    assert nodes.offer(found) == "nebius/gpu-h100-sxm_1gpu-16vcpu-200gb:hour"


def test_a_node_that_costs_as_spot_and_has_no_label_of_spot_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The scheduler, which places pods by labels, reads no annotation."""
    found, prices = node(**AWS), NodePrices(by_offer)
    found["metadata"]["annotations"] = {"coach.dev/offer": "aws/p5.48xlarge@us-east-1:spot"}
    with caplog.at_level(logging.WARNING):
        assert not prices.of(found).spot and not prices.of(found).spot
    (line,) = [line for line in caplog.messages if "no label" in line]
    assert line.endswith(f"for spec.spot: kubectl label node {NAME} coach.dev/capacity-type=spot")
    found["metadata"]["labels"]["coach.dev/capacity-type"] = "spot"
    assert prices.of(found).spot


def test_a_type_that_no_catalogue_has_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    prices = NodePrices(by_offer)
    other = {**AWS, "node.kubernetes.io/instance-type": "x9.large"}
    with caplog.at_level(logging.WARNING):
        assert [prices.of(node(name, **other)).price for name in ("one", "two")] == [None, None]
    (line,) = caplog.messages
    assert line.startswith("node one has no price: aws/x9.large@us-east-1 is no offer of `coach prices`: all of them")
