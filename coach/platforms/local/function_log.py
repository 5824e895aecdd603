"""The log of one function or program: JSON lines, bounded in size."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from coach.core.plain_text import plain

#: Begins each file after which an older one went.
GONE = "what was printed more than 4 MiB before this is gone"
#: Characters kept of one message.
MAX_LINE = 16 * 1024


class FunctionLog:
    """Writes one JSON object a line to a file.

    The file never holds more than `max_bytes`: when it is full it becomes `<path>.1`, replacing the one before, so a
    function that prints for ever costs at most twice that. functions/training/serving/log.py writes the same.
    """

    def __init__(self, path: Path, function: str, max_bytes: int = 4 * 1024 * 1024) -> None:
        self._path, self._function, self._max_bytes = path, function, max_bytes
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        self._open()

    def write(self, level: str, message: str) -> None:
        """Add one entry."""
        now, message = time.time(), plain(message)
        if len(message) > MAX_LINE:
            message = f"{message[:MAX_LINE]}... ({len(message)} characters)"
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z",
            "level": level,
            "function": self._function,
            "message": message,
        }
        self.write_line(json.dumps(entry) + "\n")

    def _open(self) -> None:
        # A model may print what only its owner may see.
        opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file = os.fdopen(opened, "a", encoding="utf-8")
        self._size = self._path.stat().st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def take(self, line: str) -> None:
        """Add what another process says is an entry; its message becomes plain text, and all of what is none."""
        try:
            entry = json.loads(line)
            line = json.dumps(entry | {"message": plain(str(entry["message"]))})
        except (ValueError, RecursionError, TypeError, KeyError):
            line = plain(line)
        self.write_line(line + "\n")

    def write_line(self, line: str) -> None:
        """Add a line that is an entry already."""
        with contextlib.suppress(OSError):  # a full disk must not stop the function
            if self._size and self._size + len(line) > self._max_bytes:
                self._file.close()
                older = self._path.with_name(self._path.name + ".1")
                gone = older.exists()
                self._path.replace(older)
                self._open()
                if gone:
                    self.write("warning", GONE)
            self._file.write(line)
            self._file.flush()
            self._size += len(line)
