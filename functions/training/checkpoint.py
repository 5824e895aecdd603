"""A checkpoint: one file with weights, optimizer state and the place in the stream of samples.

It is a NumPy archive (.npz: a zip of .npy arrays) with one more member, `meta.json`. Nothing in it is executed when it
is read: no pickle. `numpy.load(path)["weights/0.weight"]` reads a weight without any of Coach.
"""

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass

import numpy as np

from training import storage
from training.errors import TrainingError

FORMAT = "coach-checkpoint"
VERSION = 1
META = "meta.json"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a job after an epoch. `position` is in samples since the job's start."""

    arrays: dict[str, np.ndarray]
    settings: dict
    position: int
    epoch: str
    seed: int


def save(uri: str, state: Checkpoint) -> None:
    """Write it at `uri`, whole or not at all. Raises TrainingError StorageFailed."""
    storage.write(uri, encode(state))


def load(uri: str) -> Checkpoint:
    """Read and verify. Raises TrainingError CheckpointMissing, CheckpointInvalid or StorageFailed."""
    content = storage.read(uri, missing="CheckpointMissing")
    try:
        return decode(content)
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise TrainingError("CheckpointInvalid", f"{uri} ({len(content)} bytes): {error}") from error


def encode(state: Checkpoint) -> bytes:
    """The file's bytes."""
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "epoch": state.epoch,
        "position": state.position,
        "seed": state.seed,
        "settings": state.settings,
    }
    meta["sha256"] = _digest(meta, state.arrays)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        # A fixed date: the same state gives the same bytes.
        archive.writestr(zipfile.ZipInfo(META), json.dumps(meta, sort_keys=True))
        for name, array in state.arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def decode(content: bytes) -> Checkpoint:
    """The inverse of encode. Raises ValueError and zipfile's errors for what is not a whole checkpoint."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        meta = json.loads(archive.read(META))
        if meta.get("format") != FORMAT or meta.get("version") != VERSION:
            raise ValueError(
                f"format {meta.get('format')!r} version {meta.get('version')!r}, not {FORMAT} {VERSION}"
            )
        arrays = {}
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as member:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
    if meta.pop("sha256") != _digest(meta, arrays):
        raise ValueError("its content is not what was written")
    return Checkpoint(arrays, meta["settings"], int(meta["position"]), str(meta["epoch"]), int(meta["seed"]))


def _digest(meta: dict, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()
