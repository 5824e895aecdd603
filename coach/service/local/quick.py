"""What a handler has written of its jobs (`coach.service.local.written`), read without computing anything.

It imports no estimator and no model of a job file, which would take most of a command's time. What is not there, or is
older than the journal, is asked of `coach.service.local.here`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sqlite3
import time
import zlib
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coach.core.estimation.interval import Interval
from coach.core.jobs.reasons import RESUMABLE, Reason, State
from coach.handler.private_files import open_lock, tighten
from coach.report.formatting import ORPHAN, count
from coach.report.row_types import (
    Action,
    ChoiceRow,
    EpochRow,
    ForecastRow,
    JobDetail,
    JobDetails,
    JobList,
    LedgerRow,
    SpeedRow,
    Step,
    Why,
)

if TYPE_CHECKING:
    from coach.service.local.here import Here

#: The types of lists in JobDetail and Why.
_LISTS: dict[str, Any] = {
    "considered": ChoiceRow, "epochs": EpochRow, "forecasts": ForecastRow, "ledger": LedgerRow, "speed": SpeedRow,
    "steps": Step, "alternatives": ChoiceRow, "actions": Action,
}  # fmt: skip
_FIELDS = [[field.name for field in fields(kind)] for kind in (JobDetails, JobDetail, Why, *_LISTS.values())]
#: Differs where another version writes other fields.
SHAPE = str(zlib.crc32(repr(_FIELDS).encode()))
_NAMES = "SELECT job, (SELECT max(seq) FROM records WHERE records.job = views.job) FROM views WHERE shape = ?"


class Quick:
    """The operations of a state folder: what is written of its jobs, else those of `Here`."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __enter__(self) -> Quick:
        return self

    def __exit__(self, *_: object) -> None:
        if "_here" in self.__dict__:
            self._here.__exit__()

    @cached_property
    def _here(self) -> Here:
        from coach.handler.state.state_directory import StateDirectory
        from coach.service.local.here import Here

        return Here(StateDirectory(self._home))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here, name)

    def list_jobs(self, **asked: Any) -> JobList:
        """See `Operations.list_jobs`."""
        rows = self._written() if not asked else None
        if rows is None:
            found: JobList = self._here.list_jobs(**asked)
            return found
        jobs = sorted((job for job, *_ in rows.values()), key=lambda row: row.submitted_at or "")
        return JobList(seq=max((row.seq for row in jobs), default=0), stream="", total=len(jobs), next=None, jobs=jobs)

    def why_job(self, name: str) -> Why:
        """See `Operations.why_job`."""
        found = (self._written() or {}).get(name)
        if found is None or not found[2]:
            why: Why = self._here.why_job(name)
            return why
        return Why(**_nested(found[1]))

    def job(self, name: str, **asked: Any) -> JobDetail:
        """See `Operations.job`."""
        found = (self._written(name) or {}).get(name) if not asked else None
        if found is None or not found[2] or not found[3]:
            detail: JobDetail = self._here.job(name, **asked)
            return detail
        return JobDetail(**{**_nested(json.loads(found[3])), "job": found[0]})

    def _written(self, detail: str = "") -> dict[str, tuple[JobDetails, dict[str, Any], bool, str]] | None:
        """By name what is written of each job: its row, why, whether that is as new, and the `detail` of one.

        None where the row of a job is not written, or is older than its last record.
        """
        if not self._home.is_dir():
            return {}
        tighten(self._home)
        found: dict[str, tuple[JobDetails, dict[str, Any], bool, str]] = {}
        for path in sorted(self._home.glob("journal*.db")):
            rows = of_journal(path, detail)
            if rows is None or rows.keys() & found.keys():
                return None
            found |= rows
        return found


def of_journal(path: Path, detail: str) -> dict[str, tuple[JobDetails, dict[str, Any], bool, str]] | None:
    """As `Quick._written`, of one journal."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as journal:
        try:
            (last,) = journal.execute("SELECT max(seq) FROM records").fetchone()
            (common,) = journal.execute("SELECT max(seq) FROM records WHERE job = ''").fetchone()
            seqs = dict(journal.execute(_NAMES, (SHAPE,)).fetchall())
            (jobs,) = journal.execute("SELECT count(*) FROM records WHERE type = 'JobSubmitted'").fetchone()
            rows = journal.execute("SELECT job, seq, row FROM views WHERE shape = ?", (SHAPE,)).fetchall()
            one = journal.execute("SELECT detail FROM views WHERE job = ?", (detail,)).fetchone() if detail else None
        except sqlite3.Error:
            return None
    if len(rows) != jobs:
        return None
    found = {}
    held = _held(path)
    for name, seq, text in rows:
        data = json.loads(text)
        at, waits, why = (data.pop(key) for key in ("at", "waits", "why"))
        row = _at(JobDetails(**_nested(data)), time.time() - at)
        if seq < max(seqs[name] or 0, 0 if row.ended_at is not None else common or 0):
            return None
        orphan = not held and row.ended_at is None and row.reason not in {reason.value for reason in RESUMABLE}
        new = not orphan and (not waits or seq == last)
        found[name] = _left(row) if orphan else row, why, new, one[0] if one and name == detail else ""
    return found


def _nested(data: dict[str, Any]) -> dict[str, Any]:
    """Fields with rows and intervals in place of dictionaries."""
    made: dict[str, Any] = {
        key: [_LISTS[key](**one) for one in value] if key in _LISTS else value for key, value in data.items()
    }
    for key in ("starts_in", "remaining"):
        if made.get(key) is not None:
            made[key] = Interval(**made[key])
    return made


def _at(row: JobDetails, later: float) -> JobDetails:
    """The row so many seconds later."""
    if row.eta is None or row.eta_low is None or row.eta_high is None:
        return row
    low, expected, high = (max(0.0, eta - later) for eta in (row.eta_low, row.eta, row.eta_high))
    return replace(row, eta=expected, eta_low=low, eta_high=high)


def _left(row: JobDetails) -> JobDetails:
    """The row of a job that has not ended, while no handler has its journal."""
    unknown: dict[str, Any] = dict.fromkeys(
        ("eta", "eta_low", "eta_high", "done_at", "done_at_low", "done_at_high", "starts_in")
    )
    return replace(
        row,
        state=State.WAITING.value,
        reason=Reason.HANDLER_STOPPED.value,
        reason_text=Reason.HANDLER_STOPPED.words,
        message=f"{ORPHAN}, after {count(row.epoch, 'epoch')}",
        **unknown,
    )


def _held(journal: Path) -> bool:
    """Whether a handler has this journal now."""
    with open_lock(journal.with_suffix(".lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False
