"""Finds metrics in the lines of a program's log: `python -m coach.platforms.kubernetes.metric_reader`.

The first line of its standard input is the patterns as JSON; each further one is a time and a line of the log. It
answers with `{"values": {...}, "time": t}` for a line that has some. It is a process of its own because the patterns
are a user's: one that takes for ever keeps nothing but its own reports.
"""

from __future__ import annotations

import json
import re
import sys

from coach.platforms.local.supervisor import LONGEST_LINE, values_in


def main() -> None:
    """Answer until standard input ends."""
    lines = sys.stdin.buffer
    patterns = {name: re.compile(pattern) for name, pattern in json.loads(lines.readline()).items()}
    for line in lines:
        time, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
        for part in text.split("\r"):  # a progress bar is one line with many
            if values := values_in(patterns, part[:LONGEST_LINE]):
                sys.stdout.write(json.dumps({"values": values, "time": int(time)}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
