"""How a browser logs in: a code that is used once makes a cookie that is signed with the service's token.

`coach ui` asks for a code with the token and opens `/ui/#login=CODE`. What follows `#` is sent to no server and is in
no log. The page sends it in a request and gets the cookie. The cookie ends with the token and is valid after a restart;
those that were logged out are kept in a file. It counts only for requests of our own page (SameSite=Strict,
Sec-Fetch-Site, Origin).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

from coach.handler.private_files import opener

#: Seconds in which a code can be used.
CODE_SECONDS = 60
#: Codes that wait to be used, at most: the oldest is dropped.
MAX_CODES = 100
#: Cookies that were logged out and are known as such, at most: the oldest is forgotten.
MAX_ENDED = 10_000


class Logins:
    """The codes and cookies of one service."""

    def __init__(self, token: str, port: int = 0, ended: Path | None = None) -> None:
        """`ended`: the file of the cookies that were logged out; without one they are known until the service ends."""
        self._file = ended
        self._ended = dict.fromkeys(ended.read_text("ascii").split()) if ended and ended.is_file() else {}
        self._key = hashlib.sha256(b"coach cookie " + token.encode()).digest()
        #: Cookies are of a host, whatever the port: without it a second service would end the first one's login.
        self.cookie = f"coach-{port}"
        self._codes: dict[str, float] = {}

    def code(self) -> str:
        """A new code."""
        if len(self._codes) >= MAX_CODES:
            self._codes.pop(next(iter(self._codes)))
        made = secrets.token_urlsafe(24)
        self._codes[made] = time.monotonic() + CODE_SECONDS
        return made

    def use(self, code: str) -> str | None:
        """The value of a cookie for a code, which is used up; None for an unknown or old one."""
        until = self._codes.pop(code, 0.0)
        if time.monotonic() >= until:
            return None
        salt = secrets.token_urlsafe(18)
        return f"{salt}.{self._sign(salt)}"

    def end(self, header: str) -> None:
        """The cookie in a request's Cookie header and any copy of it count no more. Raises OSError."""
        salt = self._known(header)
        if not salt:
            return
        self._ended[salt] = None
        while len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        if self._file is not None:
            new = self._file.with_suffix(".new")
            with open(new, "w", opener=opener, encoding="ascii") as out:
                out.write("\n".join(self._ended) + "\n")
            new.replace(self._file)

    def set_cookie(self, value: str, *, secure: bool) -> str:
        """The header that sets the cookie; an empty value ends it."""
        end = "" if value else "; Max-Age=0"
        return f"{self.cookie}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}{end}"

    def knows(self, header: str) -> bool:
        """Whether a request's Cookie header has a cookie of ours, which was not logged out."""
        return bool(self._known(header))

    def _known(self, header: str) -> str:
        """What is signed in such a cookie; empty where there is none."""
        try:
            morsel = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return ""
        salt, _, sign = morsel.value.partition(".") if morsel else ("", "", "")
        signed = hmac.compare_digest(sign.encode(), self._sign(salt).encode())
        return salt if signed and salt not in self._ended else ""

    def _sign(self, salt: str) -> str:
        return hmac.new(self._key, salt.encode(), hashlib.sha256).hexdigest()


def host_is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a request's Host is this service's: an address, `localhost`, or one of `names`.

    A page of another site whose name was made to resolve to this machine (DNS rebinding) sends that name.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def of_our_page(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request with a cookie comes from our own page; one that changes nothing may come from anywhere."""
    site = headers.get("sec-fetch-site")
    if method in ("GET", "HEAD"):
        return site in ("same-origin", "none", None)
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == headers.get("host", "")
