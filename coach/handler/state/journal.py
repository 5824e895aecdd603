"""The journal: every record, in order, in one SQLite file. A job's state is the fold of its records.

One handler writes; any process may read at any time (WAL). Two things keep a second writer out: a lock on a file next
to the journal, which the kernel releases when the process ends, and a fencing token, checked in every transaction, for
file systems where locks have no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from coach.core.cluster import Node, Taken
from coach.core.errors import PermanentError, UserError
from coach.core.jobs.accounts import Accounts, Payer
from coach.core.jobs.actions import NoticeAccount, Settle
from coach.core.jobs.events import AccountSet, HandlerStarted, JobSubmitted, NodesChanged
from coach.core.jobs.fold import apply, submitted
from coach.core.jobs.job import Job
from coach.handler.clock import Clock
from coach.handler.private_files import locked, make_folder, open_lock, opener
from coach.handler.state.codec import Record, decode, encode
from coach.handler.state.journal_file import (
    BUSY_SECONDS,
    HANDLING,
    PAUSE_SECONDS,
    REQUEST,
    REQUESTED,
    JournalBusyError,
    Patience,
    acquire_fence,
    busy,
    check_version,
    checksum,
    has_sums,
    meta,
    patiently,
    refuse_cut,
)
from coach.handler.state.snapshots import dump, load, shape

log = logging.getLogger(__name__)

#: All names, without reading every record.
_NAMES = """
WITH RECURSIVE names (job) AS (
    SELECT min(job) FROM records
    UNION ALL
    SELECT (SELECT min(job) FROM records WHERE records.job > names.job) FROM names WHERE names.job IS NOT NULL
)
SELECT job FROM names WHERE job > ''
"""

_SAVE_SNAPSHOT = """
INSERT OR REPLACE INTO snapshots (job, born, seq, shape, body, count, epochs)
SELECT ?1, (SELECT min(seq) FROM records WHERE job = ?1), (SELECT max(seq) FROM records), ?2, ?3, ?4, ?5
"""

_LOOK = "see what is damaged: coach doctor --journal"

#: The record with the latest time is among so many last ones: records are written nearly in the order of time.
LAST_RECORDS = 1_000


class Journal:
    """An open journal. `Journal.write(path)` for the one handler, `Journal.read(path)` for all others."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[str] | None, token: int) -> None:
        #: When the handler before this one was last here, seconds since 1970; None where there was none.
        self.left_at: float | None = None
        #: Goes on from the last record, as long as the journal is open for writing.
        self.clock = Clock()
        self.path = path
        #: Called before each transaction: it waits, or ends the process, where this handler may not write.
        self.may_write: Callable[[], None] = lambda: None
        self._connection = connection
        self._has_sums = has_sums(connection)
        self._lock = lock
        self._token = token

    @classmethod
    def write(cls, path: Path, term: int | None = None, waits: Callable[[bool], None] = lambda _: None) -> Journal:
        """Open for writing, creating it where needed; `term` and `waits` as in `acquire_fence`.

        Raises JournalBusyError if another handler has it, PermanentError if it is of another version or not a
        journal.
        """
        make_folder(path.parent)
        file = path.with_suffix(".lock")
        left_at = file.stat().st_mtime if file.exists() else None
        lock = open_lock(file)
        connection = None
        try:
            if not locked(lock, 0.1, 0.2):  # `held` of another process locks it for a moment
                raise JournalBusyError(f"{path}: another handler has this journal")
            refuse_cut(path)
            with contextlib.suppress(FileExistsError):  # SQLite gives its other files the mode of this one
                open(path, "x", opener=opener).close()
            connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
            token = acquire_fence(path, connection, term, waits)
        except BaseException:
            if connection is not None:
                connection.close()
            lock.close()
            raise
        with contextlib.suppress(OSError):  # for whom has to wait for this handler
            lock.truncate(0)
            lock.write(f"{os.getpid()} {socket.gethostname()}\n")
            lock.flush()
        journal = cls(path, connection, lock, token)
        last_at = journal.last_at()
        journal.left_at = left_at if left_at is None else max(left_at, last_at)
        journal.clock = Clock(last_at)
        journal.beat(journal.clock.now())
        return journal

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Open for reading. Raises UserError where there is no journal."""
        refuse_cut(path)
        if not path.exists():
            raise UserError(f"no journal at {path}: no job was run yet; start one with: coach run FILE")
        # Where nothing can be written, SQLite has no place for what readers share: nothing changes there either.
        pending = path.with_name(f"{path.name}-wal")
        fixed = "&immutable=1" if _cannot_change(path) and not (pending.exists() and pending.stat().st_size) else ""
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{fixed}", uri=True, isolation_level=None)
        try:
            check_version(path, connection)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection, None, 0)

    def beat(self, at: float) -> None:
        """Write a heartbeat, for the next handler; `at` is on the clock of its records."""
        if self._lock:
            os.utime(self._lock.fileno(), (at, at))

    def append(self, records: Iterable[Record]) -> None:
        """Write records in one transaction, on disk when it returns; it waits while another process has the write lock.

        Raises PermanentError where another handler has taken the journal over: this one must stop.
        """
        rows = list(records)
        patiently(self.path, lambda: self._append(rows))

    async def append_when_free(self, records: Iterable[Record]) -> None:
        """The same; while another process has the write lock, all else of this one goes on."""
        rows, patience = list(records), Patience(self.path)
        while True:
            try:
                self._append(rows)
                break
            except sqlite3.OperationalError:
                patience.again()
            await asyncio.sleep(PAUSE_SECONDS)
        patience.over()

    def _append(self, records: Sequence[Record]) -> None:
        """Raises sqlite3.OperationalError where another process has the write lock."""
        rows = [(record.at, record.job, type(record).__name__, encode(record)) for record in records]
        summed = [(*row, checksum(*row)) for row in rows]
        try:
            with self._transaction():
                self._connection.executemany(
                    "INSERT INTO records (at, job, type, body, sum) VALUES (?, ?, ?, ?, ?)", summed
                )
        except sqlite3.Error as error:
            if busy(error):
                raise
            raise PermanentError(f"{self.path}: cannot write the journal: {error}") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything or nothing. Raises PermanentError where another handler has the journal."""
        self.may_write()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            if meta(self._connection, "fence") != self._token:
                raise PermanentError(f"{self.path}: another handler took this journal over; this one stops")
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def _one_instant(self) -> Iterator[None]:
        """Several reads see the same records: a handler that starts between two of them has begun for none."""
        own = not self._connection.in_transaction
        if own:
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if own and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def save_snapshots(self, *jobs: Job) -> None:
        """Save jobs as of the last record, in one transaction: earlier records need not be folded again.

        Snapshots may be lost if the machine fails, unlike records. Raises PermanentError where another handler has
        taken the journal over.
        """
        try:
            rows = [(job.name, shape(), *dump(job)) for job in jobs]
            self._connection.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                self._connection.executemany(_SAVE_SNAPSHOT, rows)
        except (sqlite3.Error, ValueError) as error:
            names = ", ".join(job.name for job in jobs)
            log.warning("%s: %s: not remembered, starting will take longer: %s", self.path, names, error)
        finally:
            self._connection.execute("PRAGMA synchronous=FULL")

    def save_view(self, job: str, seq: int, shape: str, row: str, detail: str) -> None:
        """Keep what commands show of a job as of record `seq`; like a snapshot it may be lost."""
        try:
            self._connection.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                query = "INSERT OR REPLACE INTO views (job, seq, shape, row, detail) VALUES (?, ?, ?, ?, ?)"
                self._connection.execute(query, (job, seq, shape, row, detail))
        except sqlite3.Error as error:
            log.warning("%s: %s: what is shown of it is not kept: %s", self.path, job, error)
        finally:
            self._connection.execute("PRAGMA synchronous=FULL")

    def records(self, job: str | None = None, after: int = 0) -> Iterator[tuple[int, Record]]:
        """(seq, record) in order, of all jobs or one, later than `after`.

        Raises PermanentError at a record that cannot be read.
        """
        if job is None:
            return self._select("seq > ?", after)
        return self._select("job = ? AND seq > ?", job, after)

    def rows(self, jobs: Sequence[str], after: int = 0, most: int = -1) -> Iterator[tuple[int, str, str]]:
        """(seq, type, body as JSON) of the first `most` records later than `after` that are of `jobs` or of no job."""
        marks = ", ".join("?" * (len(jobs) + 1))
        query = f"SELECT seq, type, body FROM records WHERE job IN ({marks}) AND seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
        yield from self._connection.execute(query, ("", *jobs, after, most))

    def records_of(self, job: str, after: int = 0) -> Iterator[tuple[int, Record]]:
        """(seq, record) of one job and of its handlers. Raises PermanentError at one that cannot be read."""
        return self._select("job IN ('', ?) AND seq > ?", job, after)

    def _select(self, where: str, *values: Any) -> Iterator[tuple[int, Any]]:
        """(seq, record) in order. Raises PermanentError at a record that cannot be read."""
        columns = f"seq, type, body, at, job, {'sum' if self._has_sums else 'NULL'}"
        query = f"SELECT {columns} FROM records WHERE {where} ORDER BY seq"  # noqa: S608
        seq = 0
        try:
            for seq, name, body, at, job, known in self._connection.execute(query, values):
                try:
                    changed = known is not None and known != checksum(at, job, name, body)
                    record = None if changed else decode(name, body)
                except (KeyError, TypeError, ValueError) as error:
                    what = f"cannot be read, it may be of another version of Coach: record {seq}, {name}"
                    raise PermanentError(f"{self.path}: {what}") from error
                if changed:
                    what = f"record {seq}, {name}, was changed since it was written"
                    raise PermanentError(f"{self.path}: {what}; {_LOOK}")
                yield seq, record
        except sqlite3.Error as error:
            raise PermanentError(f"{self.path}: the record after {seq} cannot be read: {error}; {_LOOK}") from error

    def last_seq(self) -> int:
        """Number of the last record; 0 for an empty journal."""
        (seq,) = self._connection.execute("SELECT max(seq) FROM records").fetchone()
        return seq or 0

    def term(self) -> int:
        """The highest term of a handler that led by a lease and had it; 0 for none."""
        return meta(self._connection, "term")

    @property
    def identity(self) -> str:
        """What distinguishes this journal from all others, as hexadecimal digits; 0 for one of an earlier release."""
        return f"{meta(self._connection, 'identity'):x}"

    def last_seqs(self) -> dict[str, int]:
        """By job: the number of its last record."""
        query = "SELECT job, max(seq) FROM records WHERE job > '' GROUP BY job"
        return dict(self._connection.execute(query).fetchall())

    def jobs(self) -> dict[str, Job]:
        """All jobs as of one instant, folded from their records, in the order of their submission."""
        found: list[tuple[int, Job]] = []
        with self._one_instant():
            starts = list(self.records(""))
            snapshots = self._snapshots()
            for (name,) in self._connection.execute(_NAMES).fetchall():
                born, seq, job = snapshots.get(name, (0, 0, None))
                later = heapq.merge(self.records(name, seq), (s for s in starts if s[0] > seq), key=itemgetter(0))
                for number, record in later:
                    if isinstance(record, JobSubmitted):
                        born, job = (number, submitted(record)) if job is None else (born, job)
                    elif job is not None:
                        apply(job, record)
                if job is not None:
                    for curve in (job.models.curve, *job.models.full_epoch_curves):
                        if curve is not None:
                            curve.shrink()
                    found.append((born, job))
        return {job.name: job for _, job in sorted(found, key=itemgetter(0))}

    def accounts(self, jobs: Mapping[str, Job]) -> Accounts:
        """All accounts, folded from their records and from those of `jobs`, which are all of the journal."""
        found = Accounts()
        for _, record in self._of_types("", AccountSet):
            found.apply(record)
        for job in jobs.values():
            if Payer.of(job.job_file) is not None:
                for _, record in self._of_types(job.name, Settle, NoticeAccount):
                    found.follow(job, record)
                found.follow(job, None)  # what it has reserved
        return found

    def settlements(self, job: str) -> Iterator[Settle]:
        """What a job has paid, in order."""
        return (record for _, record in self._of_types(job, Settle))

    def _of_types(self, job: str, *types: type) -> Iterator[tuple[int, Any]]:
        """(seq, record) of one job, of these types alone."""
        marks = ", ".join("?" * len(types))
        return self._select(f"job = ? AND type IN ({marks})", job, *(each.__name__ for each in types))

    def _snapshots(self) -> dict[str, tuple[int, int, Job]]:
        """By job with a snapshot: its first record, the last record in the snapshot, and the job."""
        found = {}
        query = "SELECT job, born, seq, body, count, epochs FROM snapshots WHERE shape = ?"
        with contextlib.suppress(sqlite3.Error):  # a journal that no handler has opened since, or a damaged one
            for name, born, seq, *frozen in self._connection.execute(query, (shape(),)):
                with contextlib.suppress(ValueError):
                    found[name] = born, seq, load(*frozen)
        return found

    def handling(self) -> Iterator[Record]:
        """The records that say which handler had which job when, in order."""
        return (record for _, record in self._select(HANDLING))

    def requested(self, request: str) -> list[tuple[str, int, str, str]]:
        """(request, seq, type, job) of the records that were written for requests that begin with `request`."""
        query = (
            f"SELECT {REQUEST}, seq, type, job FROM records "  # noqa: S608
            f"WHERE {REQUESTED} AND {REQUEST} >= ?1 AND {REQUEST} < ?1 || '~' ORDER BY seq"
        )
        return self._connection.execute(query, (request,)).fetchall()

    def nodes(self) -> tuple[tuple[Node, ...], tuple[Taken, ...]]:
        """The available nodes of the handler that started last, and what others hold; none for an empty journal."""
        query = "SELECT max(seq) FROM records WHERE job = '' AND type = ?"
        (started,) = self._connection.execute(query, (HandlerStarted.__name__,)).fetchone()
        nodes: tuple[Node, ...] = ()
        unavailable: tuple[str, ...] = ()
        taken: tuple[Taken, ...] = ()
        for _, record in self.records("", (started or 1) - 1):
            if isinstance(record, HandlerStarted | NodesChanged):
                nodes = nodes if record.nodes is None else record.nodes
                unavailable = record.unavailable
                taken = taken if record.taken is None else record.taken
        return tuple(node for node in nodes if node.name not in unavailable), taken

    def last_at(self) -> float:
        """Time of the last record, seconds since 1970; 0 for an empty journal."""
        last = "SELECT at FROM records ORDER BY seq DESC LIMIT ?"
        (at,) = self._connection.execute(f"SELECT max(at) FROM ({last})", (LAST_RECORDS,)).fetchone()  # noqa: S608
        return at or 0.0

    @property
    def held(self) -> bool:
        """Whether a handler has this journal now."""
        if self._lock or _cannot_change(self.path):
            return self._lock is not None
        with open_lock(self.path.with_suffix(".lock")) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
            return False

    def close(self) -> None:
        """Close the file and release the lock."""
        self._connection.close()
        if self._lock:
            self._lock.close()


def _cannot_change(path: Path) -> bool:
    """Whether it is on a file system that is mounted read-only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def fold(records: Iterable[Record]) -> dict[str, Job]:
    """Jobs by name, from records in order."""
    found: dict[str, Job] = {}
    for record in records:
        take_in(found, record)
    return found


def take_in(known: dict[str, Job], record: Record) -> None:
    """Update jobs by one more record. One of no job concerns every job before it."""
    if isinstance(record, JobSubmitted):
        if record.job not in known:
            known[record.job] = submitted(record)
    elif record.job:
        if record.job in known:
            apply(known[record.job], record)
    else:
        for job in known.values():
            apply(job, record)
