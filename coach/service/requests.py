"""Requests with an `Idempotency-Key`: what was done for one is in the journal, in the same record as its identity.

So a retry finds what was done before, also in another process, and does only what is missing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from coach.core.errors import UserError
from coach.core.jobs.events import ResumeRequested
from coach.handler.state.journal import Journal


@dataclass(frozen=True, slots=True)
class Done:
    """What was done for one part of a request: a job was submitted, or resumed; `seq` is the record's number."""

    job: str
    resumed: bool
    seq: int


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with its key, and what was done for it before, by the number of the part."""

    identity: str = ""
    done: dict[int, Done] | None = None

    def part(self, number: int) -> str:
        """The identity of a part, for the journal."""
        return f"{self.identity}.{number}" if self.identity else ""

    def before(self, number: int) -> Done | None:
        """What was done for a part before."""
        return (self.done or {}).get(number)


#: A request without a key: a second one is another request.
NO_KEY = KeyedRequest()


def find(journal: Journal, key: str | None, what: bytes) -> KeyedRequest:
    """The request of a key. `what`: all that it asks for. Raises UserError where the key was another request's."""
    if key is None:
        return NO_KEY
    marked = _mark(key.encode())
    identity = f"{marked}.{_mark(what)}"
    done: dict[int, Done] = {}
    for request, seq, kind, job in journal.requested(f"{marked}."):
        other, _, number = request.rpartition(".")
        if other != identity:
            raise UserError(f"the Idempotency-Key {key} was used for another request, about job {job}; take a new key")
        done[int(number)] = Done(job, kind == ResumeRequested.__name__, seq)
    return KeyedRequest(identity, done)


def _mark(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]
