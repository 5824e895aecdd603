"""The handler's clock: wall time that never goes back, even if the system's clock is set back."""

from __future__ import annotations

import time


class Clock:
    """Seconds since 1970, read once from the system and carried on by the monotonic clock.

    `not_before` is the time of the journal's last record: if the system's clock was set back, this one starts there.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._offset = max(time.time(), not_before) - time.monotonic()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._offset + time.monotonic()
