"""Bytes at URIs: a plain path, file://, or an object store (s3://, gs://), for which obstore is needed.

Nothing in a URI is escaped, as in job files (coach/jobfiles/load.py): `file:///a%20b#c` names the file /a%20b#c.

Object stores take their address and credentials from the environment, as their own tools do: AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or a workload's identity. A request that fails is sent again
for up to three minutes; what is larger than PART_BYTES goes in parts.
"""

import contextlib
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from training.errors import TrainingError

#: What is larger is uploaded in parts, each of which is sent again where it fails.
PART_BYTES = 8 << 20
#: Nothing is fetched from anywhere else.
SCHEMES = ("file", "s3", "gs")


def local_path(uri: str) -> Path | None:
    """The path that a URI names on this machine, or None when it is elsewhere. Raises TrainingError for other kinds."""
    scheme, separator, path = uri.partition("://")
    if separator and scheme not in SCHEMES:
        raise TrainingError("BadRequest", f"{uri} must be a path, or of {', '.join(SCHEMES)}")
    return None if separator and scheme != "file" else Path(path if separator else uri)


#: What a process of its own does: the zygote may have no threads, and obstore's requests are made in some.
_ASKS = """
import sys
from obstore.store import from_url
do, store, place, part = sys.argv[1:]
store = from_url(store, client_options={"allow_http": True})  # who names an endpoint without TLS means it
try:
    if do == "get":
        sys.stdout.buffer.write(store.get(place).bytes())
    elif do == "put":
        store.put(place, sys.stdin.buffer.read(), chunk_size=int(part))
    else:
        store.delete(place)
except FileNotFoundError:
    sys.exit(3)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
"""


def _elsewhere(do: str, uri: str, content: bytes | None = None) -> bytes:
    """Get, put or delete what a URI names. Raises FileNotFoundError, OSError."""
    scheme, _, rest = uri.partition("://")
    bucket, _, place = rest.partition("/")
    command = [sys.executable, "-c", _ASKS, do, f"{scheme}://{bucket}", place.lstrip("/"), str(PART_BYTES)]
    done = subprocess.run(command, input=content, capture_output=True, check=False)
    if done.returncode == 3:
        raise FileNotFoundError(uri)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        hint = "; pip install obstore" if "No module named 'obstore'" in words[-1] else ""
        raise OSError(words[-1] + hint)
    return done.stdout


def _failed(did: str, uri: str, error: Exception) -> str:
    """What went wrong; a store's errors have details of its requests in further lines."""
    return f"{did} {uri}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def read(uri: str, missing: str) -> bytes:
    """The bytes at `uri`. Raises TrainingError with reason `missing` when nothing is there, else StorageFailed."""
    with reading(uri, missing) as file:
        return file.read()


@contextlib.contextmanager
def reading(uri: str, missing: str) -> Iterator[BinaryIO]:
    """A file to read and to seek in, with the bytes at `uri`; a local one is not read before it is asked to be.

    Raises as `read` does.
    """
    try:
        path = local_path(uri)
        file: BinaryIO = path.open("rb") if path is not None else io.BytesIO(_elsewhere("get", uri))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise TrainingError(missing, f"nothing to read at {uri}") from error
    except Exception as error:
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
        buffer = io.BytesIO()
        yield buffer
        _elsewhere("put", uri, buffer.getvalue())
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
            _elsewhere("delete", uri)


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
