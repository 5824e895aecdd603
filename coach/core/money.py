"""Money: the price book, and the arithmetic of reserving and settling.

Amounts are whole nano-units of the job's currency (`Money`, 10^-9 USD for a job in USD), so that sums are exact:
a ledger equals the sum of its entries to the last digit, on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from coach.core.cluster import NOTHING, Instance, Node, Resources

#: Whole nano-units of a currency.
Money = int

NANO = 1_000_000_000


def to_money(amount: float) -> Money:
    """Nano-units of `amount` currency units, rounded to the nearest."""
    return round(amount * NANO)


def to_amount(money: Money) -> float:
    """Currency units of `money` nano-units."""
    return money / NANO


#: Seconds of an hour, and how much of one is not yet begun: times are sums of fractions.
HOUR = 3600.0
_SAME_INSTANT = 1e-5


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices in currency units: per vCPU-second, GiB-second, GPU-second and function invocation, or of an instance.

    `nodes`, where the book is that of nodes: the instance that each one is; others are `instance`.
    """

    name: str
    currency: str
    vcpu_second: float
    gib_second: float
    invocation: float
    gpu_second: float = 0.0
    instance: Instance | None = None
    nodes: tuple[tuple[str, Instance], ...] = ()

    @property
    def by_hour(self) -> bool:
        """Whether there are machines of which an hour begun is paid."""
        return self.instance is not None and (self.instance.by_hour or any(one.by_hour for _, one in self.nodes))

    def on(self, names: Iterable[str]) -> tuple[tuple[str, Instance], ...]:
        """The prices of these nodes; empty where the book is not that of nodes."""
        if self.instance is None or not self.nodes:
            return ()
        known = dict(self.nodes)
        return tuple((name, known.get(name, self.instance)) for name in sorted(names))

    def rate(self, requests: Resources, placed: Mapping[str, Resources] | None = None) -> float:
        """Price of holding `requests`, in currency units a second; `placed`: on these nodes. Without hours begun."""
        machines = self._machines(requests, placed)
        return self._parts(requests) + sum(one.hour * count for one, count in machines.values()) / HOUR

    def cost(
        self,
        requests: Resources,
        seconds: float,
        invocations: int = 0,
        *,
        placed: Mapping[str, Resources] | None = None,
        since: float = 0.0,
        paid: Mapping[str, float] | None = None,
    ) -> Money:
        """Cost of holding `requests` for `seconds` and of `invocations` calls, rounded up to a nano-unit.

        Of machines by the hour it is the hours that begin: `since` is when the `seconds` begin, and `paid` until when
        each machine that is held then is paid already (`paid_until`).
        """
        machines = self._machines(requests, placed)
        rate = self._parts(requests)
        rate += sum(one.hour * count for one, count in machines.values() if not one.by_hour) / HOUR
        total = math.ceil((rate * seconds + self.invocation * invocations) * NANO - 1e-6)
        for name, (one, _) in machines.items():
            if one.by_hour:
                hours = _hours((paid or {}).get(name, since), since, since + seconds)[1]
                total += hours * math.ceil(one.hour * NANO - 1e-6)
        return total

    def paid_until(
        self,
        requests: Resources,
        since: float,
        until: float,
        placed: Mapping[str, Resources],
        paid: Mapping[str, float],
    ) -> dict[str, float]:
        """Until when each machine by the hour is paid once `requests` were held from `since` to `until`.

        A machine that was not held from then on is given back: what is left of its hour is lost.
        """
        found = {}
        for name, (one, _) in self._machines(requests, placed).items():
            if one.by_hour:
                begin, hours = _hours(paid.get(name, since), since, until)
                found[name] = begin + hours * HOUR
        if self.nodes:
            return found
        return dict(zip(found, sorted(found.values(), reverse=True), strict=True))

    def _parts(self, requests: Resources) -> float:
        """Price of a second of what is not paid by machines."""
        return requests.cpu * self.vcpu_second + requests.memory * self.gib_second + requests.gpu * self.gpu_second

    def _machines(
        self, requests: Resources, placed: Mapping[str, Resources] | None
    ) -> dict[str, tuple[Instance, float]]:
        """The machines that are paid, by node, or by number: what each is, and how much of it is paid."""
        if self.instance is None:
            return {}
        if self.nodes and placed is not None:
            known = dict(self.nodes)
            nodes = {name: (known.get(name, self.instance), held) for name, held in placed.items()}
            return {name: (one, one.machines(held)) for name, (one, held) in nodes.items() if held != NOTHING}
        count = self.instance.machines(requests)
        if self.instance.by_hour:
            return {str(number): (self.instance, 1.0) for number in range(int(count))}
        return {"": (self.instance, count)}


