"""The epochs of a job, most of its memory: the older ones are compressed, and unpacked when they are read."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any

from pydantic import TypeAdapter

from coach.core.jobs.epoch import Epoch

#: Maximum unpacked epochs, of all jobs together, kept for the next read: about 1 kB each.
UNPACKED = 10_000

_EPOCHS: TypeAdapter[list[Epoch]] = TypeAdapter(list[Epoch])
#: Packed epochs that were read last, unpacked.
_LATELY: OrderedDict[bytes, list[Epoch]] = OrderedDict()
_LOCK = threading.Lock()


class EpochArchive(MutableSequence[Epoch]):
    """All epochs of a job: the `last` ones, and those before them `packed`.

    `packed` is a sequence of zlib streams, each of a JSON array, with `count_packed` epochs in all. They are read-only:
    a change to one is lost. The last epoch is never packed, as it may still be charged.
    """

    def __init__(self, last: Iterable[Epoch] = (), packed: bytes = b"", count: int = 0) -> None:
        self.last = list(last)
        self.packed = packed
        self.count_packed = count

    def pack(self) -> None:
        """Pack all but the last. Those packed before are not touched."""
        if new := self.last[:-1]:
            with _LOCK:
                known = _LATELY.pop(self.packed, None) if self.packed else []
            self.packed += zlib.compress(_EPOCHS.dump_json(new), 1)
            self.count_packed += len(new)
            self.last = self.last[-1:]
            if known is not None:
                _keep(self.packed, [*known, *new])

    def __len__(self) -> int:
        return self.count_packed + len(self.last)

    def __iter__(self) -> Iterator[Epoch]:
        return itertools.chain(_unpacked(self.packed), self.last)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        at = range(len(self))[index] - self.count_packed
        return self.last[at] if at >= 0 else _unpacked(self.packed)[at]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._unpack()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._unpack()[index]

    def insert(self, index: int, value: Epoch) -> None:
        """As of a list."""
        (self.last if index >= len(self) else self._unpack()).insert(index, value)

    def _unpack(self) -> list[Epoch]:
        self.last, self.packed, self.count_packed = list(self), b"", 0
        return self.last

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | EpochArchive) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


def _unpacked(packed: bytes) -> list[Epoch]:
    if not packed:
        return []
    with _LOCK:
        if (found := _LATELY.get(packed)) is not None:
            _LATELY.move_to_end(packed)
            return found
    found, data = [], packed
    while data:
        stream = zlib.decompressobj()
        found += _EPOCHS.validate_json(stream.decompress(data))
        data = stream.unused_data
    _keep(packed, found)
    return found


def _keep(packed: bytes, epochs: list[Epoch]) -> None:
    with _LOCK:
        _LATELY[packed] = epochs
        while len(_LATELY) > 1 and sum(map(len, _LATELY.values())) > UNPACKED:
            _LATELY.popitem(last=False)
