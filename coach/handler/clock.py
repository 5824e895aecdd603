"""The handler's clock: wall time that never goes back, whatever is done to the system's clock meanwhile."""

from __future__ import annotations

import time


class Clock:
    """Seconds since 1970, read once from the system and carried on by the monotonic clock.

    `not_before` is the last time a journal knows: a clock that was set back in between starts from there.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._offset = max(time.time(), not_before) - time.monotonic()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._offset + time.monotonic()
