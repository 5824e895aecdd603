"""Money: the price book, and the arithmetic of reserving and settling.

Amounts are whole nano-units of the job's currency (`Money`, 10^-9 USD for a job in USD), so that sums are exact:
a ledger equals the sum of its entries to the last digit, on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from coach.core.cluster import Resources

#: Whole nano-units of a currency.
Money = int

NANO = 1_000_000_000


def to_money(amount: float) -> Money:
    """Nano-units of `amount` currency units, rounded to the nearest."""
    return round(amount * NANO)


def to_amount(money: Money) -> float:
    """Currency units of `money` nano-units."""
    return money / NANO


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine that is rented as one: its cores, GiB and GPUs, and its price an hour in currency units.

    A gang pays its part of such machines: the largest of its shares of their cores, memory and GPUs; or, `whole`, as
    many machines as that takes.
    """

    hour: float
    cpu: float
    memory: float
    gpu: float = 0.0
    whole: bool = False

    def rate(self, requests: Resources) -> float:
        """Price of holding `requests`, in currency units a second."""
        machines = max(requests.cpu / self.cpu, requests.memory / self.memory)
        if self.gpu:
            machines = max(machines, requests.gpu / self.gpu)
        return self.hour / 3600.0 * (math.ceil(machines - 1e-9) if self.whole else machines)


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices in currency units: per vCPU-second, GiB-second, GPU-second and function invocation, or of an instance."""

    name: str
    currency: str
    vcpu_second: float
    gib_second: float
    invocation: float
    gpu_second: float = 0.0
    instance: Instance | None = None

    def rate(self, requests: Resources) -> float:
        """Price of holding `requests`, in currency units a second."""
        return (
            requests.cpu * self.vcpu_second
            + requests.memory * self.gib_second
            + requests.gpu * self.gpu_second
            + (self.instance.rate(requests) if self.instance else 0.0)
        )

    def cost(self, requests: Resources, seconds: float, invocations: int = 0) -> Money:
        """Cost of holding `requests` for `seconds` and of `invocations` calls, rounded up to a nano-unit."""
        return math.ceil((self.rate(requests) * seconds + self.invocation * invocations) * NANO - 1e-6)


#: The two price books that Coach ships. `cloud-functions` has the published order of magnitude of a
#: large provider's functions (tier-1, 2024): 0.0000240 USD per vCPU-s, 0.0000025 USD per GiB-s and
#: 0.40 USD per million calls; `flat` charges only cores, one USD per core and hour, and nothing for a call.
PRICE_BOOKS = {
    book.name: book
    for book in (
        PriceBook("cloud-functions", "USD", 0.0000240, 0.0000025, 0.0000004, 0.0),
        PriceBook("flat", "USD", 1.0 / 3600.0, 0.0, 0.0, 0.0),
    )
}


class Charge(StrEnum):
    """Purpose of a ledger entry."""

    EPOCH = "epoch"  #: an epoch that counted, with the idle warm time before it
    FAILED = "failed"  #: an attempt that did not count
    RELEASE = "release"  #: the time from the last settlement to the release of the gang


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
