"""A list that is made when somebody looks into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Later(list[Any]):
    """Behaves as the list that `make` gives; that is asked for once, at the first look. `length` is known before."""

    def __init__(self, length: int, make: Callable[[], list[Any]]) -> None:
        super().__init__()
        self._length = length
        self._make: Callable[[], list[Any]] | None = make

    def _fill(self) -> None:
        if self._make is not None:
            make, self._make = self._make, None
            super().extend(make())

    def peek(self) -> list[Any]:
        """What is in it, without keeping it in memory where nobody else did."""
        return list(self) if self._make is None else self._make()

    def __len__(self) -> int:
        return self._length if self._make is not None else super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0

    def __radd__(self, other: list[Any]) -> list[Any]:
        # Without it a list would look into our memory, and not ask us.
        return [*other, *self]


def _looking(name: str) -> Any:
    plain = getattr(list, name)

    def method(self: Later, *arguments: Any, **named: Any) -> Any:
        self._fill()
        for other in arguments:
            if isinstance(other, Later):
                other._fill()
        return plain(self, *arguments, **named)

    method.__name__ = name
    return method


#: All that a list can be asked or told; `copy.copy`, `pickle` and `sorted` come down to these.
_LOOKS = (
    *("__iter__", "__reversed__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__repr__"),
    *(
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__add__",
        "__iadd__",
        "__mul__",
        "__rmul__",
    ),
    *(
        "__imul__",
        "append",
        "clear",
        "copy",
        "count",
        "extend",
        "index",
        "insert",
        "pop",
        "remove",
        "reverse",
        "sort",
    ),
)
for _name in _LOOKS:
    setattr(Later, _name, _looking(_name))
