"""What fails for longer than a moment: said once, with its cause and since when, and once more when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

#: Seconds that a failure lasts before it is said: an API server that restarts is no news.
SAID_AFTER = 10.0


class Outages:
    """Those of one API server, by what fails. Where several fail for one cause, that is said once."""

    def __init__(self, server: str, now: Callable[[], float] = time.time) -> None:
        self._server = server
        self._now = now
        #: What fails: since when, and the last cause.
        self._failing: dict[str, tuple[float, str]] = {}
        #: The causes that were said.
        self._said: set[str] = set()

    def failed(self, what: str, cause: str) -> None:
        """A request of this kind failed, and will be sent again."""
        since, _ = self._failing.get(what, (self._now(), ""))
        self._failing[what] = since, cause
        if self._now() - since >= SAID_AFTER and cause not in self._said:
            self._said.add(cause)
            at = time.strftime("%H:%M:%S", time.localtime(since))
            log.warning("%s fails since %s: %s", what, at, cause)

    def over(self, what: str) -> None:
        """A request of this kind was answered: so are others that failed for its cause."""
        since, cause = self._failing.pop(what, (0.0, ""))
        if cause in self._said:
            self._said.remove(cause)
            lasted = self._now() - since
            self._failing = {other: one for other, one in self._failing.items() if one[1] != cause}
            log.warning("%s: the API server at %s answers again, after %.0f s", what, self._server, lasted)
