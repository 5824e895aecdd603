"""Scalars of TensorBoard's event files.

A reader of our own: the package `tensorboard` with what it needs (gRPC, protobuf, a web server) has 150 MB, for the two
formats of which this needs a few fields. A file is a sequence of records: the length of the data (8 bytes, the least
first), its checksum (4), the data, its checksum (4). The data are an `Event` in the wire format of protobuf:
wall_time = 1, step = 2, summary = 5, which repeats value = 1 with tag = 1 and simple_value = 2 or tensor = 8, whose
numbers are tensor_content = 4, float_val = 5 or double_val = 6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

#: Bytes of a record that is read; a longer one, of images or histograms, is left out.
LONGEST_RECORD = 1 << 20
_HEAD, _TAIL = 12, 4
_FLOAT, _DOUBLE = 1, 2


def records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Each record's data in these bytes, and where it ends. Of one that is left out no data; it may end behind them."""
    at = 0
    while len(data) - at >= _HEAD:
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + _HEAD + length + _TAIL
        if length > LONGEST_RECORD:
            yield b"", end
            return
        if end > len(data):
            return
        yield data[at + _HEAD : end - _TAIL], end
        at = end


def scalars(event: bytes) -> tuple[int, dict[str, float]]:
    """The step of an event and its scalars by their tags. Raises ValueError or struct.error for what is no event."""
    step, found = 0, dict[str, float]()
    for number, value in _fields(event):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            for inner, summary in _fields(value):
                if inner == 1 and isinstance(summary, bytes):
                    found |= _value(summary)
    return step, found


def _value(summary: bytes) -> dict[str, float]:
    fields = dict(_fields(summary))
    tag, scalar, tensor = fields.get(1), fields.get(2), fields.get(8)
    if not isinstance(tag, bytes):
        return {}
    name = tag.decode(errors="replace")
    if isinstance(scalar, bytes) and len(scalar) == 4:
        return {name: struct.unpack("<f", scalar)[0]}
    if isinstance(tensor, bytes):
        parts = dict(_fields(tensor))
        kind, single, double = parts.get(1), parts.get(5), parts.get(6)
        content = parts.get(4) or (single if kind == _FLOAT else double)
        form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind if isinstance(kind, int) else 0)
        if form is not None and isinstance(content, bytes) and len(content) == struct.calcsize(form):
            return {name: struct.unpack(form, content)[0]}
    return {}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: the number of each, and its value, of fixed length or not."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind, -1)
        if kind == 2:
            length, at = _varint(data, at)
        if length < 0 or at + length > len(data):
            raise ValueError("not a message of protobuf")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("not a message of protobuf")
