"""A data set in memory, and the endless stream of samples that training takes its batches from."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from training.errors import TrainingError


class Samples(Protocol):
    """One split of a data set: any of its samples as one batch."""

    def __len__(self) -> int: ...

    def rows(self, index: np.ndarray | slice, seeds: np.ndarray | None = None) -> Any:
        """These samples as a batch that the framework's learner takes; `seeds`: of random reading, one for each."""

    def first(self, size: int) -> "Samples":
        """Its first `size` samples only."""


@dataclass(frozen=True)
class Split:
    """Samples and their labels.

    `x` is (samples, channels, height, width) for images; kept in the dtype it was stored in (uint8 images stay four
    times smaller) and turned into float32 a batch at a time. `y` is (samples,).
    """

    x: np.ndarray
    y: np.ndarray
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: np.ndarray | slice, seeds: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """These samples as float32, scaled, and their labels as they were stored."""
        del seeds
        x = self.x[index].astype(np.float32)
        if self.scale != 1.0:
            x *= np.float32(self.scale)
        return x, self.y[index]

    def first(self, size: int) -> "Split":
        """Its first `size` samples only."""
        return Split(self.x[:size], self.y[:size], self.scale)


@dataclass(frozen=True)
class DataSet:
    """What a job trains on, and what its loss and accuracy are measured on."""

    train: Samples
    test: Samples
    sha256: str = ""  #: of all that was read for it; none where the model file made it

    def first(self, size: int | None) -> "DataSet":
        """The same data with only the first `size` training samples."""
        if size is None or size >= len(self.train):
            return self
        return DataSet(self.train.first(size), self.test, self.sha256)


def checked(split: Split, name: str) -> Split:
    """The split, or TrainingError DataInvalid when samples and labels do not belong together."""
    if len(split.x) != len(split.y) or len(split.y) == 0:
        raise TrainingError("DataInvalid", f"the {name} split has {len(split.x)} samples and {len(split.y)} labels")
    return split


class Stream:
    """The endless concatenation of seeded permutations of the training split.

    Step t of a job trains on stream[t*B : (t+1)*B], whatever the number of workers, so neither changing it nor resuming
    changes the mathematics. RandomState is used because NumPy promises never to change its numbers.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._passes: dict[int, np.ndarray] = {}

    def _permutation(self, number: int) -> np.ndarray:
        if number not in self._passes:
            if len(self._passes) > 1:
                self._passes.pop(min(self._passes))
            generator = np.random.RandomState([self._seed, number])
            self._passes[number] = generator.permutation(self._size)
        return self._passes[number]

    def rows(self, start: int, count: int) -> np.ndarray:
        """The training samples at stream positions start .. start+count-1."""
        parts = []
        while count > 0:
            number, offset = divmod(start, self._size)
            part = self._permutation(number)[offset : offset + count]
            parts.append(part)
            start += len(part)
            count -= len(part)
        return np.concatenate(parts)

    def seeds(self, start: int, count: int) -> np.ndarray:
        """A seed for the reading of each of these, which depends on its position alone."""
        numbers = np.random.SeedSequence([self._seed, start // 2**32, start % 2**32])
        return numbers.generate_state(count)


def share(count: int, rank: int, members: int) -> slice:
    """The part of `count` samples that falls to `rank`: shares differ by one sample at most."""
    return slice(rank * count // members, (rank + 1) * count // members)
