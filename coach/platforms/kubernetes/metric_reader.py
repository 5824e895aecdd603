"""Finds reports in the lines of a program's log: `python -m coach.platforms.kubernetes.metric_reader`.

The first line of its standard input is what is `Wanted` as JSON; each further one is a time and a line of the log. It
answers with `{"values": {...}, "epoch": e, "time": t}` for a line that reports. It is a process of its own because
patterns are a user's: one that takes for ever keeps nothing but its own reports.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from coach.platforms.program_metrics.base import Wanted
from coach.platforms.program_metrics.reader import Reader


def main() -> None:
    """Answer until standard input ends."""
    lines = sys.stdin.buffer
    reader = Reader(Wanted.read(json.loads(lines.readline())))
    for line in lines:
        time, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
        for part in text.split("\r"):  # a progress bar is one line with many
            if (report := reader.line(part)) is not None:
                found = {**asdict(report), "time": int(time)}
                sys.stdout.write(json.dumps(found) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
