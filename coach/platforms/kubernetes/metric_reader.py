"""Finds reports in what a program prints, sends and writes: `python -m coach.platforms.kubernetes.metric_reader`.

The first line of its standard input is a JSON object: what is `wanted`, the folder in which its files are, since when
the program runs, and whether it ran before. Each further one is a time, `line` and a line of the log, or another kind
and a record as JSON. It answers with `{"values": {...}, "epoch": e, "time": t}` for a report. It is a process of its
own because patterns and files are a user's: one that takes for ever keeps nothing but its own reports.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.collector import files_of
from coach.platforms.program_metrics.files import Followed
from coach.platforms.program_metrics.reader import Reader

#: Seconds between two looks at files.
LOOK_SECONDS = 0.5


class _Reports:
    """The reports of one program, from several threads."""

    def __init__(self, wanted: Wanted, folder: Path, since: float, *, again: bool) -> None:
        self._reader = Reader(wanted)
        self._files = [Followed(one, folder, since) for one in files_of(wanted)]
        #: What files have is looked at for the first time, of a program that ran before: some of it has counted.
        self._again = again
        self._lock = threading.Lock()
        self._over = threading.Event()

    def line(self, at: int, text: str) -> None:
        """A line of the log."""
        with self._lock:
            _answer(at, self._reader.line(text))

    def record(self, at: int, kind: str, record: Mapping[str, Any], where: str = "") -> None:
        """What was sent or written. Epochs that are named count once, also where they are read again."""
        with self._lock:
            report = self._reader.record(kind, record, where)
            if report is not None and not (where and self._again and report.epoch is None):
                _answer(at, report)

    def follow(self) -> None:
        """Look at the files until `end`, and once more then."""
        while self._files:
            last = self._over.is_set()
            for files in self._files:
                for record in files.records():
                    self.record(time.time_ns(), files.source.kind, record, files.source.where)
            if last:
                return
            self._again = False
            self._over.wait(LOOK_SECONDS)

    def end(self) -> None:
        """The program writes nothing more."""
        self._over.set()


def _answer(at: int, report: ProgramReport | None) -> None:
    if report is not None:
        sys.stdout.write(json.dumps({**asdict(report), "time": at}) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Answer until standard input ends."""
    lines = sys.stdin.buffer
    begin = json.loads(lines.readline())
    wanted, folder = Wanted.read(begin["wanted"]), Path(begin["folder"])
    reports = _Reports(wanted, folder, begin["since"], again=begin["again"])
    looks = threading.Thread(target=reports.follow, daemon=True)
    looks.start()
    for line in lines:
        at, kind, text = line.decode(errors="replace").rstrip("\n").split(" ", 2)
        if kind != "line":
            reports.record(int(at), kind, json.loads(text))
            continue
        for part in text.split("\r"):  # a progress bar is one line with many
            reports.line(int(at), part)
    reports.end()
    looks.join()


if __name__ == "__main__":
    main()
