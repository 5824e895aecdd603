"""What a function's processes print, as the function's log: JSON lines, bounded in size."""

import contextlib
import json
import os
import re
import select
import sys
import threading
import time
import unicodedata
from pathlib import Path
from typing import BinaryIO

#: Bytes at which a log file becomes `FILE.1`, in place of the one before.
LARGEST_FILE = 4 << 20
#: Begins each file after which an older one went, as coach/platforms/local/function_log.py has it.
GONE = "what was printed more than 4 MiB before this is gone"
#: Characters kept of a line.
LONGEST_LINE = 16 << 10
#: Bytes of a line without an end that are kept waiting for it.
LONGEST_WAITING = 64 << 10
#: Of a terminal: with parameters, with a text to their end, and others.
_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?"
    "|\x1b[ -/]*[0-~]?"
)


def plain(message: str) -> str:
    """Without escape sequences and control characters, as coach/core/plain_text.py has it; a tab stays."""
    message = _SEQUENCES.sub("", message)
    return "".join(
        one for one in message if one == "\t" or unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    )


class Log:
    """Takes this process's standard output and error, and of those that are started after this, for its own.

    Entries go to `path`, else to what was the standard output. `drain` has written what was printed before it.
    """

    def __init__(self, function: str, path: Path | None) -> None:
        self._function, self._path = function, path
        self._waiting = b""
        self._lock = threading.RLock()
        self._file = self._open(path) if path else os.fdopen(os.dup(1), "ab", 0)
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        for printed in (1, 2):
            os.dup2(writer, printed)
        os.close(writer)
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def write(self, level: str, message: str) -> None:
        """Add an entry."""
        now, message = time.time(), plain(message)
        if len(message) > LONGEST_LINE:
            message = f"{message[:LONGEST_LINE]}... ({len(message)} characters)"
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z",
            "level": level,
            "function": self._function,
            "message": message,
        }
        with self._lock, contextlib.suppress(OSError):  # a full disk must not stop the function
            self._write_line(json.dumps(entry).encode() + b"\n")

    def drain(self) -> None:
        """Write the whole lines that were printed, up to what a pipe holds."""
        with self._lock:
            try:
                *lines, self._waiting = (self._waiting + os.read(self._reader, 1 << 20)).split(b"\n")
            except BlockingIOError:
                return
            if len(self._waiting) > LONGEST_WAITING:
                lines.append(self._waiting)
                self._waiting = b""
            for line in lines:
                if line.strip():
                    self.write("info", line.decode(errors="replace"))

    def _run(self) -> None:
        while True:
            select.select([self._reader], [], [])
            self.drain()

    def close(self) -> None:
        """Write the rest; nothing is printed any more."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, b"\n")
        self.drain()

    def _write_line(self, line: bytes) -> None:
        if self._path and self._file.tell() and self._file.tell() + len(line) > LARGEST_FILE:
            self._file.close()
            older = self._path.with_name(f"{self._path.name}.1")
            gone = older.exists()
            self._path.replace(older)
            self._file = self._open(self._path)
            if gone:
                self.write("warning", GONE)
        self._file.write(line)

    @staticmethod
    def _open(path: Path) -> BinaryIO:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        # A model may print what only its owner may see.
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", 0)
