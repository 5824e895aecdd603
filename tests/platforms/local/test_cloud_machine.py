"""A machine of a cloud asks its metadata service, here servers of ours that answer as the clouds document."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from coach.cli.main import invoke
from coach.core.errors import UserError
from coach.platforms.local import cloud_machine
from coach.platforms.local.cloud_machine import CloudMachine, cloud_of, machine_of

#: What the clouds' documentation says of each request: method, path, headers that it must have, answer.
AWS = {
    "instance-type": "p4d.24xlarge",
    "placement/region": "eu-west-1",
    "instance-life-cycle": "spot",
}
GCP = {
    "machine-type": "projects/12345/machineTypes/n2d-highcpu-8",
    "zone": "projects/12345/zones/us-central1-a",
    "scheduling/preemptible": "FALSE",
}
AZURE = {"location": "westeurope", "priority": "Regular", "vmSize": "Standard_NC24ads_A100_v4"}


class Service(BaseHTTPRequestHandler):
    """All three clouds, each as strict as it is documented to be."""

    asked: ClassVar[list[str]] = []

    def do_PUT(self) -> None:
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        right = self.path == "/latest/api/token" and seconds.isdigit() and 1 <= int(seconds) <= 21600
        self.answer(200 if right else 400, "a-token")

    def do_GET(self) -> None:
        aws, gcp = "/latest/meta-data/", "/computeMetadata/v1/instance/"
        if self.path.startswith(aws):
            right = self.headers.get("X-aws-ec2-metadata-token") == "a-token"
            self.answer(200 if right else 401, AWS[self.path.removeprefix(aws)])
        elif self.path.startswith(gcp):
            self.answer(
                200 if self.headers.get("Metadata-Flavor") == "Google" else 403, GCP[self.path.removeprefix(gcp)]
            )
        elif self.path == "/metadata/instance/compute?api-version=2021-02-01":
            self.answer(200 if self.headers.get("Metadata") == "true" else 400, json.dumps(AZURE))
        else:
            self.answer(404, "")

    def answer(self, status: int, text: str) -> None:
        self.asked.append(f"{self.command} {self.path}")
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(text.encode() if status == 200 else b"")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address; no cloud's own is ever asked."""
    monkeypatch.setattr(cloud_machine, "ADDRESSES", {})
    Service.asked.clear()
    with serving(Service) as address:
        yield address


def dmi(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2", "product_name": "p4d.24xlarge"}, "aws"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "0001"}, ""),  # Hyper-V under a desk
        ({"sys_vendor": "Supermicro", "product_name": "Super Server"}, ""),
        ({}, ""),
    ],
)
def test_the_dmi_data_name_the_cloud(tmp_path: Path, files: dict[str, str], cloud: str) -> None:
    assert cloud_of(dmi(tmp_path / "id", **files)) == cloud


@pytest.mark.parametrize(
    ("machine", "offer"),
    [
        (CloudMachine("aws", "p4d.24xlarge", "eu-west-1", True), "aws/p4d.24xlarge@eu-west-1:spot"),
        (CloudMachine("gcp", "n2d-highcpu-8", "us-central1", False), "gcp/n2d-highcpu-8@us-central1"),
        (CloudMachine("azure", "Standard_NC24ads_A100_v4", "westeurope", False),
         "azure/Standard_NC24ads_A100_v4@westeurope"),
    ],
)  # fmt: skip
def test_each_cloud_says_type_region_and_spot(service: str, machine: CloudMachine, offer: str) -> None:
    assert machine_of(machine.cloud, service) == machine and machine.offer == offer


def test_a_service_that_does_not_answer_is_an_error_with_two_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_machine, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and says nothing
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UserError, match=r"timed out; without it: coach prices set .*coach prices --cloud gcp"):
            machine_of("gcp", address)


@pytest.mark.parametrize(("cloud", "path"), [("aws", "token"), ("gcp", "machine-type"), ("azure", "compute")])
def test_a_service_that_refuses_is_an_error(cloud: str, path: str) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with serving(Refuses) as address, pytest.raises(UserError, match="HTTP status 403"):
        machine_of(cloud, address)


def test_prices_here_keeps_the_offer_of_this_machine(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults, catalogue = tmp_path / "defaults.yaml", tmp_path / "catalogs" / "aws"
    catalogue.mkdir(parents=True)
    (catalogue / "vms.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region\n"
        "p4d.24xlarge,A100,8,96,1152,32.77,9.83,us-east-1\np4d.24xlarge,A100,8,96,1152,35.40,10.62,eu-west-1\n"
    )
    monkeypatch.setenv("COACH_DEFAULTS", str(defaults))
    monkeypatch.setenv("COACH_CATALOGS", str(tmp_path / "catalogs"))
    monkeypatch.setattr(cloud_machine, "DMI", dmi(tmp_path / "id", sys_vendor="Amazon EC2"))
    assert invoke(["prices", "here", "--metadata", service]) == 0
    said = capsys.readouterr().out
    assert "p4d.24xlarge in eu-west-1, spot: 10.62 USD an hour, 1.3275 a GPU" in said and str(defaults) in said
    assert yaml.safe_load(defaults.read_text()) == {"prices": "aws/p4d.24xlarge@eu-west-1:spot"}


def test_elsewhere_prices_here_asks_nobody(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COACH_DEFAULTS", str(tmp_path / "defaults.yaml"))
    monkeypatch.setattr(cloud_machine, "DMI", dmi(tmp_path / "id", sys_vendor="Supermicro"))
    assert invoke(["prices", "here", "--metadata", service]) == 2
    assert "coach prices set" in capsys.readouterr().err
    assert Service.asked == [] and not (tmp_path / "defaults.yaml").exists()


def test_a_machine_without_an_offer_in_the_catalogue_keeps_nothing(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COACH_DEFAULTS", str(tmp_path / "defaults.yaml"))
    monkeypatch.setattr(
        cloud_machine, "DMI", dmi(tmp_path / "id", chassis_asset_tag="7783-7084-3265-9085-8269-3286-77")
    )
    assert invoke(["prices", "here", "--metadata", service]) == 2
    said = capsys.readouterr().err
    assert "azure/Standard_NC24ads_A100_v4@westeurope" in said and "coach prices set" in said
    assert not (tmp_path / "defaults.yaml").exists()
