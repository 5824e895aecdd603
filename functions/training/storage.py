"""Bytes at URIs: a plain path, file://, or whatever fsspec knows (s3://, gs://) when its package is installed."""

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
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


@contextlib.contextmanager
def reading(uri: str, missing: str) -> Iterator[BinaryIO]:
    """A file to read and to seek in, with the bytes at `uri`; a local one is not read before it is asked to be.

    Raises as `read` does.
    """
    if (path := local_path(uri)) is None:
        yield io.BytesIO(read(uri, missing))
        return
    try:
        file = path.open("rb")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise TrainingError(missing, f"nothing to read at {uri}") from error
    except OSError as error:
        raise TrainingError("StorageFailed", f"reading {uri}: {type(error).__name__}: {error}") from error
    with file:
        yield file


@contextlib.contextmanager
def writing(uri: str) -> Iterator[BinaryIO]:
    """A file to write in; when the block is left, its content is at `uri`, and where it raised, what was there before.

    A local file is written under another name in its folder, flushed to the disk and renamed; an object store shows an
    object only when all of it has arrived. Raises TrainingError StorageFailed, also for errors in the block.
    """
    try:
        if (path := local_path(uri)) is not None:
            with _replacing(path) as file:
                yield file
            return
        system, place = _elsewhere(uri)
        buffer = io.BytesIO()
        yield buffer
        system.pipe_file(place, buffer.getvalue())
    except Exception as error:
        raise TrainingError("StorageFailed", f"writing {uri}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Always the same name: the next attempt overwrites the file of a killed writer.
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb", opener=_as_its_folder) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def remove(uri: str) -> None:
    """Delete the file at `uri`; one that is not there, or cannot be deleted, stays as it is."""
    with contextlib.suppress(Exception):  # each file system has errors of its own
        if (path := local_path(uri)) is not None:
            path.unlink()
        else:
            system, place = _elsewhere(uri)
            system.rm_file(place)


def _as_its_folder(path: str, flags: int) -> int:
    """Open a new file with the folder's permissions for reading and writing."""
    return os.open(path, flags, Path(path).parent.stat().st_mode & 0o666)


def signature(uri: str) -> tuple | None:
    """A value that changes when a local file, or a file in a local folder, is replaced; None for other URIs."""
    if (path := local_path(uri)) is None or not path.exists():
        return None
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return tuple((file.name, stat.st_size, stat.st_mtime_ns) for file in files if (stat := file.stat()))


def sha256(content: bytes) -> str:
    """The content's SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
