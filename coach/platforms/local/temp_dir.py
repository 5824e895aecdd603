"""A handler's temporary folder: gone with it, and where it was killed, swept by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

PREFIX = "coach-"
#: Locked in each folder while its handler runs.
LOCK = ".lock"


class Scratch:
    """A temporary folder at `path`, from `Scratch.make` to `close`."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls) -> Scratch:
        """A new folder; those that killed handlers left are deleted. Raises OSError."""
        sweep()
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
            lock = (path / LOCK).open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):
                if (path / LOCK).stat().st_ino == os.fstat(lock.fileno()).st_ino:
                    return cls(path, lock)
            lock.close()  # another handler took it for a dead one's in the moment before it was locked

    def close(self) -> None:
        """Delete it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep() -> None:
    """Delete the folders of handlers that have ended. What cannot be deleted stays."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
