"""A journal's file: its tables, the lock against a second handler, and a fencing token where locks have no effect."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from coach.core.errors import PermanentError, UserError

log = logging.getLogger(__name__)

SCHEMA_VERSION = 2
#: Seconds for which SQLite itself waits for the write lock, then until the next try, and until that is said.
BUSY_SECONDS, PAUSE_SECONDS, SAID_AFTER = 0.1, 0.1, 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS records (
    seq  INTEGER PRIMARY KEY,
    at   REAL NOT NULL,
    job  TEXT NOT NULL,
    type TEXT NOT NULL,
    body TEXT NOT NULL,
    sum  INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS records_of_job ON records (job, seq);
CREATE INDEX IF NOT EXISTS handler_records ON records (seq) WHERE {handling};
CREATE INDEX IF NOT EXISTS requests ON records ({request}) WHERE {requested};
CREATE TABLE IF NOT EXISTS snapshots (
    job    TEXT PRIMARY KEY,
    born   INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    shape  TEXT NOT NULL,
    body   TEXT NOT NULL,
    count  INTEGER NOT NULL,
    epochs BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS views (
    job    TEXT PRIMARY KEY,
    seq    INTEGER NOT NULL,
    shape  TEXT NOT NULL,
    row    TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
"""

#: Records that say which handler had which job when; few, so they have an index of their own.
HANDLING = "type IN ('HandlerStarted', 'JobSubmitted', 'ResumeRequested', 'SuspendRequested')"

#: The identity of the request for which a record was written, and the records that have one.
REQUEST = "CASE WHEN json_valid(body) THEN json_extract(body, '$.request') END"
REQUESTED = "type IN ('JobSubmitted', 'ResumeRequested')"


class JournalBusyError(UserError):
    """Another handler writes this journal."""


def acquire_fence(
    path: Path,
    connection: sqlite3.Connection,
    term: int | None = None,
    waits: Callable[[bool], None] = lambda _: None,
) -> int:
    """Prepare the file for writing; the fencing token, higher than any before it. `waits` as in Patience.

    `term` of a handler that leads by a lease: one of an earlier term, or of the same, is refused by PermanentError.
    """
    once = partial(patiently, path, waits=waits)
    try:
        once(lambda: connection.execute("PRAGMA journal_mode=WAL"))
        connection.execute("PRAGMA synchronous=FULL")
        if meta_there(connection) and not has_sums(connection):  # of an earlier release
            once(lambda: connection.execute("ALTER TABLE records ADD COLUMN sum INTEGER"))
        tables = _SCHEMA.format(handling=HANDLING, request=REQUEST, requested=REQUESTED)
        once(lambda: connection.executescript(tables))
        check_version(path, connection)
        once(lambda: connection.execute("BEGIN IMMEDIATE"))
        connection.execute(
            "INSERT OR IGNORE INTO meta VALUES ('version', ?), ('fence', 0), ('identity', abs(random() % (1 << 48)))",
            (SCHEMA_VERSION,),
        )
        if term is not None:
            if (last := meta(connection, "term")) >= term:
                raise PermanentError(f"{path}: a handler of term {last} has it; this one, of term {term}, stops")
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('term', ?)", (term,))
        connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'fence'")
        token = meta(connection, "fence")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise PermanentError(f"{path}: cannot be used as a journal: {error}") from error
    return token


class Patience:
    """What is said while another process has a journal's write lock, and does not go on: it may be paused.

    `waits` is called with True when that is said, and with False when it is over. Who has the lock is in the file of
    the journal's own lock, where it was a handler.
    """

    def __init__(self, path: Path, waits: Callable[[bool], None] = lambda _: None) -> None:
        self._path, self._waits, self._said = path, waits, False
        self._began = time.monotonic()

    def again(self) -> None:
        """It could not be written once more."""
        if not self._said and time.monotonic() - self._began >= SAID_AFTER:
            self._said = True
            log.warning(
                "%s: another process has its write lock and does not go on: %s. This handler waits until that "
                "process goes on, or has ended (kill -9 PID there, or delete its pod)", self._path, writer(self._path),
            )  # fmt: skip
            self._waits(True)

    def over(self) -> None:
        """It can be written."""
        if self._said:
            log.info("%s: can be written again", self._path)
            self._waits(False)


def patiently(path: Path, do: Callable[[], object], waits: Callable[[bool], None] = lambda _: None) -> None:
    """Do what needs the file's write lock, and again for as long as another process has that; `waits` as in Patience.

    Raises sqlite3.Error for all else that goes wrong.
    """
    patience = Patience(path, waits)
    while True:
        try:
            do()
            break
        except sqlite3.OperationalError as error:
            if not busy(error):
                raise
        patience.again()
        time.sleep(PAUSE_SECONDS)
    patience.over()


def busy(error: sqlite3.Error) -> bool:
    """Whether another process has the write lock, or is stopped while it changes who reads what."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)


def writer(path: Path) -> str:
    """Who wrote last to a journal, as far as its lock says: its process and machine."""
    with contextlib.suppress(OSError):
        pid, _, host = path.with_suffix(".lock").read_text(errors="replace").strip().partition(" ")
        if pid.isdecimal():
            return f"the last handler was process {pid} on {host}"
    return f"unknown; on this machine: fuser {path}"


def checksum(at: float, job: str, kind: str, body: str) -> int:
    """Of a record's columns: one that was changed by a disk, or by hand, is known by it."""
    return zlib.crc32(f"{at if at is None else float(at)!r} {job} {kind} {body}".encode(errors="surrogatepass"))


def meta_there(connection: sqlite3.Connection) -> bool:
    """Whether it is a journal already."""
    return bool(connection.execute("PRAGMA table_info(records)").fetchall())


def has_sums(connection: sqlite3.Connection) -> bool:
    """Whether records have checksums: those of an earlier release have none until a handler opens the journal."""
    return any(row[1] == "sum" for row in connection.execute("PRAGMA table_info(records)"))


def refuse_cut(path: Path) -> None:
    """Raises PermanentError for an empty file where there are jobs: a new journal would forget what they cost."""
    jobs = path.parent / "jobs"
    if path.exists() and path.stat().st_size == 0 and jobs.is_dir() and any(jobs.iterdir()):
        raise PermanentError(
            f"{path}: is empty, though {jobs} has jobs: it was cut off. Put a copy of it there; or, to begin anew "
            f"without what they did and spent, move {path} and {jobs} away"
        )


def meta(connection: sqlite3.Connection, key: str) -> int:
    """What a journal says of itself: `version`; `fence`, the token of the last handler that opened it for writing.

    `term`: the highest that has done so, of handlers that lead by a lease. `identity`: a number that no other journal
    has. 0 where it is not there.
    """
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return int(row[0]) if row else 0


def check_version(path: Path, connection: sqlite3.Connection) -> None:
    """Raises PermanentError for a file that is no journal, or of another version."""
    try:
        version = meta(connection, "version")
    except sqlite3.Error as error:
        raise PermanentError(f"{path}: not a journal of Coach: {error}") from error
    if version not in (0, SCHEMA_VERSION):
        other = "a later" if version > SCHEMA_VERSION else "an earlier"
        raise PermanentError(
            f"{path}: written by {other} Coach (journal version {version}, this one reads {SCHEMA_VERSION}); "
            "read it with that one, or set COACH_HOME to another folder"
        )
