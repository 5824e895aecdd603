"""A user's map-style Dataset as samples: any of them, collated to a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import TensorDataset, default_collate


class DatasetSamples:
    """See training.data.dataset.Samples. `collate` is a DataLoader's collate_fn: samples in, a batch out."""

    def __init__(
        self, dataset: Any, collate: Callable[[Sequence[Any]], Any], size: int | None = None
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._size = len(dataset) if size is None else min(size, len(dataset))

    def __len__(self) -> int:
        return self._size

    def rows(self, index: np.ndarray | slice) -> Any:
        """See training.data.dataset.Samples."""
        numbers = list(range(*index.indices(self._size))) if isinstance(index, slice) else index.tolist()
        if type(self._dataset) is TensorDataset and self._collate is default_collate:
            # The same batch at once: a table's rows one by one take longer than a step of a small net.
            return [tensor[numbers] for tensor in self._dataset.tensors]
        return self._collate([self._dataset[number] for number in numbers])

    def first(self, size: int) -> "DatasetSamples":
        """See training.data.dataset.Samples."""
        return DatasetSamples(self._dataset, self._collate, size)
