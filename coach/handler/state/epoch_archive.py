"""The epochs of a job, most of its memory: the older ones are compressed, and unpacked when they are read."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter

from coach.core.jobs.epoch import Epoch

#: Maximum unpacked epochs, of all jobs together, kept for the next read: about 1 kB each.
UNPACKED = 10_000

_EPOCHS: TypeAdapter[list[Epoch]] = TypeAdapter(list[Epoch])


class EpochArchive(list[Epoch]):
    """Behaves as the list of all epochs; its own items are the last ones, the earlier ones are `packed`.

    `packed` is a sequence of zlib streams, each of a JSON array, with `count` epochs in all. They are read-only: a
    change to one changes a copy. The last epoch is never packed, as it may still be charged.
    """

    def __init__(self, last: Iterable[Epoch] = (), packed: bytes = b"", count: int = 0) -> None:
        super().__init__(last)
        self.packed = packed
        self.count_packed = count
        self._unpacked: list[Epoch] | None = None
        self._unpacked_count = 0

    @classmethod
    def of(cls, epochs: list[Epoch]) -> EpochArchive:
        """The same epochs; `epochs` itself if it is an archive."""
        return epochs if isinstance(epochs, cls) else cls(epochs)

    @property
    def last(self) -> list[Epoch]:
        """Those that are not packed."""
        return list(super().__iter__())

    def pack(self) -> None:
        """Pack all but the last. The time depends on the new epochs only: those packed before are not touched."""
        new = self.last[:-1]
        if not new:
            return
        known = self._unpacked if self.count_packed else []
        self.packed += zlib.compress(_EPOCHS.dump_json(new), 1)
        self.count_packed += len(new)
        super().__delitem__(slice(0, len(new)))
        self._unpacked = None
        if known is not None:
            _LATELY.keep(self, [*known, *new])

    def _before(self) -> list[Epoch]:
        """Those that are packed."""
        if not self.count_packed:
            return []
        if (found := self._unpacked) is None:
            found, data = [], self.packed
            while data:
                stream = zlib.decompressobj()
                found += _EPOCHS.validate_json(stream.decompress(data))
                data = stream.unused_data
        _LATELY.keep(self, found)
        return found

    def _unpack(self) -> None:
        """Become a plain list."""
        before = self._before()
        self.packed, self.count_packed, self._unpacked = b"", 0, None
        super().__setitem__(slice(0, 0), before)

    def __len__(self) -> int:
        return self.count_packed + super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[Epoch]:
        return itertools.chain(self._before(), super().__iter__()) if self.count_packed else super().__iter__()

    def __reversed__(self) -> Iterator[Epoch]:
        yield from super().__reversed__()
        yield from reversed(self._before())

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int):
            return list(self)[index]
        before = self.count_packed
        if 0 <= index < before:
            known = self._unpacked  # a loop over indices does not mark them as read each time
            return (self._before() if known is None else known)[index]
        if index >= 0:
            return super().__getitem__(index - before)
        if before and index < -super().__len__():
            return self._before()[index + super().__len__()]
        return super().__getitem__(index)

    def __radd__(self, other: list[Epoch]) -> list[Epoch]:
        # Without it list.__add__ would copy our own items only, and miss the packed ones.
        return [*other, *self]

    def __reduce__(self) -> Any:
        return list, (list(self),)


class _Lately:
    """The archives whose epochs are kept unpacked: those read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, EpochArchive] = OrderedDict()
        self._epochs = 0

    def keep(self, owner: EpochArchive, epochs: list[Epoch]) -> None:
        with self._lock:
            if self._kept.pop(id(owner), None) is not None:
                self._epochs -= owner._unpacked_count
            self._kept[id(owner)] = owner
            owner._unpacked, owner._unpacked_count = epochs, len(epochs)
            self._epochs += len(epochs)
            while self._epochs > UNPACKED and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._epochs -= oldest._unpacked_count
                oldest._unpacked = None


_LATELY = _Lately()


def _as_list(name: str) -> Any:
    plain = getattr(list, name)

    def method(self: EpochArchive, *arguments: Any) -> Any:
        return plain(list(self), *(list(other) if isinstance(other, EpochArchive) else other for other in arguments))

    method.__name__ = name
    return method


def _changing(name: str) -> Any:
    plain = getattr(list, name)

    def method(self: EpochArchive, *arguments: Any, **named: Any) -> Any:
        self._unpack()
        return plain(self, *arguments, **named)

    method.__name__ = name
    return method


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__mul__", "__rmul__"):
    setattr(EpochArchive, _name, _as_list(_name))
for _name in ("__contains__", "__repr__", "copy", "count", "index"):
    setattr(EpochArchive, _name, _as_list(_name))
#: `append` and `extend` are the list's own: new epochs come last.
for _name in (
    "__setitem__",
    "__delitem__",
    "__imul__",
    "clear",
    "insert",
    "pop",
    "remove",
    "reverse",
    "sort",
):
    setattr(EpochArchive, _name, _changing(_name))
