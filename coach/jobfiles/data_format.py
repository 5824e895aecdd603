"""Whether local data is of the format that its job file says, from file sizes and first bytes.

Paths come from strangers. Only regular files are opened, without waiting, and little of each is read, however large it
is; folders are not listed. What is right of a data set is known once the functions have read all of it: this finds
what they would refuse at once. The formats are those of `functions/training/data/formats.py`.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from coach.core.spec.training import DataFormat
from coach.jobfiles.diagnostics import show

#: Bytes read from a file's start, and from the end of an archive, where its list of members is.
_FIRST, _LAST = 1024, 128 << 10

_GZIP = b"\x1f\x8b"
_TAR_ENDINGS = (".tar.gz", ".tgz", ".tar")
#: What the bytes that a file starts with say that it is.
_KNOWN = {
    _GZIP: "a gzip file",
    b"PK\x03\x04": "a zip or npz archive",
    b"PK\x05\x06": "an empty zip archive",
    b"\x93NUMPY": "a single NumPy array (npy)",
    b"\x89HDF": "an HDF5 file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF file",
    b"\x80\x02": "a Python pickle",
    b"\x80\x03": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"PAR1": "a Parquet file",
    b"{": "JSON",
    b"<": "HTML or XML",
    b"version https://git-lfs": "a Git LFS pointer, not the data",
}


class Mismatch(NamedTuple):
    """What is wrong with a data set, what was seen, and what would be right. `format`: that which the data has."""

    problem: str
    seen: str
    right: str
    format: DataFormat | None = None


class _Wrong(Exception):
    """The data is not of the format."""

    def __init__(self, problem: str, seen: str, right: str) -> None:
        self.mismatch = Mismatch(problem, seen, right)


def mismatch(path: Path, format: DataFormat) -> Mismatch | None:
    """What shows that the data at `path` is not of this format; None where nothing does.

    Raises OSError for what cannot be read.
    """
    try:
        _CHECKS.get(format, _anything)(path)
    except _Wrong as wrong:
        other = next((one for one in _CHECKS if one is not format and _is(path, one)), None)
        return wrong.mismatch._replace(format=other)
    return None


def _is(path: Path, format: DataFormat) -> bool:
    try:
        _CHECKS[format](path)
    except (_Wrong, OSError):
        return False
    return True


def _anything(path: Path) -> None:
    """What the model file's own data() reads may be anything."""


def _digits(path: Path) -> None:
    _folder(path, "a folder with 0.json to 9.json, which `make data` gets")
    for digit in range(10):
        first, size = _first(path / f"{digit}.json", "0.json to 9.json, which `make data` gets")
        text = first.decode(json.detect_encoding(first), "replace").lstrip()
        if not text.startswith("{") and (text or size <= _FIRST):
            raise _Wrong("not JSON", _starts(path / f"{digit}.json", first), 'a JSON object with "data"')


def _idx(path: Path) -> None:
    _folder(path, "a folder with MNIST's four IDX files")
    for part in ("train", "t10k"):
        for kind, dimensions in (("images-idx3-ubyte", 3), ("labels-idx1-ubyte", 1)):
            plain = path / f"{part}-{kind}"
            packed = path / f"{part}-{kind}.gz"
            file = packed if _exists(packed) else plain
            right = f"MNIST's four IDX files, such as {plain.name} or {packed.name}"
            first, size = _first(file, right)
            start = _unpacked(file, first)
            if start is not None and start[:4] != bytes((0, 0, 8, dimensions)):
                right = f"an IDX file of unsigned bytes in {dimensions} dimension{'s' * (dimensions > 1)}"
                raise _Wrong("not an IDX file of this kind", _starts(file, first), right)
            header = 4 + 4 * dimensions
            if first[:2] == _GZIP or start is None:
                continue  # how long its content is shows only at the end of it
            shape = struct.unpack(f">{dimensions}I", start[4:header]) if size >= header else ()
            if not shape or size != header + math.prod(shape):
                says = f" for {'x'.join(map(str, shape))} values" if shape else ""
                raise _Wrong(
                    "an IDX file cut short, or too long",
                    f"{file.name} has {size} bytes{says}",
                    "a whole file; get it again",
                )


