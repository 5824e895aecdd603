"""Coach's state folder: the journals, and a folder for each job.

    $COACH_HOME                     by default $XDG_DATA_HOME/coach, that is ~/.local/share/coach
      journal.db journal-2.db ...   one for each handler that ran at the same time as others
      jobs/<name>/checkpoints
      jobs/<name>/logs
      service.json, token            of the service, while there is one (coach.handler.endpoint)

Only its owner may read it (coach.handler.private_files): folders have the mode 0700, files 0600.

A job's name is unique in the folder, so that every command finds a job by its name.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coach.core.cluster import Node, Taken
from coach.core.errors import PermanentError, UserError
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.spec.job import TrainingJob
from coach.handler.clock import ClockGapError, refuse_gap
from coach.handler.private_files import make_folder, open_lock, opener, state_folder, tighten
from coach.handler.state.codec import Record
from coach.handler.state.journal import Journal
from coach.handler.state.journal_file import JournalBusyError

#: Handlers at the same time in one state folder; more is a mistake in a script.
MAX_JOURNALS = 64
#: Longest job name, as `coach.core.spec.types.JobName` has it.
LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job of some journal. `held`: a handler has that journal now. `nodes`: every cluster it ran epochs on.

    `asked_at`: start of the handler that it was last submitted to or resumed by. `stopped`: its user stopped it.
    """

    job: Job
    journal: Path
    held: bool
    nodes: frozenset[tuple[Node, ...]] = frozenset()
    asked_at: float = 0.0
    stopped: bool = False

    @property
    def orphan(self) -> bool:
        """It has not ended, but no handler has its journal."""
        return not self.held and not self.job.ended


@dataclass(slots=True)
class _Handlers:
    """The handlers and clusters of jobs."""

    starts: list[ev.HandlerStarted] = field(default_factory=list)
    asked_at: dict[str, float] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, records: Iterable[Record]) -> _Handlers:
        found = cls()
        for record in records:
            if isinstance(record, ev.HandlerStarted):
                found.starts.append(record)
            elif isinstance(record, ev.JobSubmitted | ev.ResumeRequested):
                found.asked_at[record.job] = found.starts[-1].at if found.starts else 0.0
                found.stopped.discard(record.job)
            elif isinstance(record, ev.SuspendRequested) and record.by_user:
                found.stopped.add(record.job)
        return found

    def nodes(self, job: Job) -> frozenset[tuple[Node, ...]]:
        """Every cluster that the job's epochs ran on."""
        if job.progress.started_at is None:
            return frozenset()
        first, last = self._before(job.progress.started_at), self._before(job.progress.ended_at or float("inf"))
        # Usually one handler had it all the time; otherwise the times of its epochs decide.
        before = {first} if first == last else {self._before(epoch.started_at) for epoch in job.epochs}
        return frozenset(self.starts[number - 1].nodes for number in before if number)

    def _before(self, at: float) -> int:
        return bisect_right(self.starts, at, key=lambda start: start.at)


