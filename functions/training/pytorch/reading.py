"""Reading batches ahead in other processes, by torch's DataLoader."""

import collections
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch.utils.data

from training import linux
from training.data.dataset import DataSet
from training.data.reading import Part, Reader
from training.errors import TrainingError
from training.model import model_file


class _Failed(NamedTuple):
    """What reading raised in another process. An exception itself would lose its reason on the way."""

    reason: str
    message: str


class AheadReader(Reader):
    """Reads in so many processes, two batches ahead in each; with none, in this one. The order is that asked for.

    The processes end with the thread that reads first, and with the worker. They are kept from one `read` to the next.
    For the DataLoader it is the data set, whose samples are batches by what is asked for, and what asks.
    """

    def __init__(self, dataset: DataSet, processes: int = 0, uri: str = "") -> None:
        super().__init__(dataset)
        self._uri = uri
        self._wanted: Iterable[Part] = ()
        self._asked: collections.deque[Part] = collections.deque()  #: what is read at present
        self._running: Any = None
        self._loader: torch.utils.data.DataLoader | None = None
        if processes:
            self._loader = torch.utils.data.DataLoader(
                self,
                batch_size=None,
                sampler=self,
                collate_fn=_as_it_is,
                num_workers=processes,
                multiprocessing_context="fork",
                persistent_workers=True,
                worker_init_fn=partial(_begin, os.getpid()),
            )

    @property
    def processes(self) -> frozenset[int]:
        """See Reader."""
        return frozenset() if self._running is None else frozenset(each.pid for each in self._running._workers)

    def read(self, wanted: Iterable[Part]) -> Iterator[tuple[Part, Any]]:
        """See Reader. Raises TrainingError, as the model file's code does when it runs here."""
        if self._loader is None:
            yield from super().read(wanted)
            return
        self._wanted = wanted
        self._asked.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # more processes than cores: they may wait for a disk
            self._running = iter(self._loader)
        for found in self._running:
            if isinstance(found, _Failed):
                raise TrainingError(*found)
            yield self._asked.popleft(), found

    def __iter__(self) -> Iterator[Part]:
        """What is to be read, for the processes."""
        for part in self._wanted:
            self._asked.append(part)
            yield part

    def __getitem__(self, part: Part) -> Any:
        """One batch, or what went wrong, in a process that reads ahead."""
        try:
            return self.one(part)
        except Exception as error:
            sys.stderr.write(model_file.of_user(error, self._uri) or traceback.format_exc())
            sys.stderr.flush()
            known = model_file.invalid(self._uri, error)
            return _Failed(known.reason, known.message)


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin(parent: int, _number: int) -> None:
    linux.die_with_parent(parent)
