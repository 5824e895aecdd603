"""Bytes at URIs: a plain path, file://, or an object store (s3://, gs://), for which obstore is needed.

Object stores take their address and credentials from the environment, as their own tools do: AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or a workload's identity. A request that fails is sent again
for up to three minutes; what is larger than PART_BYTES goes in parts.
"""

import contextlib
import functools
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from training.errors import TrainingError

#: What is larger is uploaded in parts, each of which is sent again where it fails.
PART_BYTES = 8 << 20


def local_path(uri: str) -> Path | None:
    """The path that a URI names on this machine, or None when it is elsewhere."""
    if uri.startswith("file://"):
        return Path(unquote(urlsplit(uri).path))
    return None if "://" in uri else Path(uri)


def _elsewhere(uri: str) -> tuple[Any, str]:
    """The store that a URI names, and the place in it."""
    parts = urlsplit(uri)
    return _store(parts.scheme, parts.netloc), uri.partition("://")[2].removeprefix(parts.netloc).lstrip("/")


@functools.cache
def _store(scheme: str, bucket: str) -> Any:
    try:
        from obstore.store import from_url  # only where it is needed: not every Python with PyTorch has it
    except ImportError as error:
        raise TrainingError("StorageFailed", f"{scheme}:// needs the package obstore: pip install obstore") from error
    # Who names an endpoint without TLS means it.
    return from_url(f"{scheme}://{bucket}", client_options={"allow_http": True})


def _failed(did: str, uri: str, error: Exception) -> str:
    """What went wrong; a store's errors have details of its requests in further lines."""
    return f"{did} {uri}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def read(uri: str, missing: str) -> bytes:
    """The bytes at `uri`. Raises TrainingError with reason `missing` when nothing is there, else StorageFailed."""
    try:
        if (path := local_path(uri)) is not None:
            return path.read_bytes()
        store, place = _elsewhere(uri)
        return bytes(store.get(place).bytes())
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise TrainingError(missing, f"nothing to read at {uri}") from error
    except TrainingError:
        raise
    except Exception as error:
        raise TrainingError("StorageFailed", _failed("reading", uri, error)) from error


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
        raise TrainingError("StorageFailed", _failed("reading", uri, error)) from error
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
        store, place = _elsewhere(uri)
        buffer = io.BytesIO()
        yield buffer
        buffer.seek(0)
        store.put(place, buffer, chunk_size=PART_BYTES)
    except TrainingError:
        raise
    except Exception as error:
        raise TrainingError("StorageFailed", _failed("writing", uri, error)) from error


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
            store, place = _elsewhere(uri)
            store.delete(place)


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
