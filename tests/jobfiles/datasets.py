"""Small data sets of each format that a job file can name, as their sources describe them."""

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np


def digits(folder: Path) -> Path:
    folder.mkdir()
    for digit in range(10):
        (folder / f"{digit}.json").write_text(json.dumps({"data": [digit / 10] * 784 * 2}))
    return folder


def idx_file(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx(folder: Path, *, packed: bool = False) -> Path:
    folder.mkdir()
    for part, count in (("train", 20), ("t10k", 8)):
        labels = np.arange(count, dtype=np.uint8) % 10
        for kind, array in (
            ("images-idx3", np.full((count, 28, 28), 7, np.uint8)),
            ("labels-idx1", labels),
        ):
            content = idx_file(array)
            name = f"{part}-{kind}-ubyte{'.gz' * packed}"
            (folder / name).write_bytes(gzip.compress(content) if packed else content)
    return folder


def cifar10(folder: Path) -> Path:
    folder.mkdir()
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(b"".join(bytes([label]) + bytes(3072) for label in (3, 9)))
    return folder


def cifar10_archive(path: Path, mode: str = "w:gz") -> Path:
    source = cifar10(path.with_name("unpacked"))
    with tarfile.open(path, mode) as archive:
        archive.add(source, "cifar-10-batches-bin")
    return path


def npz(path: Path, samples: int = 4, **changes: np.ndarray | None) -> Path:
    arrays = {
        f"{axis}_{part}": np.zeros((samples, 3) if axis == "x" else samples, np.float32)
        for axis in "xy"
        for part in ("train", "test")
    }
    kept = {name: array for name, array in {**arrays, **changes}.items() if array is not None}
    content = io.BytesIO()
    np.savez(content, **kept)
    path.write_bytes(content.getvalue())
    return path