class StateDirectory:
    """The state folder at `path`; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def default(cls) -> StateDirectory:
        """By COACH_HOME, else in the XDG data folder."""
        return cls(state_folder())

    def checkpoints(self, name: str) -> Path:
        """Folder of a job's checkpoints."""
        return self.path / "jobs" / name / "checkpoints"

    def logs(self, name: str) -> Path:
        """Folder of a job's function logs."""
        return self.path / "jobs" / name / "logs"

    def handler_id(self) -> str:
        """Id of this folder's handlers, among others on the same cluster; made if there is none."""
        make_folder(self.path)
        file = self.path / "handler-id"
        with contextlib.suppress(FileExistsError), open(file, "x", opener=opener, encoding="ascii") as out:
            out.write(f"run-{secrets.token_hex(6)}\n")
        return file.read_text(encoding="ascii").strip()

    def note(self, name: str) -> str:
        """What the user has written about a job; empty without."""
        file = self.logs(name).with_name("note.txt")
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    def write_note(self, name: str, text: str) -> None:
        """Keep it."""
        self.make_folders(name)
        file = self.logs(name).with_name("note.txt")
        with open(file, "w", opener=opener, encoding="utf-8") as out:
            out.write(text)

    def make_folders(self, name: str) -> None:
        """Make the folders of a job."""
        for folder in (self.checkpoints(name), self.logs(name)):
            make_folder(folder)

    def journal(self, number: int) -> Path:
        """The journal of the `number`-th handler at a time, from 1."""
        return self.path / ("journal.db" if number == 1 else f"journal-{number}.db")

    def journals(self) -> list[Path]:
        """The journals there are, in order."""
        paths = (self.journal(number) for number in range(1, MAX_JOURNALS + 1))
        return [path for path in paths if path.exists()]

    def past(self) -> dict[str, StoredJob]:
        """All jobs of all journals by name, in the order of their submission.

        Raises PermanentError for a folder that is shared with others, or of another version of Coach.
        """
        tighten(self.path)
        found = []
        for path in self.journals():
            with contextlib.closing(Journal.read(path)) as journal:
                try:
                    jobs, handlers, held = journal.jobs(), _Handlers.of(journal.handling()), journal.held
                except (LookupError, TypeError, ValueError) as error:
                    raise PermanentError(
                        f"{path}: cannot be read, it may be of another version of Coach "
                        f"({type(error).__name__}: {error}); move it away, or set COACH_HOME to another folder"
                    ) from error
            for name, job in jobs.items():
                asked_at, stopped = handlers.asked_at.get(name, 0.0), name in handlers.stopped
                found.append(StoredJob(job, path, held, handlers.nodes(job), asked_at, stopped))
        return {past.job.name: past for past in sorted(found, key=lambda past: past.job.progress.submitted_at)}

    def records(self, past: StoredJob) -> list[Record]:
        """The records that concern a job, those of its handler included."""
        return [record for _, record in self.records_after(past, 0)]

    def records_after(self, past: StoredJob, after: int) -> list[tuple[int, Record]]:
        """(seq, record) of those later than `after`."""
        with contextlib.closing(Journal.read(past.journal)) as journal:
            return list(journal.records_of(past.job.name, after))

    def nodes(self, past: StoredJob) -> tuple[tuple[Node, ...], tuple[Taken, ...]]:
        """The cluster of the handler that has the job's journal, or had it last, and what others hold there."""
        with contextlib.closing(Journal.read(past.journal)) as journal:
            return journal.nodes()

    def held(self, past: StoredJob) -> bool:
        """Whether a handler has the job's journal now."""
        with contextlib.closing(Journal.read(past.journal)) as journal:
            return journal.held

    @contextlib.contextmanager
    def planning(self, busy: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Keep other handlers from choosing names and journals; `busy` is called if one is doing so.

        Raises PermanentError for a folder that cannot be used.
        """
        try:
            make_folder(self.path)
            tighten(self.path)
            lock = open_lock(self.path / "lock")
        except OSError as error:
            why = f"{self.path}: cannot be Coach's state folder: {error.strerror or error}"
            raise PermanentError(f"{why}; set COACH_HOME to a folder that can be written") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def term(self) -> int:
        """The highest term of a handler that led by a lease and opened the first journal; 0 for none."""
        if not self.journal(1).exists():
            return 0
        with contextlib.closing(Journal.read(self.journal(1))) as journal:
            return journal.term()

    def take_locks(self) -> None:
        """The handler that has this folder leads no more: the files that it has locked are replaced by free ones."""
        for file in (self.journal(1).with_suffix(".lock"), self.path / "service.lock", self.path / "lock"):
            if file.exists():
                new = file.with_suffix(".new")
                new.unlink(missing_ok=True)
                open(new, "x", opener=opener).close()
                new.write_text(file.read_text(errors="replace"))  # who has it
                os.utime(new, (file.stat().st_atime, file.stat().st_mtime))  # the last heartbeat
                new.replace(file)

    def open_journal(
        self,
        wanted: Path | None = None,
        term: int | None = None,
        waits: Callable[[bool], None] = lambda _: None,
        *,
        clock_is_right: bool = False,
    ) -> Journal:
        """The `wanted` journal, or the first that no other handler has, for writing; the others as in `Journal.write`.

        Raises JournalBusyError where the wanted one is taken, UserError where all are, and, unless `clock_is_right`,
        ClockGapError where the wanted one's budgets over jobs would begin another period after more than a day.
        """
        if wanted is not None:
            return _opened(Journal.write(wanted, term, waits), clock_is_right)
        for number in range(1, MAX_JOURNALS + 1):
            with contextlib.suppress(JournalBusyError, ClockGapError):
                return _opened(Journal.write(self.journal(number)), clock_is_right)
        raise UserError(f"{self.path}: {MAX_JOURNALS} handlers run already; wait for one to end: coach ps")


def _opened(journal: Journal, clock_is_right: bool) -> Journal:
    """`journal`, or what `refuse_gap` raises; then the next one is asked, too."""
    try:
        if not clock_is_right:
            refuse_gap(journal.left_at, journal.clock.now(), journal.accounts({}).known.values())
    except BaseException:
        if journal.left_at is not None:
            journal.beat(journal.left_at)
        journal.close()
        raise
    return journal


def unknown_job(name: str, known: Iterable[str]) -> UserError:
    """The error for a name that no job has, with the most similar names."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near += [other for other in known if other.startswith(name) and other not in near][: 3 - len(near)]
    meant = f"did you mean {' or '.join(near)}?" if near else "see all with: coach ps"
    return UserError(f"there is no job {name!r}; {meant}")


# -- names ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """The job of a job file: the `past` one goes on, or a new one starts; `said`: why it has another name."""

    spec: TrainingJob
    past: StoredJob | None = None
    said: str = ""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.spec.name


def choose(spec: TrainingJob, past: dict[str, StoredJob], taken: Iterable[str] = ()) -> Chosen:
    """Resume the interrupted job of this file, or choose a free name for a new one.

    The family of a name is `name`, `name-2`, `name-3`...; the youngest member comes first. One that has not
    ended, has no handler and has the same specification goes on. `taken` are names that this call has used.
    """
    family = [spec.name, *(_numbered(spec.name, number) for number in range(2, len(past) + 3))]
    known = [past[name] for name in family if name in past]
    for one in sorted(known, key=lambda one: one.job.progress.submitted_at, reverse=True):
        mine = one.orphan and not one.job.stop.cancel and one.job.name not in taken
        if mine and renamed(spec, one.job.name) == one.job.job_file:
            return Chosen(one.job.job_file, one)
    free = next((name for name in family if name not in past and name not in taken), None)
    if free is None:
        free = next(n for i in range(2, 10**6) if (n := _numbered(spec.name, i)) not in past and n not in taken)
    if free == spec.name:
        return Chosen(spec)
    return Chosen(renamed(spec, free), None, f"{_why_not(known, spec)}: this one is called {free}")


def renamed(spec: TrainingJob, name: str) -> TrainingJob:
    """The same job under another name."""
    return spec.model_copy(update={"metadata": spec.metadata.model_copy(update={"name": name})})


def _numbered(name: str, number: int) -> str:
    ending = f"-{number}"
    return name[: LONGEST_NAME - len(ending)].rstrip("-") + ending


def _why_not(known: list[StoredJob], spec: TrainingJob) -> str:
    same = next((one for one in known if one.job.name == spec.name), None)
    if same is None:
        return f"{spec.name}: there are two of this name"
    if same.job.ended:
        return f"{spec.name}: there is one already, which has {_ended_how(same.job.state)}"
    if same.held:
        return f"{spec.name}: there is one already, which another handler runs"
    return f"{spec.name}: there is one already, which was suspended and had another job file"


def _ended_how(state: State) -> str:
    return {
        State.SUCCEEDED: "succeeded",
        State.FAILED: "failed",
        State.CANCELLED: "been cancelled",
        State.BUDGET_EXHAUSTED: "used up its budget",
        State.TARGET_UNREACHABLE: "not been able to reach its target",
    }[state]
