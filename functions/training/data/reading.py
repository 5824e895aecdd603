"""Reading the batches of a data set in the order that they are asked for."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from training.data.dataset import DataSet


class Part(NamedTuple):
    """Samples to read as one batch, and with which seed random reading begins for each."""

    split: str  #: "train" or "test"
    rows: np.ndarray
    seeds: np.ndarray
    last: bool  #: of those that were made together, such as a step's

    @property
    def count(self) -> int:
        """How many samples it has."""
        return len(self.rows)


def parts(split: str, rows: np.ndarray, seeds: np.ndarray, most: int | None) -> list[Part]:
    """`rows` in parts of at most so many samples; None: in one."""
    most = most or max(1, len(rows))
    return [
        Part(split, rows[start : start + most], seeds[start : start + most], start + most >= len(rows))
        for start in range(0, len(rows), most)
    ]


class Reader:
    """Reads in this process, when a batch is needed."""

    def __init__(self, dataset: DataSet) -> None:
        self._splits = {"train": dataset.train, "test": dataset.test}

    @property
    def processes(self) -> frozenset[int]:
        """Ids of the processes that it has started."""
        return frozenset()

    def read(self, wanted: Iterable[Part]) -> Iterator[tuple[Part, Any]]:
        """Each part with its batch, in order. What an earlier call has left to read is not read any more."""
        return ((part, self.one(part)) for part in wanted)

    def one(self, part: Part) -> Any:
        """One batch."""
        return self._splits[part.split].rows(part.rows, part.seeds)
