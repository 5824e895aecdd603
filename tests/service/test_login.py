"""A browser logs in with a code that is used once; its cookie counts for the page's own requests alone."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from coach.handler.state.state_directory import StateDirectory
from coach.service.page.login import Logins, host_is_ours
from tests.service.conftest import Api, serve

HOST = {"Host": "127.0.0.1:8421"}
OURS = HOST | {"Sec-Fetch-Site": "same-origin"}


async def logged_in(api: Api) -> dict[str, str]:
    """Headers with the cookie of a new login."""
    code = (await api.post("/login-codes"))["code"]
    async with stranger(api) as browser:
        answer = await browser.post("/login", json={"code": code})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("coach-0=") and cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
        again = await browser.post("/login", json={"code": code})
        assert again.status_code == 403, "a code is used once"
    return OURS | {"Cookie": cookie.partition(";")[0]}


def stranger(api: Api) -> httpx.AsyncClient:
    """A client without the token."""
    return httpx.AsyncClient(transport=api.http._transport, base_url=api.http.base_url, headers={"Host": "localhost"})


def test_a_code_makes_a_cookie_that_reads_and_changes(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a")
        headers = await logged_in(api)
        async with stranger(api) as browser:
            assert (await browser.get("/jobs")).status_code == 401
            assert (await browser.get("/jobs", headers=headers)).status_code == 200
            assert (await browser.post("/jobs/a/cancel", headers=headers)).status_code == 403, "no JSON"
            answer = await browser.post("/jobs/a/cancel", headers=headers, json={})
            assert answer.status_code in (200, 409)
            ended = await browser.post("/logout", headers=headers, json={})
            assert "Max-Age=0" in ended.headers["set-cookie"]

    serve(home, body)


def test_a_copy_of_a_cookie_ends_with_its_logout_also_after_a_restart(home: StateDirectory) -> None:
    headers = dict[str, str]()
    other = dict[str, str]()

    async def body(api: Api) -> None:
        headers.update(await logged_in(api))
        other.update(await logged_in(api))
        async with stranger(api) as browser:
            assert (await browser.get("/jobs", headers=headers)).status_code == 200
            await browser.post("/logout", headers=headers, json={})
            assert (await browser.get("/jobs", headers=headers)).status_code == 401
            assert (await browser.get("/jobs", headers=other)).status_code == 200

    async def later(api: Api) -> None:
        async with stranger(api) as browser:
            assert (await browser.get("/jobs", headers=headers)).status_code == 401
            assert (await browser.get("/jobs", headers=other)).status_code == 200

    serve(home, body)
    serve(home, later)
    assert (home.path / "service.logged-out").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Sec-Fetch-Site": "", "Origin": "http://evil.example"},
    ],
)
def test_another_site_cannot_use_it(home: StateDirectory, changed: dict[str, str]) -> None:
    async def body(api: Api) -> None:
        await api.submit("a")
        headers = await logged_in(api) | changed
        async with stranger(api) as browser:
            answer = await browser.post("/jobs/a/cancel", headers=headers, json={})
            assert answer.status_code == 403, answer.text

    serve(home, body)


@pytest.mark.parametrize("cookie", ["coach-0=", "coach-0=a.b", "coach-1=SIGNED", "coach-0=x.é", 'coach-0="'])
def test_another_cookie_is_none(home: StateDirectory, cookie: str) -> None:
    async def body(api: Api) -> None:
        async with stranger(api) as browser:
            answer = await browser.get("/jobs", headers=OURS | {b"Cookie": cookie.encode("latin-1")})  # type: ignore[arg-type]
            assert answer.status_code == 401

    serve(home, body)


def test_the_page_is_open_and_carries_its_policy(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        async with stranger(api) as browser:
            root: Any = str(api.http.base_url).removesuffix("/api/v1/")
            page = await browser.get(f"{root}/ui/")
            policy = page.headers["content-security-policy"]
            assert page.status_code == 200
            assert "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
            tag = {"If-None-Match": page.headers["etag"]}
            assert (await browser.get(f"{root}/ui/", headers=tag)).status_code == 304
            for path in ("/ui", "/"):
                assert (await browser.get(root + path)).headers["location"] == "ui/"
            for path in ("/ui/../../app.py", "/ui/%2e%2e/login.py", "/ui/nothing"):
                assert (await browser.get(root + path)).status_code in (401, 404)
            assert (await browser.get(f"{root}/ui/", headers={"Host": "evil.example"})).status_code == 403

    serve(home, body)


def test_a_code_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    logins = Logins("token", 8421)
    code = logins.code()
    now[0] += 61
    assert logins.use(code) is None
    fresh = logins.code()
    value = logins.use(fresh)
    assert value is not None and logins.knows(f"other=1; coach-8421={value}")
    assert not Logins("another token", 8421).knows(f"coach-8421={value}"), "it ends with the token"
    codes = [logins.code() for _ in range(101)]
    assert logins.use(codes[0]) is None and logins.use(codes[-1])


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:8421", True),
        ("[::1]:8421", True),
        ("localhost", True),
        ("coach.example.org", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_names_of_other_sites_are_not_ours(host: str, ours: bool) -> None:
    assert host_is_ours(host, frozenset({"coach.example.org"})) is ours
