"""A journal's file: its tables, the lock against a second handler, and a fencing token where locks have no effect."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from coach.core.errors import PermanentError, UserError

SCHEMA_VERSION = 2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS records (
    seq  INTEGER PRIMARY KEY,
    at   REAL NOT NULL,
    job  TEXT NOT NULL,
    type TEXT NOT NULL,
    body TEXT NOT NULL
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


def acquire_fence(path: Path, connection: sqlite3.Connection, term: int | None = None) -> int:
    """Prepare the file for writing; the fencing token, higher than any before it.

    `term` of a handler that leads by a lease: one of an earlier term, or of the same, is refused by PermanentError.
    """
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(_SCHEMA.format(handling=HANDLING, request=REQUEST, requested=REQUESTED))
        check_version(path, connection)
        connection.execute("BEGIN IMMEDIATE")
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
