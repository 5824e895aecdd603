"""The log of one function: JSON lines, bounded in size."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

MAX_LINE = 16 * 1024
"""Characters kept of one message."""


class FunctionLog:
    """Writes one JSON object a line to a file, or to standard output when there is no path.

    The file never holds more than `max_bytes`: when it is full it becomes `<path>.1`, replacing the one before, so a
    function that prints for ever costs at most twice that.
    """

    def __init__(self, path: Path | None, function: str, max_bytes: int = 4 * 1024 * 1024) -> None:
        self._path, self._function, self._max_bytes = path, function, max_bytes
        self._file: TextIO | None = None
        self._size = 0
        if path is not None:
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            self._open()

    def write(
        self, level: str, message: str, *, worker: str | None = None, more: dict[str, Any] | None = None
    ) -> None:
        """Add one entry; `more` are its structured fields."""
        now = time.time()
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z",
            "level": level,
            "function": self._function,
            "message": message
            if len(message) <= MAX_LINE
            else message[:MAX_LINE] + f"... ({len(message)} characters)",
        }
        if worker is not None:
            entry["worker"] = worker
        if more:
            entry["with"] = more
        line = json.dumps(entry, default=str)
        if len(line) > 4 * MAX_LINE:
            entry["with"] = f"left out ({len(line)} characters)"
            line = json.dumps(entry)
        self.write_line(line + "\n")

    def _open(self) -> None:
        assert self._path is not None
        # A model may print what only its owner may see.
        opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file = os.fdopen(opened, "a", encoding="utf-8")
        self._size = self._path.stat().st_size

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def write_line(self, line: str) -> None:
        """Add a line that is an entry already."""
        if self._path is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        try:
            if self._size and self._size + len(line) > self._max_bytes and self._file is not None:
                self._file.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._open()
            assert self._file is not None
            self._file.write(line)
            self._file.flush()
            self._size += len(line)
        except OSError:
            pass  # a full disk must not stop the function
