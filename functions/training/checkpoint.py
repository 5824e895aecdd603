"""A checkpoint: one file with weights, optimizer state and the place in the stream of samples.

Each framework has a format of its own, which its users can read without Coach; nothing in it is executed when it is
read. `write` and `read` are MXNet's: a NumPy archive (.npz: a zip of .npy arrays) with one more member, `meta.json`.
`numpy.load(path)["weights/0.weight"]` reads a weight. For PyTorch see training.pytorch.checkpoint.
"""

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from training import storage
from training.errors import TrainingError

FORMAT = "coach-checkpoint"
VERSION = 2
META = "meta.json"
ARRAY = ".npy"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a job after an epoch. `position` is in samples since the job's start."""

    arrays: dict[str, Any]
    settings: dict
    position: int
    epoch: str
    seed: int


def save(uri: str, state: Checkpoint, write: Callable[[BinaryIO, Checkpoint], None]) -> None:
    """Write it at `uri`, whole or not at all. Raises TrainingError StorageFailed."""
    with storage.writing(uri) as file:
        write(file, state)


def load(uri: str, read: Callable[[BinaryIO], Checkpoint]) -> Checkpoint:
    """Read and verify. Raises TrainingError CheckpointMissing, CheckpointInvalid or StorageFailed."""
    with storage.reading(uri, missing="CheckpointMissing") as file:
        try:
            return read(file)
        except Exception as error:  # whatever a broken archive makes its readers raise
            size = file.seek(0, io.SEEK_END)
            raise TrainingError("CheckpointInvalid", f"{uri} ({size} bytes): {error}") from error


def write(file: BinaryIO, state: Checkpoint) -> None:
    """Write the archive, array by array: no second copy of them is in memory."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in state.arrays.items():
            # A fixed date: the same state gives the same bytes.
            with archive.open(zipfile.ZipInfo(name + ARRAY), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "epoch": state.epoch,
            "position": state.position,
            "seed": state.seed,
            "settings": state.settings,
            "crc32": {each.filename: each.CRC for each in archive.infolist()},
        }
        archive.writestr(zipfile.ZipInfo(META), json.dumps(meta, sort_keys=True))


def read(file: BinaryIO) -> Checkpoint:
    """The inverse of `write`. Raises ValueError and zipfile's errors for what is not a whole checkpoint.

    The zip holds each member to its checksum; `meta.json` says which members belong together.
    """
    with zipfile.ZipFile(file) as archive:
        meta = json.loads(archive.read(META))
        if meta.get("format") != FORMAT or meta.get("version") != VERSION:
            raise ValueError(f"format {meta.get('format')!r} version {meta.get('version')!r}, not {FORMAT} {VERSION}")
        if meta["crc32"] != {each.filename: each.CRC for each in archive.infolist() if each.filename != META}:
            raise ValueError("its content is not what was written")
        arrays = {}
        for name in meta["crc32"]:
            with archive.open(name) as member:
                arrays[name.removesuffix(ARRAY)] = np.lib.format.read_array(member, allow_pickle=False)
    return Checkpoint(arrays, meta["settings"], int(meta["position"]), str(meta["epoch"]), int(meta["seed"]))
