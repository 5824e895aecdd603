"""Prices of real machines: SkyPilot's catalogues, the user's or the small one that Coach ships.

A catalogue is a folder with `CLOUD/vms.csv` for each cloud (SkyPilot's schema v8). A job file names an offer,
`prices: nebius/gpu-h100-sxm_1gpu-16vcpu-200gb:spot`; when the file is read, its numbers take the place of its name, and
the handler follows changes of its price (`coach.handler.price_changes`).
"""

from __future__ import annotations

import csv
import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from coach.core.cluster import Instance
from coach.core.errors import UserError
from coach.core.spec.resources import InstancePrices

SHIPPED = Path(__file__).parent / "catalogs"
CURRENCY = "USD"
#: A name of an offer: `CLOUD/TYPE`, then `@REGION`, `:spot`, and `:whole` or `:hour`, each where it is wanted.
OFFER = re.compile(
    r"(?P<cloud>[a-z0-9]+)/(?P<type>[^@:\s]+)(@(?P<region>[^@:\s]+))?(?P<spot>:spot)?(?P<way>:whole|:hour)?"
)
_NUMBERS = ("AcceleratorCount", "vCPUs", "MemoryGiB", "Price", "SpotPrice")
#: What a file of one's own has at least. SkyPilot's have these, `_NUMBERS`, AcceleratorName and Region; `Currency`, if
#: it is not USD, is Coach's.
_COLUMNS = ("InstanceType", "vCPUs", "MemoryGiB", "Price")
_RATE = re.compile(r"([A-Z]{3})=([0-9]*\.?[0-9]+)([A-Z]{3})")
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
    currency: str = CURRENCY

    @property
    def name(self) -> str:
        """`nebius/gpu-h100-sxm_1gpu-16vcpu-200gb`."""
        return f"{self.cloud}/{self.type}"

    def price(self, *, spot: bool = False) -> float | None:
        """Price of an hour."""
        return self.spot if spot else self.hour

    def prices(self, hour: float, wanted: re.Match[str]) -> dict[str, Any]:
        """The same as `prices` of a job file, in the `wanted` way."""
        ending = "-spot" if wanted["spot"] else ""
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower())[: 40 - len(ending)].strip("-")
        return {
            "name": f"{name}{ending}",
            "currency": self.currency,
            "vcpuSecond": 0.0,
            "gibSecond": 0.0,
            "invocation": 0.0,
            "instance": {
                "hour": hour,
                "cpu": f"{round(self.cpu * 1000)}m",
                "memory": f"{round(self.memory * 1024)}Mi",
                "gpu": int(self.gpus),
                "whole": wanted["way"] is not None,
                "byHour": wanted["way"] == ":hour",
            },
            "offer": wanted[0],
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
            raise UserError(f"no prices of a cloud {cloud!r}; there are {', '.join(sorted(files))}: coach prices")
    return [offer for cloud in wanted for offer in _read(files[cloud], files[cloud].stat().st_mtime_ns)]


@lru_cache(maxsize=64)
def _read(file: Path, _changed: int) -> tuple[Offer, ...]:
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(lines)
            missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise UserError(
                    f"{file}: no catalogue of SkyPilot's schema 8: no column {', '.join(missing)}; a file of one's own "
                    f"has at least {','.join(_COLUMNS)}, and Currency where that is not USD"
                )
            return tuple(_offers(file, rows))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error


def _offers(file: Path, rows: Iterable[Mapping[str, str]]) -> Iterator[Offer]:
    cloud = file.parent.name
    for number, row in enumerate(rows, 2):
        try:
            numbers = {key: float(row[key]) if row.get(key) else None for key in _NUMBERS}
        except (TypeError, ValueError) as error:
            raise UserError(f"{file}:{number}: not a number: {error}") from error
        hour, cpu, memory = numbers["Price"], numbers["vCPUs"], numbers["MemoryGiB"]
        separate = cloud == "gcp" and _WITHOUT_GPUS.match(row["InstanceType"])
        if not row["InstanceType"] or separate or not hour or not cpu or not memory:
            continue  # an accelerator by itself, or what cannot be had in that region
        gpus, currency = numbers["AcceleratorCount"] or 0.0, row.get("Currency") or CURRENCY
        if not re.fullmatch("[A-Z]{3}", currency):
            raise UserError(f"{file}:{number}: Currency: three capital letters such as EUR; seen {currency!r}")
        yield Offer(
            cloud, row["InstanceType"], row.get("AcceleratorName", "") if gpus else "", gpus, cpu, memory,
            row.get("Region", ""), hour, numbers["SpotPrice"] or None, currency,
        )  # fmt: skip


@lru_cache(maxsize=1)
def functions() -> dict[str, dict[str, Any]]:
    """What large clouds take for functions, by the offer's name: region, date, source, terms, and `prices`."""
    found: dict[str, dict[str, Any]] = json.loads((SHIPPED / "functions.json").read_text("utf-8"))
    return found


def cheapest(found: Iterable[Offer], *, spot: bool = False) -> dict[str, Offer]:
    """By name: the cheapest offer of each machine type, over its regions and zones."""
    best: dict[str, Offer] = {}
    for offer in found:
        price, before = offer.price(spot=spot), best.get(offer.name)
        if price is not None and (before is None or price < (before.price(spot=spot) or 0.0)):
            best[offer.name] = offer
    return best


def prices_of(text: str, *, dearest: bool = False) -> dict[str, Any]:
    """The prices that an offer's name means in a job file: of its cheapest zone, or of its `dearest`.

    Raises UserError with the nearest names.
    """
    if text in functions():
        return {"name": text.replace("/", "-"), **functions()[text]["prices"], "offer": text}
    match = OFFER.fullmatch(text)
    if match is None:
        raise UserError(
            "a name such as nebius/gpu-h100-sxm_1gpu-16vcpu-200gb, with @REGION, :spot, :whole or :hour after it"
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
        raise UserError(f"a region that has it{' as spot' if spot else ''}: {', '.join(regions) or 'none does'}")
    if best.gpus != int(best.gpus):
        raise UserError("a machine with whole GPUs: jobs request whole ones")
    if len(currencies := sorted({offer.currency for offer in here})) > 1:
        raise UserError(f"an offer in one currency; this one is in {' and '.join(currencies)}")
    hours = [hour for offer in here if (hour := offer.price(spot=spot)) is not None]
    hour = max(hours) if dearest else min(hours)
    return best.prices(hour, match)


def instance_of(text: str) -> Instance:
    """The machine that an offer's name means, at its dearest zone's price: a node's is not known. Raises UserError."""
    found = prices_of(text, dearest=True)
    if found["currency"] != CURRENCY:
        raise UserError(f"an offer in {CURRENCY}: what nodes cost is added up, and this one is in {found['currency']}")
    return InstancePrices.model_validate(found["instance"]).instance


def in_currency(found: Iterable[Offer], currency: str, rates: Iterable[str]) -> list[Offer]:
    """The offers in one currency: `currency`, or the one that all have. `rates`: `EUR=1.08USD`, given by the user.

    Raises UserError where the offers have several, and for a rate that is not there, as none is assumed.
    """
    listed = list(found)
    known = {(one, one): 1.0 for one in {offer.currency for offer in listed}}
    for rate in rates:
        match = _RATE.fullmatch(rate)
        if match is None or not float(match[2]) > 0.0:
            raise UserError(f"--rate {rate}: what one unit costs in the other currency, such as EUR=1.08USD")
        known[match[1], match[3]] = float(match[2])
        known[match[3], match[1]] = 1.0 / float(match[2])
    have = sorted({offer.currency for offer in listed})
    wanted = currency.upper() or (have[0] if have else CURRENCY)
    for one in have:
        if (one, wanted) not in known:
            raise UserError(
                f"no rate between {one} and {wanted}, and none is assumed: --currency {wanted} --rate {one}=N{wanted}"
            )
    return [_times(offer, known[offer.currency, wanted], wanted) for offer in listed]


def _times(offer: Offer, rate: float, currency: str) -> Offer:
    spot = None if offer.spot is None else offer.spot * rate
    return replace(offer, hour=offer.hour * rate, spot=spot, currency=currency)
