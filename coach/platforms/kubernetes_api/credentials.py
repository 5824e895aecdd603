"""What a request shows the API server to say who asks: renewed before it ends, and when it is refused.

`kubectl` ends after its request. A handler runs for days, longer than its token: those of exec plugins and of OpenID
Connect end after minutes to an hour, and a pod's service account gets a new one in its file every hour.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from coach.core.errors import TemporaryError

#: A credential is renewed when a fifth of its time is left, at most these many seconds.
AHEAD_SECONDS = 60.0
#: Seconds after which a token's file is read again.
FILE_SECONDS = 60.0
#: Seconds until a credential is renewed again that could not be renewed, or that was refused.
PAUSE_SECONDS = 10.0
#: Seconds for which a new credential is kept, whenever it says that it ends: this machine's clock may be wrong.
MIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Credential:
    """A value of the header Authorization, or a certificate and its key (PEM), or both.

    It ends at `ends` and is to be read again at `due`, in seconds since 1970; None: unknown, and never.
    """

    authorization: str | None = None
    certificate: tuple[str, str] | None = None
    ends: float | None = None
    due: float | None = None


def due(ends: float | None, now: float) -> float | None:
    """When to renew what begins now and ends then."""
    if ends is None:
        return None
    return max(ends - min(AHEAD_SECONDS, (ends - now) / 5), now + MIN_SECONDS)


class Credentials:
    """Those of one user, as `read` gives them; `first` was read already, and `who` describes the user.

    All requests share one renewal. While it runs, what is held is used as long as it has not ended.
    """

    def __init__(
        self,
        first: Credential,
        read: Callable[[], Awaitable[Credential]],
        who: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.who = who
        self._held = first
        self._read = read
        self._now = now
        self._due = first.due
        #: When what was refused may be renewed.
        self._may_renew = 0.0
        self._renewal: asyncio.Task[None] | None = None
        self._failure: TemporaryError | None = None

    async def current(self) -> Credential:
        """What the next request shows. Raises TemporaryError where that has ended and cannot be renewed."""
        if self._due is not None and self._now() >= self._due:
            renewal = self._renewing()
            if self._ended():
                await asyncio.shield(renewal)
        if self._failure is not None and self._ended():
            raise self._failure
        return self._held

    async def renewed(self, refused: Credential) -> bool:
        """Whether there is another one now than `refused`: it is renewed, unless that was tried just now."""
        if self._held is refused and self._now() >= self._may_renew:
            await asyncio.shield(self._renewing())
        shown = self._held.authorization, self._held.certificate
        return shown != (refused.authorization, refused.certificate)

    async def close(self) -> None:
        """End a renewal that runs."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)

    def _ended(self) -> bool:
        return self._held.ends is not None and self._now() >= self._held.ends

    def _renewing(self) -> asyncio.Task[None]:
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(), name="renew credentials")
        return self._renewal

    async def _renew(self) -> None:
        try:
            self._held = await self._read()
            self._failure, self._due = None, self._held.due
        except Exception as error:  # whatever it is, requests say it
            self._failure = TemporaryError(f"the credentials of {self.who} cannot be renewed: {_words(error)}")
            self._due = None if self._due is None else self._now() + PAUSE_SECONDS
        finally:
            self._may_renew = self._now() + PAUSE_SECONDS
            self._renewal = None


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, TemporaryError) else f"{type(error).__name__}: {error}"


def token_file(path: Path, now: Callable[[], float]) -> Callable[[], Awaitable[Credential]]:
    """What reads a token in a file that another process renews, as the kubelet does for a pod."""

    async def read() -> Credential:
        """Raises TemporaryError where there is none."""
        try:
            token = path.read_text().strip()
        except OSError as error:
            raise TemporaryError(f"{path}: {error.strerror}") from error
        if not token:
            raise TemporaryError(f"{path} is empty")
        return Credential(f"Bearer {token}", due=now() + FILE_SECONDS)

    return read
