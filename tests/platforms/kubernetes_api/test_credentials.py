"""A login that ends is renewed in time and when it is refused; what cannot be renewed is said, once."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import stat
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from coach.core.errors import PermanentError, TemporaryError
from coach.platforms.kubernetes_api import client, credentials, exec_plugin, watch
from coach.platforms.kubernetes_api.client import Api, ApiError
from coach.platforms.kubernetes_api.credentials import Credential, Credentials, due
from coach.platforms.kubernetes_api.pod_access import connection
from coach.platforms.kubernetes_api.watch import Collection
from tests.platforms.kubernetes_api.fake_server import (
    START,
    Clock,
    FakeServer,
    Plugin,
    certificate,
    kubeconfig,
    refusal,
    things,
    until,
)

pytestmark = pytest.mark.processes

Body = Callable[[FakeServer, Clock], Awaitable[None]]


def at(seconds: float) -> str:
    """An expirationTimestamp so many seconds after the clock's start."""
    return datetime.fromtimestamp(START + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def renewing() -> bool:
    """Whether a renewal has not ended."""
    return any(task.get_name() == "renew credentials" for task in asyncio.all_tasks())


def run(server: FakeServer, body: Body, context: ssl.SSLContext | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(50):
            async with server.running(context):
                await body(server, Clock())
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left"

    asyncio.run(main())


def test_a_plugins_token_is_renewed_before_its_end_and_no_request_waits_for_it(config: Path, plugin: Plugin) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user)
        plugin.says(token="one", expirationTimestamp=at(900))
        async with await Api.connect(now=clock) as api:
            assert await things(api) == 0 and plugin.runs == 1
            plugin.says(token="two", expirationTimestamp=at(1800))
            clock.time += 839
            await things(api)
            assert plugin.runs == 1
            clock.time += 2  # less than a minute is left
            while server.requests[-1] != "Bearer two":
                await things(api)
            assert plugin.runs == 2

    run(FakeServer("Bearer one", "Bearer two"), body)


def test_a_token_that_is_refused_is_renewed_and_the_request_sent_again(config: Path, plugin: Plugin) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user)
        plugin.says(token="one")
        async with await Api.connect(now=clock) as api:
            plugin.says(token="two")
            assert await asyncio.gather(*(things(api) for _ in range(5))) == [0] * 5
            assert plugin.runs == 2, "once for all of them"
            async with connection(api, "p", 1):
                pass
            server.accepted = {"Bearer three"}
            plugin.says(token="three")
            clock.time += credentials.PAUSE_SECONDS
            async with connection(api, "p", 1):
                pass
            assert plugin.runs == 3

    run(FakeServer("Bearer two"), body)


def test_a_plugin_that_fails_costs_nothing_until_the_token_ends_then_its_words_are_said(
    config: Path, plugin: Plugin
) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user)
        plugin.says(token="one", expirationTimestamp=at(100))
        async with await Api.connect(now=clock) as api:
            plugin.does("echo the session has ended >&2; exit 3")
            clock.time += 90
            await things(api)
            await until(lambda: plugin.runs == 2 and not renewing())
            await things(api)
            clock.time += 11
            words = (
                r"the credentials of user u of context c \(exec plugin ./plugin\) cannot be renewed: "
                "exec plugin ./plugin ended with exit code 3: the session has ended"
            )
            for _ in range(5):
                with pytest.raises(TemporaryError, match=words):
                    await things(api)
            assert plugin.runs == 3, "not at each request"
            plugin.does("cat answer")
            plugin.says(token="two", expirationTimestamp=at(900))
            clock.time += credentials.PAUSE_SECONDS
            await things(api)
            assert server.requests[-1] == "Bearer two"

    run(FakeServer("Bearer one", "Bearer two"), body)


def test_a_plugin_that_hangs_is_ended_with_what_it_started(
    config: Path, plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_plugin, "PLUGIN_SECONDS", 0.5)

    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user)
        plugin.does("sleep 600 & echo $! > child; wait")
        with pytest.raises(PermanentError, match=r"no login of user u .* did not end in 0.5 s; .*auth whoami"):
            await Api.connect(now=clock)
        child = int((tmp_path / "child").read_text())
        await until(lambda: not _runs(child))

    run(FakeServer(), body)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_requests_go_on_while_a_plugin_hangs_and_the_token_is_valid(config: Path, plugin: Plugin) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user)
        plugin.says(token="one", expirationTimestamp=at(100))
        async with await Api.connect(now=clock) as api:
            plugin.does("sleep 600")
            clock.time += 90
            for _ in range(3):
                await things(api)
            await until(lambda: plugin.runs == 2)
            await things(api)

    run(FakeServer("Bearer one"), body)


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ("echo '{}'", "gave no ExecCredential of client.authentication.k8s.io/v1 with a token"),
        ("echo no JSON", "gave no ExecCredential"),
        ("sed s/v1/v1beta1/ answer", "gave no ExecCredential"),
    ],
)
def test_what_a_plugin_says_wrongly_is_said_at_the_start(
    config: Path, plugin: Plugin, commands: str, words: str
) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user)
        plugin.says(token="one")
        plugin.does(commands)
        with pytest.raises(PermanentError, match=words):
            await Api.connect(now=clock)
        missing = {**plugin.user["exec"], "command": "no-such-plugin", "installHint": "install it"}
        kubeconfig(config, server.url, {"exec": missing})
        with pytest.raises(PermanentError, match=r"exec plugin no-such-plugin: No such file.*; install it"):
            await Api.connect(now=clock)

    run(FakeServer(), body)