def _hours(paid: float, since: float, until: float) -> tuple[float, int]:
    """When the hours of a machine begin that is paid until `paid`, and how many of them begin before `until`."""
    begin = paid if paid >= since - _SAME_INSTANT else since
    return begin, max(0, math.ceil((until - begin - _SAME_INSTANT) / HOUR))


#: A machine that holds any job: of `hours` one is paid, whatever a job holds.
_ANY_MACHINE = Instance(1.0, 1e9, 1e9, 1e9, whole=True)

#: The price books that Coach ships. `cloud-functions` has the published order of magnitude of a
#: large provider's functions (tier-1, 2024): 0.0000240 USD per vCPU-s, 0.0000025 USD per GiB-s and
#: 0.40 USD per million calls; `flat` charges only cores, one USD per core and hour, and nothing for a call; `nodes` is
#: that of the nodes that a job is on, and where the price of none is known, `cloud-functions`. In the others hours are
#: the currency: of each GPU, of each core, or of the job.
PRICE_BOOKS = {
    book.name: book
    for book in (
        PriceBook("cloud-functions", "USD", 0.0000240, 0.0000025, 0.0000004, 0.0),
        PriceBook("flat", "USD", 1.0 / 3600.0, 0.0, 0.0, 0.0),
        PriceBook("nodes", "USD", 0.0000240, 0.0000025, 0.0000004, 0.0),
        PriceBook("gpu-hours", "gpuh", 0.0, 0.0, 0.0, 1.0 / HOUR),
        PriceBook("core-hours", "coreh", 1.0 / HOUR, 0.0, 0.0),
        PriceBook("hours", "h", 0.0, 0.0, 0.0, instance=_ANY_MACHINE),
    )
}


#: The price book of each currency that is hours.
HOURS = {book.currency: book.name for book in PRICE_BOOKS.values() if book.currency.islower()}


def currency(text: str) -> str:
    """A currency as it is written, from how people do: `usd` is USD, `GPUh` gpuh."""
    return text.lower() if text.lower() in HOURS else text.upper()


#: Price books of which each node has its own prices; of `gpu-hours` where an hour of some GPUs counts more or less.
BY_NODE = ("nodes", "gpu-hours")


def of_nodes(nodes: Sequence[Node], worker: Resources, prices: str = "nodes") -> PriceBook:
    """The book of jobs that are billed by nodes. Planned is with the dearest that holds a worker, whole or by the hour
    if one of them is; those whose price is not known have that too. `prices`: one of `BY_NODE`.
    """
    book = PRICE_BOOKS[prices]
    if prices == "nodes":
        known = {node.name: node.price for node in nodes if node.price is not None}
    else:
        known = {node.name: node.gpu_hours for node in nodes if node.gpu_hours is not None}
        known = known if any(node.gpu_factor != 1.0 for node in nodes) else {}
    if not known:
        return book
    fitting = [one for one in known.values() if worker.fits(Resources(one.cpu, one.memory, one.gpu))]
    fitting = fitting or list(known.values())
    dearest = max(fitting, key=lambda one: one.hour * one.machines(worker))
    whole, by_hour = any(one.whole for one in fitting), any(one.by_hour for one in fitting)
    dearest = replace(dearest, whole=whole, by_hour=by_hour)
    return PriceBook(book.name, book.currency, 0.0, 0.0, 0.0, instance=dearest, nodes=tuple(known.items()))


class Charge(StrEnum):
    """Purpose of a ledger entry."""

    EPOCH = "epoch"  #: an epoch that counted, with the idle warm time before it
    FAILED = "failed"  #: an attempt that did not count
    RELEASE = "release"  #: the time from the last settlement to the release of the gang
    GRACE = "grace"  #: the time from a program's SIGTERM to its end
    AHEAD = "ahead"  #: a larger gang that was there before the smaller one had ended


@dataclass(slots=True)
class Ledger:
    """A job's money. Invariant: `0 <= spent`, `0 <= reserved`, and with a budget `spent + reserved <= budget`."""

    budget: Money | None
    spent: Money = 0
    reserved: Money = 0

    @property
    def left(self) -> Money | None:
        """Money neither spent nor reserved; None without a budget."""
        return None if self.budget is None else self.budget - self.spent - self.reserved

    def reserve(self, amount: Money) -> None:
        """Reserve `amount` in place of the earlier reservation. Raises ValueError if the budget does not cover it."""
        if amount < 0 or (self.budget is not None and self.spent + amount > self.budget):
            raise ValueError(f"cannot reserve {amount}: spent {self.spent}, budget {self.budget}")
        self.reserved = amount

    def settle(self, amount: Money) -> None:
        """Pay `amount` out of the reservation. Raises ValueError if less is reserved."""
        if amount < 0 or amount > self.reserved:
            raise ValueError(f"cannot settle {amount}: only {self.reserved} is reserved")
        self.spent += amount
        self.reserved -= amount

    def release(self) -> None:
        """End the reservation."""
        self.reserved = 0
