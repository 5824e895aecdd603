"""Prices of real machines: SkyPilot's catalogues, the user's or the small one that Coach ships.

A catalogue is a folder with `CLOUD/vms.csv` for each cloud (SkyPilot's schema v8, of which `_COLUMNS` are
read). A job file names an offer, `prices: nebius/gpu-h100-sxm_1gpu-16vcpu-200gb:spot`; when the
file is read, its numbers take the place of its name, so a job keeps its prices.
"""

from __future__ import annotations

import csv
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from coach.core.errors import UserError

SHIPPED = Path(__file__).parent / "catalogs"
CURRENCY = "USD"
#: Days after which shipped prices are said to be old.
OLD_DAYS = 180
#: A name of an offer: `CLOUD/TYPE`, then `@REGION`, `:spot` and `:whole`, each where it is wanted.
OFFER = re.compile(
    r"(?P<cloud>[a-z0-9]+)/(?P<type>[^@:\s]+)(@(?P<region>[^@:\s]+))?(?P<spot>:spot)?(?P<whole>:whole)?"
)
_COLUMNS = (
    "InstanceType",
    "AcceleratorName",
    "AcceleratorCount",
    "vCPUs",
    "MemoryGiB",
    "Price",
    "SpotPrice",
    "Region",
)
#: Machine types of gcp whose GPUs are priced in lines of their own: the price of a line is not that of a machine.
_WITHOUT_GPUS = re.compile(r"(a2|a3|a4|a4x|g2|g4)-")


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine type in a region: what it has, and its price an hour, and that as spot (None: not offered)."""

    cloud: str
    type: str
    gpu: str
    gpus: float
    cpu: float
    memory: float
    region: str
    hour: float
    spot: float | None

    @property
    def name(self) -> str:
        """`nebius/gpu-h100-sxm_1gpu-16vcpu-200gb`."""
        return f"{self.cloud}/{self.type}"

    def price(self, *, spot: bool = False) -> float | None:
        """Price of an hour."""
        return self.spot if spot else self.hour

    def prices(self, hour: float, *, spot: bool, whole: bool) -> dict[str, Any]:
        """The same as `prices` of a job file."""
        ending = "-spot" if spot else ""
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower())[: 40 - len(ending)].strip("-")
        return {
            "name": f"{name}{ending}",
            "currency": CURRENCY,
            "vcpuSecond": 0.0,
            "gibSecond": 0.0,
            "invocation": 0.0,
            "instance": {
                "hour": hour,
                "cpu": f"{round(self.cpu * 1000)}m",
                "memory": f"{round(self.memory * 1024)}Mi",
                "gpu": int(self.gpus),
                "whole": whole,
            },
        }


@dataclass(frozen=True, slots=True)
class Source:
    """Where the prices of clouds are from; `read`: the ISO date of shipped ones, else that of the newest file."""

    folder: Path
    clouds: tuple[str, ...]
    read: str

    def days(self, today: str) -> int:
        """How old they are on an ISO date, at least."""
        from datetime import date

        return (date.fromisoformat(today) - date.fromisoformat(self.read)).days


def catalogues() -> dict[str, Path]:
    """The file of each cloud: COACH_CATALOGS, else the newest of ~/.sky/catalogs, before those that Coach ships."""
    found = {file.parent.name: file for file in sorted(SHIPPED.glob("*/vms.csv"))}
    chosen = os.environ.get("COACH_CATALOGS")
    folders = [Path(chosen).expanduser()] if chosen else []
    if not chosen:
        versions = Path("~/.sky/catalogs").expanduser().glob("v*")
        folders = sorted(versions, key=lambda one: int(re.sub(r"\D", "", one.name) or 0))[-1:]
    for folder in folders:
        found |= {file.parent.name: file for file in sorted(folder.glob("*/vms.csv"))}
    return found


def sources() -> list[Source]:
    """Where the prices are from, those of Coach last."""
    from datetime import UTC, datetime

    by_folder: dict[Path, list[str]] = {}
    for cloud, file in catalogues().items():
        by_folder.setdefault(file.parent.parent, []).append(cloud)
    found = []
    for folder, clouds in sorted(by_folder.items(), key=lambda one: one[0] == SHIPPED):
        if folder == SHIPPED:
            (read,) = re.findall(r"^read: (\S+)$", (SHIPPED / "SOURCE.md").read_text("utf-8"), re.MULTILINE)
        else:
            newest = max((folder / cloud / "vms.csv").stat().st_mtime for cloud in clouds)
            read = datetime.fromtimestamp(newest, UTC).date().isoformat()
        found.append(Source(folder, tuple(sorted(clouds)), read))
    return found


def offers(clouds: Iterable[str] = ()) -> list[Offer]:
    """The offers of all clouds, or of some. Raises UserError for an unknown cloud, or a file that is no catalogue."""
    files = catalogues()
    wanted = list(clouds) or list(files)
    for cloud in wanted:
        if cloud not in files:
            raise UserError(
                f"no prices of a cloud {cloud!r}; there are {', '.join(sorted(files))}: coach prices"
            )
    return [offer for cloud in wanted for offer in _read(files[cloud], files[cloud].stat().st_mtime_ns)]


@lru_cache(maxsize=64)
def _read(file: Path, _changed: int) -> tuple[Offer, ...]:
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(lines)
            missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise UserError(
                    f"{file}: no catalogue of SkyPilot's schema 8: no column {', '.join(missing)}"
                )
            return tuple(_offers(file, rows))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error


def _offers(file: Path, rows: Iterable[Mapping[str, str]]) -> Iterator[Offer]:
    cloud = file.parent.name
    for number, row in enumerate(rows, 2):
        try:
            numbers = {key: float(row[key]) if row[key] else None for key in _COLUMNS[2:7]}
        except (TypeError, ValueError) as error:
            raise UserError(f"{file}:{number}: not a number: {error}") from error
        hour, cpu, memory = numbers["Price"], numbers["vCPUs"], numbers["MemoryGiB"]
        separate = cloud == "gcp" and _WITHOUT_GPUS.match(row["InstanceType"])
        if not row["InstanceType"] or separate or not hour or not cpu or not memory:
            continue  # an accelerator by itself, or what cannot be had in that region
        gpus = numbers["AcceleratorCount"] or 0.0
        yield Offer(
            cloud, row["InstanceType"], row["AcceleratorName"] if gpus else "", gpus, cpu, memory, row["Region"],
            hour, numbers["SpotPrice"] or None,
        )  # fmt: skip


def cheapest(found: Iterable[Offer], *, spot: bool = False) -> dict[str, Offer]:
    """By name: the cheapest offer of each machine type, over its regions and zones."""
    best: dict[str, Offer] = {}
    for offer in found:
        price, before = offer.price(spot=spot), best.get(offer.name)
        if price is not None and (before is None or price < (before.price(spot=spot) or 0.0)):
            best[offer.name] = offer
    return best


def prices_of(text: str) -> dict[str, Any]:
    """The prices that an offer's name means in a job file. Raises UserError with the nearest names."""
    match = OFFER.fullmatch(text)
    if match is None:
        raise UserError(
            "a name such as nebius/gpu-h100-sxm_1gpu-16vcpu-200gb, with @REGION, :spot or :whole after it"
        )
    all_of_cloud = offers([match["cloud"]])
    typed = [offer for offer in all_of_cloud if offer.type == match["type"]]
    if not typed:
        near = difflib.get_close_matches(match["type"], {offer.type for offer in all_of_cloud}, 3, 0.5)
        names = " or ".join(f"{match['cloud']}/{one}" for one in near)
        meant = f"did you mean {names}? " if near else ""
        raise UserError(f"{meant}all of them: coach prices --cloud {match['cloud']}")
    spot = match["spot"] is not None
    here = [offer for offer in typed if match["region"] in (None, offer.region)]
    best = cheapest(here, spot=spot).get(typed[0].name)
    if best is None:
        regions = sorted({offer.region for offer in typed if offer.price(spot=spot) is not None})
        raise UserError(
            f"a region that has it{' as spot' if spot else ''}: {', '.join(regions) or 'none does'}"
        )
    if best.gpus != int(best.gpus):
        raise UserError("a machine with whole GPUs: jobs request whole ones")
    hour = best.price(spot=spot)
    assert hour is not None
    return best.prices(hour, spot=spot, whole=match["whole"] is not None)
