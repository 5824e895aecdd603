"""Whether local data is of the format that its job file says, from the names of files, and an archive's first bytes.

Paths come from strangers: folders are not listed, and only a regular file is opened, without waiting. The functions
read all of the data (`functions/training/data/formats.py`) and say what else is wrong: in `coach try`, and before they
train.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from coach.core.spec.training import DataFormat
from coach.jobfiles.diagnostics import show

_TAR_ENDINGS = (".tar.gz", ".tgz", ".tar")
_ZIP = b"PK\x03\x04"
_IDX = [f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
#: Formats of several files: the names that each file may have, and what would be right.
_FOLDERS: dict[DataFormat, tuple[list[tuple[str, ...]], str]] = {
    DataFormat.DIGITS_JSON: (
        [(f"{digit}.json",) for digit in range(10)],
        "a folder with 0.json to 9.json, which `make data` gets",
    ),
    DataFormat.IDX: (
        [(name, f"{name}.gz") for name in _IDX],
        "a folder with MNIST's four IDX files, compressed or not",
    ),
    DataFormat.CIFAR10: (
        [*((f"data_batch_{number}.bin",) for number in range(1, 6)), ("test_batch.bin",)],
        "a folder with the six .bin files of CIFAR-10's binary version, or its .tar.gz",
    ),
}


class Mismatch(NamedTuple):
    """What is wrong with a data set, what was seen, and what would be right. `format`: that which the data has."""

    problem: str
    seen: str
    right: str
    format: DataFormat | None = None


def mismatch(path: Path, format: DataFormat) -> Mismatch | None:
    """What shows that the data at `path` is not of this format; None where nothing does.

    Raises OSError for what cannot be read.
    """
    wrong = _wrong(path, format)
    if wrong is None:
        return None
    return wrong._replace(format=next((one for one in _OF_FILES if one is not format and _is(path, one)), None))


_OF_FILES = (*_FOLDERS, DataFormat.NPZ)


def _is(path: Path, format: DataFormat) -> bool:
    try:
        return _wrong(path, format) is None
    except OSError:
        return False


def _wrong(path: Path, format: DataFormat) -> Mismatch | None:
    if format is DataFormat.NPZ:
        return _no_archive(path)
    if format not in _FOLDERS or (format is DataFormat.CIFAR10 and path.name.endswith(_TAR_ENDINGS)):
        return None
    files, right = _FOLDERS[format]
    if not path.is_dir():
        return Mismatch("not a folder", f"{path.name} is a file", right)
    for names in files:
        if not any(_is_file(path / name) for name in names):
            return Mismatch("no such file", show(str(path / names[0]), 300), right)
    return None


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _no_archive(path: Path) -> Mismatch | None:
    right = "NumPy's archive, as numpy.savez writes it, with x_train, y_train, x_test and y_test"
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return Mismatch("not a file", f"{path.name} is a folder", right)
        first = os.pread(file, len(_ZIP), 0)
    finally:
        os.close(file)
    if first == _ZIP:
        return None
    seen = f"starts with bytes {first.hex(' ')}" if first else "is empty"
    return Mismatch("not an npz archive", f"{path.name} {seen}", right)
