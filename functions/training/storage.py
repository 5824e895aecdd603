"""Bytes at URIs: a plain path, file://, or whatever fsspec knows (s3://, gs://) when its package is installed."""

import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from training.errors import TrainingError


def local_path(uri: str) -> Path | None:
    """The path that a URI names on this machine, or None when it is elsewhere."""
    if uri.startswith("file://"):
        return Path(unquote(urlsplit(uri).path))
    return None if "://" in uri else Path(uri)


def _elsewhere(uri: str) -> tuple[Any, str]:
    import fsspec.core  # only where it is needed: it takes time to import

    return fsspec.core.url_to_fs(uri)


def read(uri: str, missing: str) -> bytes:
    """The bytes at `uri`. Raises TrainingError with reason `missing` when nothing is there, else StorageFailed."""
    try:
        if (path := local_path(uri)) is not None:
            return path.read_bytes()
        system, place = _elsewhere(uri)
        return system.cat_file(place)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise TrainingError(missing, f"nothing to read at {uri}") from error
    except Exception as error:
        raise TrainingError("StorageFailed", f"reading {uri}: {type(error).__name__}: {error}") from error


def write(uri: str, content: bytes) -> None:
    """Put `content` at `uri`, whole or not at all.

    A local file is written beside, flushed to the disk and renamed; an object store shows an object only when all of
    it has arrived. Raises TrainingError StorageFailed.
    """
    try:
        if (path := local_path(uri)) is not None:
            _write_file(path, content)
            return
        system, place = _elsewhere(uri)
        system.pipe_file(place, content)
    except Exception as error:
        raise TrainingError("StorageFailed", f"writing {uri}: {type(error).__name__}: {error}") from error


def _write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Always the same name: what a killed writer left is written over by the next attempt, not kept for ever.
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def signature(uri: str) -> tuple | None:
    """What changes when a local file, or a file in a local folder, is replaced; None for what is elsewhere."""
    if (path := local_path(uri)) is None or not path.exists():
        return None
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return tuple((file.name, stat.st_size, stat.st_mtime_ns) for file in files if (stat := file.stat()))


def sha256(content: bytes) -> str:
    """The content's SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
