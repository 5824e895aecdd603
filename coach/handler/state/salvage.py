"""What can be read of a damaged journal, page by page: SQLite itself reads nothing behind a page that is damaged.

A page has whole records, and each record its checksum, so one that is found is one that was written: records are never
changed nor deleted. The index by job says of which job a record was that is lost. The format is
https://www.sqlite.org/fileformat2.html (sections 1.5, 1.6, 2.1 and 4).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coach.handler.state.codec import Record, decode
from coach.handler.state.journal_file import checksum

_MAGIC, _USUAL_SIZE = b"SQLite format 3\0", 4096
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 13, 10, 2
_WAL_HEADER, _FRAME_HEADER = 32, 24
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
#: Bytes of the largest record that is looked for.
_LARGEST = 64 << 20

Value = None | int | float | bytes


@dataclass(slots=True)
class Salvage:
    """By number: the records that are whole, and the jobs of all that were written; "" is no job.

    `unread`: numbers of records that are whole, and of a type that this Coach does not know. `cut_off`: the file has
    fewer pages than it should, so later records may be gone without a trace.
    """

    records: dict[int, Record] = field(default_factory=dict)
    jobs: dict[int, str] = field(default_factory=dict)
    unread: set[int] = field(default_factory=set)
    cut_off: bool = False

    @property
    def lost(self) -> list[int]:
        """Numbers of the records that were written and are not whole, as far as anything names a later one."""
        last = max([*self.records, *self.jobs], default=0)
        return [seq for seq in range(1, last + 1) if seq not in self.records]


def salvage(path: Path) -> Salvage:
    """Everything that is whole in a journal's file and in its write-ahead log. Raises OSError."""
    found = Salvage()
    indexed: dict[int, str] = {}
    pages = _Pages(path)
    found.cut_off = pages.cut_off
    for number, page in pages.all():
        start = 100 if number == 1 else 0
        kind = page[start] if len(page) > start else 0
        if kind not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            continue
        for at in _cells(page, start, kind):
            with contextlib.suppress(ValueError, IndexError, struct.error):
                if kind == _TABLE_LEAF:
                    _take(found, *pages.row(page, at))
                else:
                    _index(indexed, pages.key(page, at + 4 * (kind == _INDEX_INTERIOR)))
    found.jobs |= {seq: job for seq, job in indexed.items() if seq not in found.jobs}
    return found


def _take(found: Salvage, seq: int, values: list[Value]) -> None:
    """A row of `records` has no value of its own for its number, then its columns. Raises ValueError for others."""
    if len(values) not in (5, 6) or values[0] is not None:
        raise ValueError("of another table")
    _, at, job, kind, body, known = [*values, None][:6]
    if not (isinstance(job, bytes) and isinstance(kind, bytes) and isinstance(body, bytes)):
        raise ValueError("of another table")
    if not isinstance(at, int | float):
        raise ValueError("no time")
    name, what, text = job.decode(), kind.decode(), body.decode()
    if known is not None and known != checksum(float(at), name, what, text):
        raise ValueError("changed")
    found.jobs[seq] = name
    try:
        record = decode(what, text)
    except (KeyError, ValueError):
        if known is not None:
            found.unread.add(seq)
        return
    if record.job == name:
        found.records[seq] = record


def _index(found: dict[int, str], values: list[Value]) -> None:
    """A key of the index by job: the job, and the record's number twice."""
    match values:
        case [bytes() as job, int() as seq, int() as again] if seq == again > 0:
            found[seq] = job.decode()