def _cifar10(path: Path) -> None:
    if path.name.endswith(_TAR_ENDINGS):
        first, _ = _first(path, "CIFAR-10's binary version as a tar file")
        if first[:3] == b"BZh" or first[:6] == b"\xfd7zXZ\0":
            return
        start = _unpacked(path, first)
        try:
            if start is not None:
                tarfile.TarInfo.frombuf(start[:512], "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            raise _Wrong("not a tar file", _starts(path, first), "CIFAR-10's binary version") from None
        return
    _folder(path, "a folder with CIFAR-10's six .bin files, or its .tar.gz")
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        first, size = _first(path / name, "the six .bin files of CIFAR-10's binary version")
        if size == 0 or size % 3073:
            right = "a whole number of images of 3073 bytes, a label and 32x32 pixels in three colours"
            raise _Wrong("not CIFAR-10's binary version", f"{name} has {size} bytes", right)
        if first[0] > 9:
            seen = f"{name} starts with the label {first[0]}"
            raise _Wrong("not CIFAR-10's binary version", seen, "labels from 0 to 9")


def _npz(path: Path) -> None:
    right = "NumPy's archive, as numpy.savez writes it, with x_train, y_train, x_test and y_test"
    first, size = _first(path, right)
    if first[:4] not in (b"PK\x03\x04", b"PK\x05\x06"):
        raise _Wrong("not an npz archive", _starts(path, first), right)
    last = _read(path, max(0, size - _LAST), _LAST)[0]
    if b"PK\x05\x06" not in last:
        raise _Wrong("an archive cut short", f"{path.name}, {size} bytes, has no list of members", right)
    try:
        with zipfile.ZipFile(BytesIO(last)) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (zipfile.BadZipFile, ValueError, OverflowError, struct.error, NotImplementedError):
        return  # a longer list than was read, or a strange one: the functions see all of it
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in names]
    if missing:
        few = ", ".join(sorted(names)[:6]) or "nothing"
        raise _Wrong(f"without {', '.join(missing)}", show(few), right)


#: How each format with files of its own shows, in the order in which others are looked for.
_CHECKS: dict[DataFormat, Callable[[Path], None]] = {
    DataFormat.DIGITS_JSON: _digits,
    DataFormat.IDX: _idx,
    DataFormat.CIFAR10: _cifar10,
    DataFormat.NPZ: _npz,
}


def read_regular(path: Path, offset: int, most: int) -> tuple[bytes, int]:
    """At most `most` bytes of a regular file from `offset` on, and its size; never waits for a writer.

    Raises OSError, or ValueError for what is no regular file (a FIFO, a device, a folder).
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a file")
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):  # replaced since
            raise ValueError("not a file")
        return os.pread(file, most, offset), status.st_size
    finally:
        os.close(file)


def _first(path: Path, right: str) -> tuple[bytes, int]:
    """The first bytes of a file, and its size."""
    return _read(path, 0, _FIRST, right)


def _read(path: Path, offset: int, most: int, right: str = "a file") -> tuple[bytes, int]:
    try:
        return read_regular(path, offset, most)
    except (FileNotFoundError, NotADirectoryError):
        raise _Wrong("no such file", show(str(path), 300), right) from None
    except ValueError:
        kind = "a folder" if path.is_dir() else "neither a file nor a folder"
        raise _Wrong("not a file", f"{path.name} is {kind}", right) from None


def _folder(path: Path, right: str) -> None:
    if not path.is_dir():
        raise _Wrong("not a folder", f"{path.name} is a file", right)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _unpacked(path: Path, first: bytes) -> bytes | None:
    """The first bytes of a file, those of its content where it is compressed with gzip; None: not to be seen yet."""
    if first[:2] != _GZIP:
        return first
    try:
        start = zlib.decompressobj(wbits=31).decompress(first, 512)
        return start if len(start) == 512 or len(first) < _FIRST else None
    except zlib.error:
        raise _Wrong("a damaged gzip file", path.name, "a whole file; get it again") from None


def _starts(path: Path, first: bytes) -> str:
    """What a file starts with, without giving more of it away than four bytes."""
    known = next((what for magic, what in _KNOWN.items() if first.startswith(magic)), None)
    if not first:
        return f"{path.name} is empty"
    return f"{path.name} is {known}" if known else f"{path.name} starts with bytes {first[:4].hex(' ')}"
