"""What the nodes of a cluster cost: as OpenCost says, where there is one, else by the offers that their labels name.

OpenCost's `/assets?window=1h` has, of each node, what it cost in the window and for how many minutes it was there
(`Node.MarshalJSON` in its core/pkg/opencost/asset_json.go; other kinds of assets are skipped), in the currency that it
is set to, which it does not say: USD is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from coach.core.cluster import Instance, Node
from coach.core.errors import TemporaryError, UserError
from coach.platforms.kubernetes_api import nodes

if TYPE_CHECKING:
    from coach.platforms.kubernetes_api.client import Object

log = logging.getLogger(__name__)

#: Seconds between two looks.
LOOK_SECONDS = 300.0
#: A node that is there for less than this long has no price yet: its cost is rounded.
LEAST_MINUTES = 5.0
#: The largest answer that is read, bytes, and how long one is waited for, seconds.
MOST_BYTES, TIMEOUT = 64 << 20, 10.0


def read_assets(answer: Any) -> dict[str, float]:
    """Node -> currency units an hour, of OpenCost's decoded answer. Raises UserError for what is none."""
    sets = answer.get("data") if isinstance(answer, dict) else None
    found: dict[str, float] = {}
    for assets in sets if isinstance(sets, list) else [sets]:  # older versions answer with a list of sets
        if not isinstance(assets, dict):
            said = answer.get("message") if isinstance(answer, dict) else None
            raise UserError(f"no `data` with assets{f': {said}' if said else ''}; seen {str(answer)[:80]!r}")
        for key, asset in assets.items():
            if isinstance(asset, dict) and asset.get("type") == "Node":
                found |= _hourly(key, asset)
    return found


def _hourly(key: str, asset: dict[str, Any]) -> dict[str, float]:
    name = (asset.get("properties") or {}).get("name")
    cost, minutes = asset.get("totalCost"), asset.get("minutes")
    if not isinstance(name, str) or not all(isinstance(one, int | float) for one in (cost, minutes)):
        problem = f"{key}: a node without properties.name, totalCost or minutes"
        raise UserError(f"{problem}; seen {name!r}, {cost!r}, {minutes!r}")
    assert cost is not None and minutes is not None
    if not 0.0 <= cost < float("inf"):
        raise UserError(f"{key}: totalCost {cost!r} is no price")
    return {name: cost / minutes * 60.0} if minutes >= LEAST_MINUTES and cost > 0.0 else {}


class NodePrices:
    """Prices nodes. `offer_price` gives the machine of an offer's name; `opencost` is OpenCost's URL, or empty."""

    def __init__(self, offer_price: Callable[[str], Instance] | None = None, opencost: str = "") -> None:
        self._offer_price = offer_price
        self._url = opencost.rstrip("/")
        self._hours: dict[str, float] = {}
        self._said: set[str] = set()

    async def look(self) -> None:
        """Ask OpenCost again. Where it gives no answer that can be used, the last one stays, then labels count."""
        if not self._url:
            return
        try:
            self._hours = await self._ask()
            self._said.discard("opencost")
        except (UserError, TemporaryError) as error:
            instead = "the prices that it gave last stay" if self._hours else "prices are by the nodes' labels"
            self._warn("opencost", f"OpenCost at {self._url}: {error}; {instead}")

    async def _ask(self) -> dict[str, float]:
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT) as client:
                answer = await client.get(f"{self._url}/assets", params={"window": "1h"})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TemporaryError(f"does not answer ({type(error).__name__}: {error})") from error
        if answer.status_code != httpx.codes.OK:
            raise TemporaryError(f"answers {answer.status_code}: {answer.text.strip()[:200]}")
        if len(answer.content) > MOST_BYTES:
            raise UserError(f"an answer of {len(answer.content)} bytes, at most {MOST_BYTES} are read")
        try:
            decoded = answer.json()
        except ValueError as error:
            raise UserError(f"no JSON ({error}); seen {answer.text[:80]!r}") from error
        return read_assets(decoded)

    def of(self, found: Object) -> Node:
        """The node with its price, where it is known."""
        node = nodes.read(found)
        if nodes.gpu_factor(found) is None:
            written = found["metadata"]["annotations"][nodes.GPU_FACTOR]
            self._warn(
                f"factor {node.name} {written}",
                f"node {node.name}: {nodes.GPU_FACTOR} {written!r} is no number above 0, at most 1000; 1 counts",
            )
        return replace(node, price=self._price(node, found))

    def _price(self, node: Node, found: Object) -> Instance | None:
        has = node.capacity
        if (hour := self._hours.get(node.name)) is not None and has.cpu and has.memory:
            return Instance(hour, has.cpu, has.memory, has.gpu)
        name = nodes.offer(found)
        if ":spot" in name and not node.spot:
            problem = f"node {node.name} costs as {name}, but no label says that it is spot"
            self._warn(
                f"{name} {node.name}", f"{problem}; for spec.spot: kubectl label node {node.name} {nodes.OWN_SPOT}"
            )
        if not name or self._offer_price is None:
            return None
        try:
            machine = self._offer_price(name)
            # Where its GPUs are given in parts, MIG instances, one costs its part of the machine.
            return replace(machine, gpu=max(has.gpu, machine.gpu)) if machine.gpu else machine
        except UserError as error:
            self._warn(name, f"node {node.name} has no price: {name} is no offer of `coach prices`: {error}")
            return None

    def _warn(self, about: str, words: str) -> None:
        """Say it once."""
        if about not in self._said:
            self._said.add(about)
            log.warning("%s", words)