def test_a_plugin_gets_what_the_protocol_promises(config: Path, plugin: Plugin, tmp_path: Path) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        wants = {"provideClusterInfo": True, "env": [{"name": "REGION", "value": "x"}], "args": None}
        extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
        user = {"exec": {**plugin.user["exec"], **wants}}
        kubeconfig(config, server.url, user, extensions=[extension])
        plugin.says(token="one")
        plugin.does('echo "$REGION" > region; echo "$KUBERNETES_EXEC_INFO" > asked; cat answer')
        async with await Api.connect(now=clock):
            pass
        asked = json.loads((tmp_path / "asked").read_text())
        cluster = {"server": server.url, "config": {"audience": "a"}}
        assert asked["spec"] == {"interactive": False, "cluster": cluster}
        assert asked["kind"] == "ExecCredential" and (tmp_path / "region").read_text() == "x\n"

    run(FakeServer(), body)


def test_who_stays_refused_is_told_so_once_and_the_plugin_is_not_run_again_and_again(
    config: Path, plugin: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user)
        plugin.says(token="one")
        async with await Api.connect(now=clock) as api:
            plugin.says(token="two")
            words = r"Unauthorized: the API server at \S+ refuses the credentials of user u of context c \(exec"
            for second in range(30):
                with pytest.raises(ApiError, match=words):
                    await things(api)
                assert plugin.runs <= 2 + second // credentials.PAUSE_SECONDS
                clock.time += 1
            said = [record.getMessage() for record in caplog.records]
            assert len(said) == 1 and said[0].startswith("GET things fails since ") and "Unauthorized" in said[0]
            server.accepted = {"Bearer two"}
            await things(api)
            assert "answers again, after 30 s" in caplog.records[-1].getMessage()

    caplog.set_level(logging.INFO, "coach")
    run(FakeServer(), body)


def test_a_watch_goes_on_with_the_renewed_token_and_says_when_it_cannot(
    config: Path, plugin: Plugin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "RETRY_SECONDS", (0.01, 0.01))
    thing = {"metadata": {"name": "t", "uid": "t", "resourceVersion": "2"}}

    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user)
        plugin.says(token="one")
        async with await Api.connect(now=clock) as api:
            collection = Collection(api, "/api/v1/namespaces/default/things")
            await collection.open()
            server.accepted = {"Bearer two"}
            plugin.says(token="two")
            server.watching.put_nowait(None)  # the watch ends, as it does every few minutes
            await until(lambda: plugin.runs == 2)
            server.watching.put_nowait({"type": "ADDED", "object": thing})
            await collection.until(lambda: "t" in collection.objects)

            server.accepted = set()
            server.watching.put_nowait(None)
            before = len(server.requests)
            await until(lambda: len(server.requests) > before + 5)
            clock.time += client.SAID_AFTER
            await until(lambda: bool(caplog.records))
            said = caplog.records[0].getMessage()
            assert "things fails since" in said and "refuses the credentials of user u" in said
            before = len(server.requests)
            await until(lambda: len(server.requests) > before + 10)
            assert len(caplog.records) == 1, "once, whatever asks"
            server.accepted = {"Bearer two"}
            await until(lambda: len(caplog.records) == 2)
            assert "answers again" in caplog.records[1].getMessage()
            await collection.close()

    caplog.set_level(logging.INFO, "coach")
    run(FakeServer("Bearer one"), body)


