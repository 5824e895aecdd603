"""A user's map-style Dataset as samples: any of them, collated to a batch."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate


class DatasetSamples:
    """See training.data.dataset.Samples. `collate` is a DataLoader's collate_fn: samples in, a batch out."""

    def __init__(self, dataset: Any, collate: Callable[[Sequence[Any]], Any], size: int | None = None) -> None:
        self._dataset = dataset
        self._collate = collate
        self._size = len(dataset) if size is None else min(size, len(dataset))

    def __len__(self) -> int:
        return self._size

    def rows(self, index: np.ndarray | slice, seeds: np.ndarray | None = None) -> Any:
        """See training.data.dataset.Samples."""
        numbers = list(range(*index.indices(self._size))) if isinstance(index, slice) else index.tolist()
        if type(self._dataset) is TensorDataset and self._collate is default_collate:
            # The same batch at once: a table's rows one by one take longer than a step of a small net.
            return [tensor[numbers] for tensor in self._dataset.tensors]
        if seeds is None:
            return self._collate([self._dataset[number] for number in numbers])
        samples = []
        for number, seed in zip(numbers, seeds.tolist(), strict=True):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds GPUs too, and takes 30 times as long
            np.random.seed(seed)
            random.seed(seed)
            samples.append(self._dataset[number])
        return self._collate(samples)

    def first(self, size: int) -> "DatasetSamples":
        """See training.data.dataset.Samples."""
        return DatasetSamples(self._dataset, self._collate, size)
