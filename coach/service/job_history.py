"""A job's history from the journal, updated as the journal grows: each record is read once for all requests."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field

from coach.core.jobs.actions import SetAllocation
from coach.core.jobs.job import Job
from coach.handler.state.codec import Record
from coach.handler.state.journal import take_in
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.report.accounting import LedgerBook, Pauses
from coach.report.choices import Choice, considered, is_decision, refused_words
from coach.report.history import EventFormatter, Line
from coach.report.row_types import ChoiceRow, LedgerRow

#: Jobs whose stories are cached; that of another one is read from its beginning.
MAX_STORIES = 32
#: Lines of one answer, at most.
MAX_LINES = 1000


@dataclass(frozen=True, slots=True)
class Books:
    """A job's ledger, its pauses, the allocations of its last decision, and the number of its last record."""

    ledger: list[LedgerRow]
    pauses: list[tuple[float, float]]
    considered: list[ChoiceRow]
    refused: list[str]
    seq: int


@dataclass(slots=True)
class _Story:
    """One job's records, up to `seq`."""

    name: str
    accounts: LedgerBook
    pauses: Pauses
    seq: int = 0
    lines: list[tuple[int, Line]] = field(default_factory=list)
    known: dict[str, Job] = field(default_factory=dict)
    narrator: EventFormatter = field(init=False)
    choices: list[Choice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.narrator = EventFormatter(lambda: self.known)

    def take(self, seq: int, record: Record) -> None:
        """The next record, of the job or of its handler."""
        take_in(self.known, record)
        self.accounts.take(record)
        self.pauses.take(record)
        self.lines.extend((seq, line) for line in self.narrator.lines(record) if line.job == self.name)
        self.seq = seq


class Stories:
    """The stories of the jobs that were requested last. Reads the journal: call it in a thread."""

    def __init__(self, home: StateDirectory) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Story] = OrderedDict()

    def events(self, past: StoredJob, after: int) -> tuple[list[tuple[int, Line]], int]:
        """The lines about a job later than record `after`, at most MAX_LINES, and after which record to go on.

        Each line has the number of its record.
        """
        with self._lock:
            story = self._up_to_now(past)
            first = bisect_right(story.lines, after, key=lambda line: line[0])
            lines = story.lines[first : first + MAX_LINES]
            whole = first + len(lines) == len(story.lines)
            return lines, max(story.seq, after) if whole else lines[-1][0]

    def books(self, past: StoredJob) -> Books:
        """The cost of a job's attempts, and its pauses."""
        with self._lock:
            story = self._up_to_now(past)
            choices = story.choices
            rows = [one.row for one in choices]
            return Books(story.accounts.rows(), list(story.pauses.found), rows, refused_words(choices), story.seq)

    def _up_to_now(self, past: StoredJob) -> _Story:
        name = past.job.name
        story = self._kept.pop(name, None) or _Story(name, LedgerBook(name), Pauses(name))
        found = self._home.records_after(past, story.seq)
        decided = max((seq for seq, record in found if is_decision(record, name)), default=0)
        for seq, record in found:
            if seq == decided and isinstance(record, SetAllocation):  # the job as it was then
                story.choices = considered(story.known[name], record.allocation, record.why)
            story.take(seq, record)
        self._kept[name] = story
        if len(self._kept) > MAX_STORIES:
            self._kept.popitem(last=False)
        return story
