"""When a program writes its checkpoints, seen from its folder for them."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

#: Seconds without a change after which a checkpoint is whole; reports closer together are one.
QUIET_SECONDS = 0.2
#: Files of a folder for checkpoints that are looked at.
MAX_FILES = 1000


class Checkpoints:
    """When a program writes into its folder: many write a checkpoint after they have printed what it is worth.

    Such a program would lose all since the checkpoint before, if it were ended at its report. So it is ended a little
    later where its last checkpoint came in the first half of the interval between two reports.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported = 0.0
        self._after = 0.0

    def report(self, at: float) -> None:
        """The program has reported, in seconds since 1970."""
        if at - self._reported > QUIET_SECONDS:
            before, self._reported = self._reported, at
            after = self._newest() - before
            self._after = after if before and 0.0 < after < (at - before) / 2 else 0.0

    @property
    def patience(self) -> float:
        """Seconds after which a checkpoint is late."""
        return 1.0 + 2.0 * self._after

    @property
    def expected(self) -> bool:
        """Whether one is to come after the last report, or was written just now and may not be whole."""
        newest = self._newest()
        return self._after > 0.0 and (newest <= self._reported or time.time() - newest < QUIET_SECONDS)

    def _newest(self) -> float:
        """When something was written last in the folder, or in a folder in it."""
        found = [0.0]
        with contextlib.suppress(OSError):
            inside = list(os.scandir(self._folder))
            inside += [file for entry in inside if entry.is_dir() for file in os.scandir(entry)]
            found += [entry.stat().st_mtime for entry in inside[:MAX_FILES]]
        return max(found)
