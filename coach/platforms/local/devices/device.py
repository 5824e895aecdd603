"""A GPU, as the library of its vendor describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

GIB = 1024.0**3


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG instance of one; `memory` is GiB, 0 where not known.

    `index` is the whole GPU's, in the order of the vendor's library. `uuid` is its name in the
    variables that say what a process sees; it is the index where a GPU has no other name.
    """

    uuid: str
    index: int
    model: str = "GPU"
    memory: float = 0.0
    #: Other names of it there.
    aliases: tuple[str, ...] = ()

    @property
    def mig(self) -> bool:
        """Whether it is an instance of a GPU. A process sees one of them only."""
        return self.uuid.startswith("MIG-")

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.model}, {self.uuid})"


class Use(NamedTuple):
    """GiB used, percent of the time busy, and watts, now; None where that is not known."""

    memory: float | None = None
    busy: float | None = None
    watts: float | None = None