def test_a_plugins_certificate_is_shown_and_the_next_one_after_it(config: Path, plugin: Plugin, tmp_path: Path) -> None:
    of_server, first, second = (certificate(tmp_path, name) for name in ("server", "first", "second"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*of_server)
    context.verify_mode = ssl.CERT_REQUIRED
    for one in (first, second):
        context.load_verify_locations(one[0])

    def gives(one: tuple[Path, Path], ends: str) -> None:
        plugin.says(
            clientCertificateData=one[0].read_text(),
            clientKeyData=one[1].read_text(),
            expirationTimestamp=ends,
        )

    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, plugin.user, **{"certificate-authority": str(of_server[0])})
        gives(first, at(100))
        async with await Api.connect(now=clock) as api:
            await things(api)
            gives(second, at(300))
            clock.time += 101
            await things(api)
            assert server.requests == ["first", "second"]
            async with connection(api, "p", 1):
                pass
            assert server.requests[-1] == "second"

    run(FakeServer("first", "second"), body, context)


def test_a_pods_token_is_read_again_as_the_kubelet_renews_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crt, key = certificate(tmp_path, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(crt, key)
    (tmp_path / "ca.crt").write_text(crt.read_text())
    (tmp_path / "namespace").write_text("ml")
    token = tmp_path / "token"
    token.write_text("one\n")
    monkeypatch.setattr(client, "_SERVICE_ACCOUNT", tmp_path)

    async def body(server: FakeServer, clock: Clock) -> None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        async with await Api.connect(now=clock) as api:
            assert api.inside and api.namespace == "ml"
            await things(api)
            token.write_text("two")
            clock.time += credentials.FILE_SECONDS
            while server.requests[-1] != "Bearer two":
                await things(api)
            token.write_text("three")
            server.accepted = {"Bearer three"}
            clock.time += credentials.PAUSE_SECONDS
            await things(api)  # refused before it was to be read again
            token.unlink()
            clock.time += credentials.FILE_SECONDS
            await things(api)
            await things(api)  # what was read is as good as before

    run(FakeServer("Bearer one", "Bearer two"), body, context)


def test_a_token_that_somebody_writes_into_the_kubeconfig_is_used(config: Path, tmp_path: Path) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, {"token": "one"})
        async with await Api.connect(now=clock) as api:
            with pytest.raises(ApiError, match="Unauthorized"):
                await things(api)
            assert len(server.requests) == 1, "the same one would be refused again"
            kubeconfig(config, server.url, {"token": "two"})
            clock.time += credentials.PAUSE_SECONDS
            await things(api)
            (tmp_path / "token").write_text("three")
            server.accepted = {"Bearer three"}
            kubeconfig(config, server.url, {"tokenFile": "token"})
            clock.time += credentials.PAUSE_SECONDS
            await things(api)

    run(FakeServer("Bearer two"), body)


# -- OpenID Connect -------------------------------------------------------------------------------------------


def id_token(ends: float, name: str = "") -> str:
    parts = ({"alg": "none"}, {"exp": ends, "name": f"{name} ~~~ ÿÿÿ"})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + ".s"


class Issuer:
    """Gives one id-token for each refresh-token, and another refresh-token with it."""

    def __init__(self) -> None:
        self.url = ""
        self.tokens = {
            "r1": ("r2", id_token(START + 2000, "second")),
            "r2": ("r3", id_token(START + 4000, "third")),
        }
        self.methods = ["client_secret_basic"]
        self.asked: list[dict[str, str]] = []

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._known)
        app.router.add_post("/token", self._token)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _known(self, _request: web.Request) -> web.Response:
        known = {"token_endpoint": f"{self.url}/token", "token_endpoint_auth_methods_supported": self.methods}
        return web.json_response(known)

    async def _token(self, request: web.Request) -> web.Response:
        form: dict[str, Any] = dict(await request.post())
        self.asked.append({**form, "header": request.headers.get("Authorization", "")})
        if form["refresh_token"] not in self.tokens:
            return web.json_response({"error": "invalid_grant", "error_description": "used before"}, status=400)
        refresh, token = self.tokens.pop(form["refresh_token"])
        return web.json_response({"id_token": token, "refresh_token": refresh, "access_token": "x"})


def oidc(issuer: Issuer, **settings: str) -> dict[str, Any]:
    known = {"idp-issuer-url": issuer.url, "client-id": "coach", "client-secret": "s", "refresh-token": "r1"}
    return {"auth-provider": {"name": "oidc", "config": {**known, **settings}}}


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_an_id_token_is_renewed_at_its_issuer_and_the_kubeconfig_has_the_new_tokens(config: Path, method: str) -> None:
    issuer = Issuer()
    issuer.methods = [method]
    first, second, third = id_token(START + 1000), issuer.tokens["r1"][1], issuer.tokens["r2"][1]

    async def body(server: FakeServer, clock: Clock) -> None:
        runner = await issuer.start()
        kubeconfig(config, server.url, oidc(issuer, **{"id-token": first}))
        config.chmod(0o640)
        async with await Api.connect(now=clock) as api:
            await things(api)
            assert not issuer.asked
            clock.time += 950
            while server.requests[-1] != f"Bearer {second}":
                await things(api)
            written = yaml.safe_load(config.read_text())["users"][0]["user"]["auth-provider"]["config"]
            assert written == {
                **oidc(issuer)["auth-provider"]["config"],
                "id-token": second,
                "refresh-token": "r2",
            }
            assert stat.S_IMODE(config.stat().st_mode) == 0o640
            assert [path.name for path in config.parent.iterdir()] == ["config"], "no lock, no half file"
            server.accepted = {f"Bearer {third}"}
            clock.time += credentials.PAUSE_SECONDS
            await things(api)  # refused before its end
        secret = base64.b64encode(b"coach:s").decode()
        shown = issuer.asked[0]["header"] == f"Basic {secret}", issuer.asked[0].get("client_secret")
        assert shown == ((True, None) if method == "client_secret_basic" else (False, "s"))
        await runner.cleanup()

    run(FakeServer(f"Bearer {first}", f"Bearer {second}"), body)


