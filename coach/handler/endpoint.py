"""The address of a state folder's service, and the token that its clients send.

$COACH_HOME
  service.lock   locked by the service while it runs, so the lock of a killed one is free
  service.json   its address; written once it answers, read by every command that calls it
  token          what clients must send; only its owner may read it
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from coach.core.errors import PermanentError, UserError
from coach.handler.private_files import locked, open_lock, opener
from coach.handler.state.state_directory import StateDirectory

log = logging.getLogger(__name__)

#: Prefix of the HTTP API's paths.
API = "/api/v1"
#: Minimum characters of a token.
SHORTEST_TOKEN = 20
#: Bytes read of a token file; no token is longer.
_LONGEST_FILE = 4096


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running service: its URL, its process id and the file with its token."""

    url: str
    pid: int
    token_file: str
    version: str

    @property
    def token(self) -> str:
        """The token. Raises UserError where it cannot be read."""
        return read_token(Path(self.token_file))


class ServiceRunsError(UserError):
    """A service has this state folder already."""


@contextlib.contextmanager
def claimed(home: StateDirectory) -> Iterator[None]:
    """Be the only service of a state folder. Raises ServiceRunsError where one runs already."""
    file = home.path / "service.lock"
    with open_lock(file) as lock:
        if not locked(lock, 0.05, 0.2):  # `find` holds the lock for a moment
            raise ServiceRunsError(_taken(home))
        withdraw(home)  # what a killed one left
        try:
            yield
        finally:
            withdraw(home)


def _taken(home: StateDirectory) -> str:
    other = find(home)
    where = f"at {other.url} (process {other.pid})" if other else "and is just starting"
    return (
        f"{home.path}: a service runs already, {where}; give it jobs with `coach submit FILE`, end it with "
        "Ctrl-C or SIGTERM, or set COACH_HOME to another folder"
    )


def publish(home: StateDirectory, endpoint: Endpoint) -> None:
    """Let other commands find the service."""
    file = _file(home)
    made = file.with_suffix(".new")
    made.unlink(missing_ok=True)
    with open(made, "x", opener=opener, encoding="utf-8") as out:
        json.dump(asdict(endpoint), out)
    made.replace(file)


def withdraw(home: StateDirectory) -> None:
    """Hide the service from other commands."""
    _file(home).unlink(missing_ok=True)


def find(home: StateDirectory) -> Endpoint | None:
    """The service of a state folder; None if none runs, or it does not answer yet."""
    try:
        with (home.path / "service.lock").open("r") as lock, contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        return Endpoint(**json.loads(_file(home).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def own_token(home: StateDirectory) -> Path:
    """The state folder's token file, made where there is none. One that others could read is replaced, which is said.

    Raises UserError, PermanentError as `read_token` does.
    """
    file = home.path / "token"
    with contextlib.suppress(OSError):
        found = file.lstat()
        if stat.S_ISREG(found.st_mode) and (found.st_mode & 0o077 or found.st_uid != os.geteuid()):
            log.warning(
                "%s: others could read or change this token; it is replaced, who has it needs the new one", file
            )
            file.unlink()
    with contextlib.suppress(FileExistsError), open(file, "x", opener=opener, encoding="ascii") as out:
        out.write(secrets.token_urlsafe(32) + "\n")
    read_token(file)
    return file


def chosen_token(home: StateDirectory, file: Path) -> Path:
    """The file of the token that `--token FILE` names. What is no file, as a pipe, is read once: then it is the state
    folder's own, where other commands find it. Raises as `read_token` does.
    """
    if file.is_file() and not file.is_relative_to("/dev") and not file.is_relative_to("/proc"):
        return file
    token, own = read_token(file), home.path / "token"
    new = own.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "x", opener=opener, encoding="ascii") as out:
        out.write(token + "\n")
    new.replace(own)
    return own


def read_token(file: Path) -> str:
    """The token in a file that its owner alone may read. Raises UserError, PermanentError."""
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            text = opened.read(_LONGEST_FILE).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise PermanentError(f"{file}: cannot be read as a token: {getattr(error, 'strerror', error)}") from error
    mode = stat.S_IMODE(found.st_mode)
    # A Secret's files in a pod belong to root, and its group is the pod's.
    others = 0o077 if found.st_uid == os.geteuid() else 0o007
    if stat.S_ISREG(found.st_mode) and mode & others:
        raise UserError(f"{file}: others may read this token (mode {mode:o}); chmod 600 {file}")
    if len(text) < SHORTEST_TOKEN or not text.isprintable() or " " in text:
        raise UserError(f"{file}: a token has at least {SHORTEST_TOKEN} characters, on one line without spaces")
    return text


def _file(home: StateDirectory) -> Path:
    return home.path / "service.json"
