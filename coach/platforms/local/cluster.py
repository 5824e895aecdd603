"""The nodes of the local platform: this machine, `COUNTxCORES` virtual nodes, or a cluster file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coach.core.cluster import Instance, Node, Resources
from coach.core.errors import UserError
from coach.core.spec import quantities
from coach.core.spec.types import IN_WORDS, Cpu, Identifier, Memory
from coach.platforms.local import devices
from coach.platforms.local.devices.device import Device

GIB = 1024.0**3
#: The machine that an offer's name means; raises UserError.
OfferPrice = Callable[[str], Instance]
#: The largest cluster file that is read, in bytes.
LARGEST_FILE = 1 << 20


def machine() -> Resources:
    """Cores and GPUs this process may use, and the memory of this machine. Raises UserError as `devices.found`."""
    gpus = len(devices.found())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return Resources(float(len(os.sched_getaffinity(0))), memory, float(gpus))


def _product(found: Sequence[Device]) -> str:
    """The kind of a node with these GPUs, as labels of Kubernetes have it: `NVIDIA-H100`; "" where they differ."""
    models = {re.sub(r"[^A-Za-z0-9._-]+", "-", device.model)[:63].strip("-._") for device in found}
    return models.pop() if len(models) == 1 else ""


def parse_nodes(text: str | None, offer_price: OfferPrice | None = None) -> tuple[Node, ...]:
    """Nodes of `text`: None or "" is this machine, `3x2` three nodes of two cores, anything else a cluster file.

    Virtual nodes share this machine's memory evenly, and have no GPU. They may have more cores together than the
    machine has: then their functions share the real ones. `offer_price` gives the machine that an offer's name means.
    Raises UserError.
    """
    here = machine()
    if not text:
        return (Node("this-machine", here, kind=_product(devices.found())),)
    if re.fullmatch(r"[0-9]+x[0-9]+(\.[0-9]+)?", text):
        count, cores = int(text.partition("x")[0]), float(text.partition("x")[2])
        if not (1 <= count <= 1000 and 0 < cores <= 1024):
            raise UserError(f"--nodes {text}: 1 to 1000 nodes of up to 1024 cores each, such as 3x2")
        return tuple(Node(f"node-{i}", Resources(cores, here.memory / count)) for i in range(count))
    return _read(Path(text), offer_price)


class _NodeEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Identifier
    cpu: Cpu
    memory: Memory
    gpu: int = Field(default=0, ge=0, le=64)
    offer: str = ""
    kind: str | None = Field(default=None, max_length=63)
    gpuFactor: float = Field(default=1.0, gt=0, le=1000)


class _ClusterFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    nodes: list[_NodeEntry] = Field(min_length=1, max_length=1000)


def _read(path: Path, offer_price: OfferPrice | None) -> tuple[Node, ...]:
    if not path.is_file():
        raise UserError(
            f"--nodes {path}: neither COUNTxCORES (such as 3x2) nor a cluster file; one looks like\n"
            "  nodes:\n  - {name: node-0, cpu: 2, memory: 4Gi}"
        )
    if path.stat().st_size > LARGEST_FILE:
        raise UserError(f"{path}: larger than {LARGEST_FILE} bytes; a cluster file is a short list of nodes")
    try:
        content: Any = yaml.safe_load(path.read_text())
        file = _ClusterFile.model_validate(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        lines = []
        for fault in error.errors(include_url=False):
            right = IN_WORDS.get(fault.get("ctx", {}).get("pattern", ""), fault["msg"])
            where = ".".join(map(str, fault["loc"])) or "file"
            lines.append(f"{path}: {where}: {right} (value seen: {fault['input']!r})")
        raise UserError("\n".join(lines)) from error
    names = [entry.name for entry in file.nodes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{path}: nodes: the name {twice[0]} is there twice; each node needs its own")
    found, made = devices.found(), []
    for entry in file.nodes:
        own, found = found[: entry.gpu], found[entry.gpu :]
        price, spot = _price(path, entry, offer_price), ":spot" in entry.offer
        made.append(
            Node(entry.name, _capacity(entry), price, spot=spot, kind=_kind(entry, own), gpu_factor=entry.gpuFactor)
        )
    return tuple(made)


def _kind(entry: _NodeEntry, own: Sequence[Device]) -> str:
    """Its `kind`; without it the machine of its offer (`aws/g5.xlarge@us-east-1:spot` is a g5.xlarge), or its GPUs."""
    if entry.kind is not None:
        return entry.kind
    return entry.offer.partition("/")[2].partition("@")[0].partition(":")[0] or _product(own)


def _price(path: Path, entry: _NodeEntry, offer_price: OfferPrice | None) -> Instance | None:
    if not entry.offer or offer_price is None:
        return None
    try:
        return offer_price(entry.offer)
    except UserError as error:
        raise UserError(f"{path}: node {entry.name}: offer: no such offer {entry.offer!r}: {error}") from error


def _capacity(entry: _NodeEntry) -> Resources:
    return Resources(quantities.cores(str(entry.cpu)), quantities.gib(str(entry.memory)), float(entry.gpu))


def cores_of(nodes: tuple[Node, ...]) -> dict[str, tuple[int, ...]]:
    """Real cores for each node, disjoint; empty where the machine has too few, or a node a part of one."""
    real = sorted(os.sched_getaffinity(0))
    if any(node.capacity.cpu != int(node.capacity.cpu) for node in nodes):
        return {}
    if sum(int(node.capacity.cpu) for node in nodes) > len(real):
        return {}
    found, at = {}, 0
    for node in nodes:
        count = int(node.capacity.cpu)
        found[node.name] = tuple(real[at : at + count])
        at += count
    return found