def test_a_kubeconfig_that_cannot_be_written_is_said_and_the_new_refresh_token_kept(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer()
    third = issuer.tokens["r2"][1]

    async def body(server: FakeServer, clock: Clock) -> None:
        runner = await issuer.start()
        kubeconfig(config, server.url, oidc(issuer))
        before = config.read_text()
        config.with_name("config.lock").touch()
        async with await Api.connect(now=clock) as api:
            clock.time += 2001
            await things(api)
            assert config.read_text() == before
            assert "the new tokens of user u cannot be written" in caplog.text
            clock.time += 2001
            words = rf"issuer {issuer.url} gives no new id-token: used before"
            with pytest.raises(TemporaryError, match=words):
                await things(api)
            # The user logs in anew: what the file has then is used.
            kubeconfig(config, server.url, oidc(issuer, **{"id-token": id_token(START + 9000)}))
            server.accepted = {f"Bearer {id_token(START + 9000)}"}
            clock.time += credentials.PAUSE_SECONDS
            await things(api)
        await runner.cleanup()

    run(FakeServer(f"Bearer {third}"), body)


# -- Retry-After ----------------------------------------------------------------------------------------------


def test_a_request_is_sent_again_when_the_api_server_wants_it_and_not_for_ever(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(server: FakeServer, clock: Clock) -> None:
        kubeconfig(config, server.url, {"token": "one"})
        async with await Api.connect(now=clock) as api:
            past = "Fri, 01 Jan 2027 00:00:00 GMT"
            server.answers = [
                refusal(429, "TooManyRequests", **{"Retry-After": "0"}),
                refusal(503, "ServiceUnavailable", **{"Retry-After": past}),
            ]
            await things(api)
            assert len(server.requests) == 3
            server.answers = [refusal(429, "TooManyRequests", **{"Retry-After": "0"}) for _ in range(50)]
            with pytest.raises(ApiError, match="TooManyRequests"):
                await things(api)
            assert len(server.answers) == 50 - 1 - client.LATER_TIMES
            server.answers = [refusal(503, "ServiceUnavailable")]
            with pytest.raises(ApiError, match="ServiceUnavailable"):
                await things(api)

    run(FakeServer("Bearer one"), body)


@pytest.mark.parametrize(
    ("status", "said", "seconds"),
    [
        (429, "7", 7.0),
        (503, "7", 7.0),
        (503, "Fri, 15 Jan 2027 08:00:05 GMT", 5.0),
        (429, "Fri, 15 Jan 2027 07:59:00 GMT", 0.0),
        (429, "86400", client.LATER_SECONDS),
        (429, "soon", None),
        (429, "", None),
        (200, "7", None),
        (404, "7", None),
    ],
)
def test_retry_after_is_read_in_seconds_or_as_a_date(status: int, said: str, seconds: float | None) -> None:
    assert client._wait(status, {"Retry-After": said}, START) == seconds


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [(None, None), (3600.0, 3540.0), (100.0, 80.0), (5.0, 4.0), (0.5, 1.0), (-60.0, 1.0)],
)
def test_a_credential_is_due_before_its_end_but_not_at_once(ends: float | None, wanted: float | None) -> None:
    assert due(ends, 0.0) == wanted


def test_a_waiter_that_is_cancelled_ends_no_renewal_of_others() -> None:
    async def main() -> None:
        asked, go = 0, asyncio.Event()

        async def read() -> Credential:
            nonlocal asked
            asked += 1
            await go.wait()
            return Credential("two")

        first = Credential("one", ends=0.0, due=0.0)
        held = Credentials(first, read, "u", lambda: 5.0)
        waiting = [asyncio.create_task(held.current()) for _ in range(2)]
        await until(lambda: asked == 1)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        go.set()
        assert (await waiting[1]).authorization == "two" and asked == 1

    asyncio.run(main())
