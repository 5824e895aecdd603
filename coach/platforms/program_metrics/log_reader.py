"""Finds reports in what a program prints, sends and writes: `python -m coach.platforms.program_metrics.log_reader`.

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
from dataclasses import asdict
from pathlib import Path

from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.collector import files_of, follow
from coach.platforms.program_metrics.files import Followed, Record
from coach.platforms.program_metrics.reader import Reader


def _answer(at: int, *reports: ProgramReport | None) -> None:
    for report in filter(None, reports):
        sys.stdout.write(json.dumps({**asdict(report), "time": at}) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Answer until standard input ends."""
    lines = sys.stdin.buffer
    begin = json.loads(lines.readline())
    wanted, lock, over = Wanted.read(begin["wanted"]), threading.Lock(), threading.Event()
    reader = Reader(wanted)
    files = [Followed(one, Path(begin["folder"]), begin["since"]) for one in files_of(wanted)]

    def written(kind: str, record: Record, where: str) -> None:
        with lock:
            _answer(time.time_ns(), reader.record(kind, record, where))

    def first_look(kind: str, record: Record, where: str) -> None:
        """Of a program that ran before, some of it has counted: epochs that are named count once, others not again."""
        report = reader.record(kind, record, where)
        if report is not None and not (begin["again"] and report.epoch is None):
            _answer(time.time_ns(), report)

    begun = threading.Event()
    begun.set()
    follow(files, begun, first_look)
    looks = threading.Thread(target=follow, args=(files, over, written), daemon=True)
    looks.start()
    for line in lines:
        at, kind, text = line.decode(errors="replace").rstrip("\n").split(" ", 2)
        with lock:
            if kind != "line":
                _answer(int(at), reader.record(kind, json.loads(text)))
                continue
            for part in text.split("\r"):  # a progress bar is one line with many
                _answer(int(at), *reader.line(part))
    over.set()
    looks.join()


if __name__ == "__main__":
    main()
