"""Data sets of this machine, parsed once: the functions on one machine map the same arrays.

Where COACH_DATA_CACHE names a folder, a data set that a reader has parsed is kept there as plain .npy files, and
every later function maps them instead of parsing again (10,000 digits as JSON: 0.9 s against 2 ms). The key is what
was asked for and the name, size and time of each source file, so a data set that was replaced is parsed anew.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from training import storage
from training.data import formats
from training.data.dataset import DataSet, Split

ARRAYS = ("train.x", "train.y", "test.x", "test.y")
#: Of an entry; one of another layout is never read, nor in the way.
LAYOUT = 2
#: Seconds after which an unfinished entry is taken for that of a function that was killed.
ABANDONED_SECONDS = 3600.0


def load(uri: str, format: str, sha256: str | None = None, size: int | None = None) -> DataSet:
    """As `data.load`, from the cache where there is one and the data set is in local files."""
    folder, signature = os.environ.get("COACH_DATA_CACHE"), storage.signature(uri)
    if not folder or signature is None:
        return formats.load(uri, format, sha256, size)
    key = hashlib.sha256(json.dumps([LAYOUT, uri, format, sha256, signature]).encode()).hexdigest()[:32]
    kept = Path(folder) / key
    try:
        return _read(kept).first(size)
    except (OSError, ValueError, KeyError):
        dataset = formats.load(uri, format, sha256)
        # A cache that cannot be written is only slower.
        with contextlib.suppress(OSError):
            _write(dataset, kept)
        return dataset.first(size)


def _read(kept: Path) -> DataSet:
    about = json.loads((kept / "about.json").read_text())
    scales = about["scales"]
    arrays = {name: np.load(kept / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}
    return DataSet(
        Split(arrays["train.x"], arrays["train.y"], scales["train"]),
        Split(arrays["test.x"], arrays["test.y"], scales["test"]),
        about["sha256"],
    )


def _write(dataset: DataSet, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    _sweep(kept.parent)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=kept.parent))
    try:
        for name in ARRAYS:
            split, attribute = name.split(".")
            np.save(part / f"{name}.npy", getattr(getattr(dataset, split), attribute), allow_pickle=False)
        about = {
            "scales": {"train": dataset.train.scale, "test": dataset.test.scale},
            "sha256": dataset.sha256,
        }
        (part / "about.json").write_text(json.dumps(about))
        part.rename(kept)  # fails where another function was first: its arrays are the same
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sweep(folder: Path) -> None:
    for part in folder.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(part, ignore_errors=True)
