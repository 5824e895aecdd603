"""Every record of a state folder's journals is read, and the money is added up: `coach doctor --journal [--repair]`."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from coach.core.errors import CoachError, PermanentError
from coach.core.jobs.actions import Settle
from coach.core.money import to_amount
from coach.handler.state.codec import decode
from coach.handler.state.journal import Journal, fold
from coach.handler.state.journal_file import checksum, has_sums
from coach.handler.state.repair import CutJob, repair
from coach.handler.state.state_directory import StateDirectory
from coach.report.formatting import count, iso
from coach.service.schemas import Check, Status

#: Damaged records that are named.
MOST_NAMED = 5
_STEP = "with no handler there: put a copy of it there, or keep what is whole: coach doctor --journal --repair"


def journal_checks(home: StateDirectory) -> Iterator[Check]:
    """One or two of each journal, which none of them changes."""
    for path in home.journals():
        yield from _of(path)


def repair_checks(home: StateDirectory) -> Iterator[Check]:
    """What the repair of each damaged journal has restored, and what not; then whether they are as they should be."""
    for path in home.journals():
        if any(check.status is Status.FAILED for check in _of(path)):
            yield from _repaired(home, path)
        yield from _of(path)


def clock_checks(home: StateDirectory) -> Iterator[Check]:
    """Confirm to each journal what the machine's clock says, for the handler that has it next."""
    for path in home.journals():
        try:
            home.open_journal(path, clock_is_right=True).close()
        except CoachError as error:
            yield Check(path.name, Status.WARNING, str(error), "")
        else:
            yield Check(path.name, Status.OK, f"goes on from {iso(time.time())}")


def _repaired(home: StateDirectory, path: Path) -> Iterator[Check]:
    try:
        done = repair(path)
    except (CoachError, OSError) as error:
        yield Check(path.name, Status.FAILED, f"not repaired: {error}")
        return
    lost = f"{count(done.lost, 'record')} lost" if done.lost else "no record lost"
    said = f"repaired: {lost}, {count(done.whole, 'job')} as before; the damaged one is {done.damaged}"
    yield Check(path.name, Status.OK, said)
    if done.cut_off_at is not None:
        said = f"the file was cut off: what came after {iso(done.cut_off_at)}, and what it cost, is not known"
        yield Check(path.name, Status.WARNING, said, "see what each budget has left: coach budget list")
    if done.of_no_job:
        which = ", ".join(map(str, done.of_no_job[:MOST_NAMED])) + (", ..." if done.of_no_job[MOST_NAMED:] else "")
        said = f"of no job, or of which is not known: record {which}; it may have set a budget over jobs, or its nodes"
        yield Check(path.name, Status.WARNING, said, "see whether each is there: coach budget list")
    for cut in done.cut:
        yield _cut(home, cut)


def _cut(home: StateDirectory, cut: CutJob) -> Check:
    """What is left of a job, and how its user goes on."""
    folder = home.checkpoints(cut.name)
    paid = f", {to_amount(cut.paid):g} paid in them" if cut.paid else ""
    which = f"record {cut.lost} {'was' if cut.sure else 'may have been'} its own"
    if cut.job is None:
        said = f"not restored: {which}, and its job file is lost{paid and paid.replace('in them', 'by it')}"
        step = f"submit its file again; with spec.init it begins with a checkpoint of {folder}"
        return Check(cut.name, Status.FAILED, said, step)
    left = f", {count(cut.later, 'later record')} left out{paid}" if cut.later else ""
    state = f"{cut.job.state.value.lower()} then" if cut.job.ended else "suspended"
    said = f"as it was after {count(len(cut.job.epochs), 'epoch')}, {state}: {which}{left}"
    step = "" if cut.job.ended else f"go on: coach resume {cut.name}; its checkpoints: {folder}"
    return Check(cut.name, Status.WARNING, said, step)


def _of(path: Path) -> Iterator[Check]:
    try:
        with contextlib.closing(Journal.read(path)):
            pass
        damaged, read, unsummed = _damaged(path)
    except (CoachError, sqlite3.Error) as error:
        yield Check(path.name, Status.FAILED, f"{path}: cannot be read: {error}", _STEP)
        return
    if damaged:
        named = "; ".join(damaged[:MOST_NAMED]) + ("; ..." if len(damaged) > MOST_NAMED else "")
        yield Check(path.name, Status.FAILED, f"{path}: {count(len(damaged), 'damaged record')}: {named}", _STEP)
        return
    without = f", {unsummed} of them of an earlier release, without a checksum" if unsummed else ""
    yield Check(path.name, Status.OK, f"{count(read, 'record')} as they were written{without}")
    yield _ledger(path)


def _damaged(path: Path) -> tuple[list[str], int, int]:
    """What is wrong with which record; how many there are, and how many have no checksum. Raises sqlite3.Error."""
    found, read, unsummed, last = [], 0, 0, 0
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        for (said,) in connection.execute("PRAGMA integrity_check(5)"):
            if said != "ok":
                found.append(str(said))
        known = "sum" if has_sums(connection) else "NULL"
        connection.text_factory = bytes
        for seq, at, *texts, expected in connection.execute(
            f"SELECT seq, at, job, type, body, {known} FROM records ORDER BY seq"  # noqa: S608
        ):
            read += 1
            if seq != last + 1:
                gone = f"{last + 1}" if seq == last + 2 else f"{last + 1} to {seq - 1}"
                found.append(f"record {gone} is not there, though none is ever deleted")
            last = seq
            unsummed += expected is None
            try:
                job, kind, body = (bytes.decode(text) for text in texts)
                if expected is not None and expected != checksum(at, job, kind, body):
                    found.append(f"record {seq} ({kind} of {job or 'no job'}) was changed since it was written")
                decode(kind, body)
            except (TypeError, ValueError, KeyError) as error:  # a column may have become another's type
                found.append(f"record {seq} cannot be read ({type(error).__name__})")
    return found, read, unsummed


def _ledger(path: Path) -> Check:
    """Whether what each job has spent is what its payments add up to, and the same with its snapshot as without."""
    name = f"{path.name}, money"
    try:
        with contextlib.closing(Journal.read(path)) as journal:
            jobs, anew = journal.jobs(), fold(record for _, record in journal.records())
            paid: dict[str, int] = {}
            for _, record in journal.records():
                if isinstance(record, Settle):
                    paid[record.job] = paid.get(record.job, 0) + record.amount
    except PermanentError as error:
        return Check(name, Status.FAILED, str(error), _STEP)
    spent, again = ({one: job.money.ledger.spent for one, job in of.items()} for of in (jobs, anew))
    wrong = [one for one in spent if not spent[one] == again[one] == paid.get(one, 0)]
    if wrong:
        return Check(name, Status.FAILED, f"{', '.join(wrong[:MOST_NAMED])}: payments add up to another sum", _STEP)
    return Check(name, Status.OK, f"the payments of {count(len(jobs), 'job')} add up to what was spent")
