"""Which of several handlers leads, by a lease that all of them see: a rule over what a candidate has seen of it.

No two clocks are compared. A leader counts from before it asked for its lease, a candidate from when it first saw the
lease as it is. So a leader stops acting VALID_SECONDS after a renewal that was the last, and no other takes the lease
before LEASE_SECONDS after it. The term rises with each leader, and fences what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from coach.core.errors import PermanentError

#: Seconds without a renewal after which a lease is free, and after which its leader does not act any more.
LEASE_SECONDS, VALID_SECONDS = 11.0, 9.0
#: Holder of a lease that was deleted, and whose holder is not known.
UNKNOWN = "unknown"


class LostError(PermanentError):
    """Another one leads now."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the API server has it. `holder` empty: it is free. `renewed`: when its holder says it renewed it."""

    holder: str
    term: int
    renewed: str


@dataclass(slots=True)
class Candidate:
    """One who leads, or would. Times are seconds of its own clock, which also runs while the process is stopped."""

    me: str
    #: The term in which it leads; 0: in none.
    term: int = 0
    #: Until when it may act.
    until: float = 0.0
    _seen: Lease | None = None
    _seen_at: float = 0.0

    def leads(self, now: float) -> bool:
        """Whether it may act now."""
        return self.term > 0 and now < self.until

    def writes_as(self, found: Lease | None, now: float, written: int) -> str | None:
        """The holder with which it writes the lease now that it was found so; None: it waits. Raises LostError.

        `found` None: there is no lease. Where none has ever led (`written`, the highest term that has, is 0) it takes
        it; else it was deleted while its holder may still act, and is made anew as UNKNOWN's.
        """
        if found != self._seen:
            self._seen, self._seen_at = found, now
        if self.term:
            if found is not None and (found.holder not in ("", self.me) or found.term != self.term):
                raise LostError(
                    f"{found.holder or 'another handler'} leads in term {found.term}, after {self.me} in {self.term}"
                )
            if found is None and not self.leads(now):
                raise LostError(f"the lease of {self.me} is gone, and may have been another's since")
            return self.me
        if found is None:
            return UNKNOWN if written else self.me
        free = found.holder in ("", self.me) or now - self._seen_at >= LEASE_SECONDS
        return self.me if free else None

    def next_term(self, found: Lease | None, written: int) -> int:
        """The term that it takes: a lease that is made anew does not know the highest that has `written`."""
        return max(found.term if found else 0, written) + 1

    def wrote(self, term: int, asked_at: float) -> None:
        """The lease is its own in this term, by a request that was made at `asked_at`."""
        self.term, self.until = term, asked_at + VALID_SECONDS
