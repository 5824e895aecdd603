"""The process that hears what a program says: its lines, which it logs too, its files and its requests.

It is a process of its own, because a pattern may take for ever, and ends when the supervisor has seen the program end.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from coach.core.spec.metric_source import MetricSource
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.files import USUAL_NAMES, Followed, Record
from coach.platforms.program_metrics.others import SILENT
from coach.platforms.program_metrics.reader import Reader
from coach.platforms.program_metrics.status import Offer, Sender, StatusServer, only
from coach.platforms.program_metrics.text import LONGEST_LINE

#: Seconds between two looks at files, at least; and so many times what a look takes.
LOOK_SECONDS, LOOK_FACTOR = 0.25, 20.0
#: Seconds after which it is said that a program prints nothing.
SILENT_SECONDS = 60.0
#: Lines that an error shows of what the program printed last; characters of each.
LAST_LINES, LAST_CHARACTERS = 5, 500


class Collector:
    """Hears one program. `log` is called with each line, `report` with what it reports, by one thread at a time."""

    def __init__(
        self,
        wanted: Wanted,
        directory: Path,
        log: Callable[[str], None],
        report: Callable[[ProgramReport], None],
    ) -> None:
        self._reader, self._metric = Reader(wanted), wanted.metric
        self._files = [Followed(one, directory) for one in files_of(wanted)]
        self._log = log
        self._report = report
        self._reported = False  #: by a file or a request
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.last = deque[str](maxlen=LAST_LINES)

    def run(self, printed: int, over: int) -> None:
        """Follow the program: what it prints, until `over` ends, and then to its end."""
        files = threading.Thread(target=follow, args=(self._files, self._over, self.take), daemon=True)
        files.start()
        lines = Lines()
        silent: float | None = time.monotonic() + SILENT_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(printed, selectors.EVENT_READ)
            selector.register(over, selectors.EVENT_READ)
            while True:
                left = None if silent is None else max(0.0, silent - time.monotonic())
                ready = {key.fd for key, _ in selector.select(left)}
                if left == 0.0 and not ready:
                    silent = None
                    self._silent()
                if over in ready:
                    break
                if printed in ready:
                    silent = None
                    data = os.read(printed, 1 << 16)
                    self._take_lines(lines.more(data))
                    if not data:
                        selector.unregister(printed)
        while data := os.read(printed, 1 << 16):
            self._take_lines(lines.more(data))
        self._take_lines(lines.more(b""))
        self._over.set()
        files.join()

    def _silent(self) -> None:
        """Say that the program prints nothing, unless it reports in another way."""
        with self._lock:
            if not self._reported:
                self._report(ProgramReport({}, hint=SILENT))

    def take(self, kind: str, record: Record, where: str = "") -> None:
        """A record that came from such a source."""
        with self._lock:
            if (found := self._reader.record(kind, record, where)) is not None:
                self._reported = True
                self._report(found)

    def _take_lines(self, lines: Iterator[str]) -> None:
        """Lines that came at once; those of one epoch that follow each other are one report, with the last values."""
        report: ProgramReport | None = None
        with self._lock:
            for line in lines:
                self._log(line)
                self.last.append(line[:LAST_CHARACTERS])
                for found in self._reader.line(line):
                    if found.hint:
                        self._report(found)
                        continue
                    if report is not None and not report.before(found, self._metric):
                        self._report(report)
                        report = None
                    report = found if report is None else report.then(found, self._metric)
            if report is not None:
                self._report(report)


def follow(files: Sequence[Followed], over: threading.Event, take: Callable[[str, Record, str], None]) -> None:
    """Take the records of files, again and again, and once more when the program has ended (`over`)."""
    while files:
        last, began = over.is_set(), time.monotonic()
        for one in files:
            for record in one.records(last=last):
                take(one.source.kind, record, one.source.where)
        if last:
            return
        over.wait(max(LOOK_SECONDS, LOOK_FACTOR * (time.monotonic() - began)))


def files_of(wanted: Wanted) -> list[MetricSource]:
    """One source of each file in which metrics are."""
    named = {(one.kind, one.where): one for one in wanted.sources if one.kind in USUAL_NAMES}
    return list(named.values())


class Lines:
    """Lines of what comes in pieces; a progress bar's, too, which end with a carriage return. Those longer than
    `longest` bytes are cut.
    """

    def __init__(self, ends: bytes = rb"[\r\n]+", longest: int = 4 * LONGEST_LINE) -> None:
        self._ends, self._longest = ends, longest
        self._rest, self._cut = b"", False

    def more(self, data: bytes) -> Iterator[str]:
        """The lines that end with this piece; b"" is the end of all."""
        *lines, self._rest = re.split(self._ends, self._rest + data) if data else (self._rest, b"")
        for line in lines:
            if line.strip() and not self._cut:
                yield line.decode(errors="replace")
            self._cut = False
        if len(self._rest) > self._longest:
            if not self._cut:
                yield self._rest.decode(errors="replace")
            self._rest, self._cut = b"", True


def collect(collector: Collector, pipes: tuple[int, int, int], offer: Offer, sender: Sender) -> NoReturn:
    """Run a collector in this process, and end it.

    `pipes`: what the program prints; the end of which says that the program has ended; for its last lines.
    """
    printed, over, said = pipes
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = StatusServer(offer.listening, only(offer.token, sender))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collector.run(printed, over)
    os.write(said, "\n".join(collector.last).encode()[: 1 << 15])
    os._exit(0)
