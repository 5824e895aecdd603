"""The logs of a job's functions, as their processes write them: JSON lines, one file a function, bounded in size."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Bytes read at once.
MAX_AT_ONCE = 256 << 10


#: A line of Nuclio's processor, as it writes them in a container, whose clock is UTC.
_NUCLIO = re.compile(r"(\d\d)\.(\d\d)\.(\d\d) (\d\d:\d\d:\d\d\.\d{3}) \((\w)\) +(\S+) (.*)")
_LEVELS = {"D": "debug", "I": "info", "W": "warning", "E": "error"}
#: What a terminal would act on: escape sequences, and other control characters.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a log; `at` is ISO 8601, UTC."""

    function: str
    at: str
    level: str
    message: str


def log_files(folder: Path) -> dict[str, Path]:
    """The logs in a job's folder, by function, in order of their names."""
    return {file.stem: file for file in sorted(folder.glob("*.log"))}


def read(file: Path, after: int = 0, most: int = MAX_AT_ONCE) -> tuple[bytes, int]:
    """Whole lines from byte `after` on, at most about `most` bytes; and the offset of the next call.

    A file shorter than `after` was started anew: it is read from its start.
    """
    try:
        with file.open("rb") as log:
            size = log.seek(0, 2)
            start = after if after <= size else 0
            log.seek(start)
            text = log.read(most)
    except FileNotFoundError:
        return b"", 0
    whole = text.rfind(b"\n") + 1
    if whole == 0 and len(text) == most:
        whole = len(text)  # a line longer than that is no entry of ours: skip it
    return text[:whole], start + whole


def entries(function: str, lines: str) -> Iterator[Entry]:
    """The entries of lines of a log. A line that is no entry becomes a message of the time before it.

    Messages are plain text: what a model prints does nothing to a terminal.
    """
    at = ""
    for line in lines.split("\n"):
        found: Any = None
        with contextlib.suppress(ValueError):
            found = json.loads(line)
        if isinstance(found, dict):
            at, level, message = (str(found.get(key, "")) for key in ("time", "level", "message"))
            yield Entry(function, _plain(at), _plain(level), _plain(message))
        elif nuclio := _NUCLIO.fullmatch(_plain(line)):
            year, month, day, clock, letter, who, message = nuclio.groups()
            at = f"20{year}-{month}-{day}T{clock}Z"
            yield Entry(function, at, _LEVELS.get(letter, letter), f"{who} {message}")
        elif line.strip():
            yield Entry(function, _plain(at), "", _plain(line))


def _plain(text: str) -> str:
    return _CONTROL.sub("", text)
