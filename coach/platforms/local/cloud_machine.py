"""Which machine of a cloud this is: its DMI data name the cloud, and that cloud's metadata service the rest.

The service is asked once, within a second, and only by `coach prices here`. As their documentation has it:
AWS: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html (IMDSv2, with a token)
Google: https://cloud.google.com/compute/docs/metadata/querying-metadata
Azure: https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from coach.core.errors import UserError

DMI = Path("/sys/class/dmi/id")
#: Seconds in which all answers have to come.
SECONDS = 1.0
#: Bytes of an answer that are read.
LONGEST = 1 << 16
#: Azure's machines have this as the number of their chassis.
_AZURE_CHASSIS = "7783-7084-3265-9085-8269-3286-77"
ADDRESSES = {
    "aws": "http://169.254.169.254",
    "gcp": "http://metadata.google.internal",
    "azure": "http://169.254.169.254",
}


class CloudMachine(NamedTuple):
    """A machine type of a cloud in a region, and whether it was got as spot."""

    cloud: str
    type: str
    region: str
    spot: bool

    @property
    def offer(self) -> str:
        """As `coach prices` names it: `aws/p4d.24xlarge@eu-west-1:spot`."""
        return f"{self.cloud}/{self.type}@{self.region}{':spot' if self.spot else ''}"


def cloud_of(dmi: Path | None = None) -> str:
    """The cloud that this machine's DMI data name; "" where it is of none of these."""

    def said(name: str) -> str:
        try:
            return ((dmi or DMI) / name).read_text(errors="replace").strip()
        except OSError:
            return ""

    if said("sys_vendor").startswith("Amazon") or "amazon" in said("bios_version").lower():
        return "aws"
    if said("product_name").startswith("Google Compute Engine"):
        return "gcp"
    return "azure" if said("chassis_asset_tag") == _AZURE_CHASSIS else ""


def machine_of(cloud: str, address: str = "") -> CloudMachine:
    """What the metadata service of `cloud`, at `address` where that is not its own, says of this machine.

    Raises UserError where it does not answer as it is documented to within a second.
    """
    base, until = (address or ADDRESSES[cloud]).rstrip("/"), time.monotonic() + SECONDS
    opener = build_opener(ProxyHandler({}))  # a proxy would be asked about itself

    def ask(path: str, method: str = "GET", **headers: str) -> str:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(base + path, method=method, headers=fields)  # noqa: S310 - the user names it
        with opener.open(request, timeout=max(0.001, until - time.monotonic())) as answer:
            text: str = answer.read(LONGEST).decode()
            return text.strip()

    try:
        found = _ASK[cloud](ask)
    except (OSError, HTTPException, ValueError, KeyError) as error:
        why = f"HTTP status {error.code}" if isinstance(error, HTTPError) else str(error) or type(error).__name__
        raise UserError(
            f"the metadata service of {cloud} at {base}: {why}; without it: coach prices set 0.40USD/gpuh, or "
            f"coach prices --cloud {cloud}, then --prices OFFER"
        ) from error
    if not found.type or not found.region:
        raise UserError(f"the metadata service of {cloud} at {base} names no machine type and region: {found}")
    return found


#: Asks for a path, with a method and headers; the answer.
Ask = Callable[..., str]


def _aws(ask: Ask) -> CloudMachine:
    token = ask("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")  # noqa: S106
    type_, region, life_cycle = (
        ask(f"/latest/meta-data/{name}", X_aws_ec2_metadata_token=token)
        for name in ("instance-type", "placement/region", "instance-life-cycle")
    )
    return CloudMachine("aws", type_, region, life_cycle == "spot")


def _gcp(ask: Ask) -> CloudMachine:
    type_, zone, preemptible = (
        ask(f"/computeMetadata/v1/instance/{name}", Metadata_Flavor="Google")
        for name in ("machine-type", "zone", "scheduling/preemptible")
    )
    zone = zone.rpartition("/")[2]
    return CloudMachine("gcp", type_.rpartition("/")[2], zone.rpartition("-")[0], preemptible == "TRUE")


def _azure(ask: Ask) -> CloudMachine:
    found = json.loads(ask("/metadata/instance/compute?api-version=2021-02-01", Metadata="true"))
    return CloudMachine("azure", found["vmSize"], found["location"], found.get("priority") in ("Spot", "Low"))


_ASK: dict[str, Callable[[Ask], CloudMachine]] = {"aws": _aws, "gcp": _gcp, "azure": _azure}