class _Pages:
    """The pages of a database; those that its write-ahead log has are taken from there."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        said = int.from_bytes(self._data[16:18], "big") if self._data.startswith(_MAGIC) else 0
        said = 65536 if said == 1 else said
        self.size = said if said >= 512 and said & (said - 1) == 0 else _USUAL_SIZE
        self._later = self._committed(path.with_name(f"{path.name}-wal"))

    def _committed(self, wal: Path) -> dict[int, bytes]:
        """Pages of complete transactions, the latest of each."""
        data = wal.read_bytes() if wal.is_file() else b""
        found: dict[int, bytes] = {}
        begun: dict[int, bytes] = {}
        step = _FRAME_HEADER + self.size
        for at in range(_WAL_HEADER, len(data) - step + 1, step):
            number, commit = struct.unpack_from(">II", data, at)
            if data[at + 8 : at + 16] != data[16:24]:  # of an earlier round of the log
                break
            begun[number] = data[at + _FRAME_HEADER : at + step]
            if commit:
                found |= begun
                begun = {}
        return found

    @property
    def cut_off(self) -> bool:
        """Whether its last page is missing, or a part of it."""
        return len(self.page(int.from_bytes(self.page(1)[28:32], "big") or 1)) < self.size

    def page(self, number: int) -> bytes:
        """One page, from 1; empty where there is none."""
        return self._later.get(number) or self._data[(number - 1) * self.size : number * self.size]

    def all(self) -> Iterator[tuple[int, bytes]]:
        """Every page with its number."""
        last = max(len(self._data) // self.size + 1, *self._later, 0)
        return ((number, self.page(number)) for number in range(1, last + 1))

    def row(self, page: bytes, at: int) -> tuple[int, list[Value]]:
        """Number and values of the row whose cell begins at `at`. Raises ValueError, IndexError, struct.error."""
        length, at = _varint(page, at)
        seq, at = _varint(page, at)
        return seq, _values(self._payload(page, at, length, self.size - 35))

    def key(self, page: bytes, at: int) -> list[Value]:
        """The values of an index's key. Raises as `row`."""
        length, at = _varint(page, at)
        return _values(self._payload(page, at, length, (self.size - 12) * 64 // 255 - 23))

    def _payload(self, page: bytes, at: int, length: int, most: int) -> bytes:
        """`length` bytes: on the page itself if they are `most` at most, else their end is on pages of its own."""
        if length > _LARGEST:
            raise ValueError("no length")
        if length <= most:
            return page[at : at + length]
        least, rest = (self.size - 12) * 32 // 255 - 23, self.size - 4
        here = least + (length - least) % rest
        here = here if here <= most else least
        found = bytearray(page[at : at + here])
        (following,) = struct.unpack_from(">I", page, at + here)
        while len(found) < length:
            if len(more := self.page(following)) <= 4:
                raise ValueError("cut off")
            (following,) = struct.unpack_from(">I", more)
            found += more[4 : 4 + length - len(found)]
        return bytes(found)


def _cells(page: bytes, start: int, kind: int) -> Iterator[int]:
    (many,) = struct.unpack_from(">H", page, start + 3) if len(page) >= start + 8 else (0,)
    first = start + (12 if kind == _INDEX_INTERIOR else 8)
    for place in range(first, min(first + 2 * many, len(page) - 1), 2):
        yield int.from_bytes(page[place : place + 2], "big")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and where it ends."""
    value = 0
    for step in range(8):
        value = value << 7 | data[at + step] & 0x7F
        if data[at + step] < 0x80:
            return value, at + step + 1
    return value << 8 | data[at + 8], at + 9


def _values(payload: bytes) -> list[Value]:
    """The values of a row or a key."""
    head, at = _varint(payload, 0)
    kinds = []
    while at < head:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    found: list[Value] = []
    for kind in kinds:
        size = _INTEGERS.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)
        part = payload[at : at + size]
        if len(part) < size:
            raise ValueError("cut off")
        at += size
        if kind in (8, 9):
            found.append(kind - 8)
        elif kind == 7:
            found.append(float(struct.unpack(">d", part)[0]))
        elif kind in _INTEGERS:
            found.append(int.from_bytes(part, "big", signed=True))
        else:
            found.append(None if kind == 0 else part)
    return found
