"""A journal made of what is whole in a damaged one: `coach doctor --journal --repair`.

A job of which no record was lost is as it was. One of which a record was lost, or may have been, is as it was before
that record, and suspended: what came later was decided with what is not known any more. The damaged journal is kept.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coach.core.errors import CoachError, PermanentError
from coach.core.jobs import events as ev
from coach.core.jobs.actions import Settle
from coach.core.jobs.fold import apply, submitted
from coach.core.jobs.job import Job
from coach.core.money import Money
from coach.handler.private_files import locked, open_lock
from coach.handler.state.codec import Record
from coach.handler.state.journal import Journal
from coach.handler.state.journal_file import JournalBusyError, meta
from coach.handler.state.salvage import salvage

#: Why such a job is suspended.
WHY = "records of it were lost: coach doctor --journal --repair"
_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class CutJob:
    """A job that is not as it was. `job` None: nothing of it could be restored.

    Its first record that was lost is number `lost`; `later` whole ones after that were left out, in which it had paid
    `paid` (nano-units), and `sure` says whether the lost one was its own.
    """

    name: str
    job: Job | None
    lost: int
    later: int
    paid: Money
    sure: bool


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has done: where the damaged journal lies, how many jobs are as they were, and which are not.

    `lost`: how many records. `of_no_job`: numbers of those that were of no job, such as a budget over jobs.
    `cut_off_at`: the time of the last record where the file was cut off, so that what came later is not known.
    """

    damaged: Path
    whole: int
    cut: tuple[CutJob, ...]
    lost: int
    of_no_job: tuple[int, ...]
    cut_off_at: float | None = None


def repair(path: Path) -> Repaired:
    """Put a journal of whole records in the place of the one at `path`, which goes aside.

    Raises JournalBusyError if a handler has it, PermanentError where nothing of it can be read or where a later
    Coach has written it. Nothing is changed then.
    """
    with open_lock(path.with_suffix(".lock")) as lock:
        if not locked(lock, 0.1, 0.2):
            raise JournalBusyError(f"{path}: a handler has this journal; stop it first: coach stop")
        found = salvage(path)
        if found.unread:
            raise PermanentError(
                f"{path}: record {min(found.unread)} is of another version of Coach; repair it with that"
            )
        if not found.records:
            raise PermanentError(f"{path}: no record of it can be read; put a copy of it there")
        owners = {seq: found.jobs.get(seq) for seq in found.lost}
        kept, cut = restore(found.records, owners)
        new = path.with_name("repaired.db")
        for left in _with_log(new):
            left.unlink(missing_ok=True)
        with contextlib.closing(Journal.write(new, _term(path) or None)) as journal:
            for at in range(0, len(kept), _AT_ONCE):
                journal.append(kept[at : at + _AT_ONCE])
            jobs = journal.jobs()
        new.with_suffix(".lock").unlink(missing_ok=True)
        damaged = _put_aside(path)
        new.replace(path)
    whole = len(jobs.keys() - {one.name for one in cut})
    of_no_job = tuple(seq for seq, owner in owners.items() if not owner)
    cut_off_at = found.records[max(found.records)].at if found.cut_off else None
    return Repaired(damaged, whole, cut, len(owners), of_no_job, cut_off_at)


def _put_aside(path: Path) -> Path:
    """A second name of the file, and its log with it; at no time is there nothing at `path`."""
    number = next(n for n in range(1, 10**6) if not path.with_name(f"{path.name}.damaged-{n}").exists())
    damaged = path.with_name(f"{path.name}.damaged-{number}")
    os.link(path, damaged)
    for old, new in zip(_with_log(path)[1:], _with_log(damaged)[1:], strict=True):
        with contextlib.suppress(FileNotFoundError):
            old.rename(new)
    return damaged


def _with_log(path: Path) -> tuple[Path, ...]:
    return (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"))


def _term(path: Path) -> int:
    """The highest term of a handler that led by a lease, where it can still be read."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as c:
        return meta(c, "term")
    return 0


def restore(records: Mapping[int, Record], lost: Mapping[int, str | None]) -> tuple[list[Record], tuple[CutJob, ...]]:
    """What a journal has after its repair, in order, and the jobs that are not as they were.

    `records` are the whole ones by number. `lost` has of each other number the job that it was of: "" for none,
    None where that is not known.
    """
    of_job: dict[str, dict[int, Record]] = {}
    for seq in sorted(records):
        of_job.setdefault(records[seq].job, {})[seq] = records[seq]
    shared = of_job.pop("", {})
    for name in lost.values():
        if name:
            of_job.setdefault(name, {})
    kept, cut = dict(shared), list[CutJob]()
    for name, own in of_job.items():
        job, end = _prefix(own | shared)
        first, last = min(own, default=0), max(own, default=0)
        mine = [seq for seq, owner in lost.items() if owner == name]
        unknown = [
            seq for seq, owner in lost.items() if owner is None and seq > first and (seq < last or not _ended(job))
        ]
        if end or mine or unknown:
            at = min([*mine, *unknown, *([end] if end else [])])
            job, _ = _prefix({seq: one for seq, one in (own | shared).items() if seq < at})
            out = {seq: one for seq, one in own.items() if seq >= at or job is None}
            paid = sum(one.amount for one in out.values() if isinstance(one, Settle))
            cut.append(CutJob(name, job, at, len(out), paid, at in mine))
        else:
            out = {}
        kept |= {seq: one for seq, one in own.items() if seq not in out}
    now = max((one.at for one in records.values()), default=0.0)
    stopped = [ev.SuspendRequested(now, one.name, True, why=WHY) for one in cut if one.job and not one.job.ended]
    return [*(kept[seq] for seq in sorted(kept)), *stopped], tuple(cut)


def _ended(job: Job | None) -> bool:
    return job is not None and job.ended


def _prefix(records: Mapping[int, Record]) -> tuple[Job | None, int]:
    """The fold of one job's records, and the number of the first that could not follow; 0 if all could."""
    job: Job | None = None
    for seq in sorted(records):
        record = records[seq]
        try:
            if isinstance(record, ev.JobSubmitted):
                job = submitted(record) if job is None else job
            elif job is not None:
                apply(job, record)
            elif record.job:
                return None, seq
        except (CoachError, LookupError, TypeError, ValueError, AttributeError, AssertionError):
            return job, seq
    return job, 0
