"""Only its owner may use the state folder: folders have mode 0700, files 0600, whatever the umask is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import IO

from coach.core.errors import PermanentError

FOLDER_MODE = 0o700
FILE_MODE = 0o600
#: Coach's own files in a state folder. No other file is changed: the folder may be the user's home.
_OWN = ("journal*", "lock", "service.*", "token", "jobs", "jobs/**/*")


def opener(path: str, flags: int) -> int:
    """For `open`: only its owner may use a new file."""
    return os.open(path, flags, FILE_MODE)


def open_lock(path: Path) -> IO[str]:
    """A file to lock, made where there is none. Raises OSError."""
    return open(path, "a+", opener=opener)


def locked(lock: IO[str], *pauses: float) -> bool:
    """Lock a file for this process alone; whether that was possible, at once or after one of the pauses (seconds)."""
    for pause in (0.0, *pauses):
        time.sleep(pause)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only. Raises OSError."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        folder.mkdir(FOLDER_MODE, exist_ok=True)


def refuse_shared(folder: Path) -> None:
    """Raises PermanentError for a folder that belongs to another user, or that others may write in."""
    try:
        found = folder.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise PermanentError(
            f"{folder}: cannot be Coach's state folder: it belongs to another user (uid {found.st_uid}); "
            "set COACH_HOME to a folder of your own"
        )
    if mode & 0o022:
        raise PermanentError(
            f"{folder}: cannot be Coach's state folder: other users may write in it (mode {mode:04o}); "
            f"if you trust what is in it: chmod go-rwx {folder}"
        )


def tighten(folder: Path) -> None:
    """Remove other users' rights in a state folder that an earlier Coach made. Raises PermanentError as above."""
    refuse_shared(folder)
    if not folder.exists() or not folder.stat().st_mode & 0o077:
        return
    for path in (path for pattern in _OWN for path in folder.glob(pattern)):
        if not path.is_symlink():
            path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)
    folder.chmod(FOLDER_MODE)  # last: its mode shows that all files are done


def state_folder() -> Path:
    """By COACH_HOME, else in the XDG data folder."""
    if chosen := os.environ.get("COACH_HOME"):
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share").absolute() / "coach"
