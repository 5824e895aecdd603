"""The page in all its parts, for everybody and against strangers: `make test-web ALL=1`, in `make all-tests`."""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coach import Client
from coach.handler.state.state_directory import StateDirectory
from tests.cli.conftest import ROOT
from tests.required import missing
from tests.service.test_api import ENDLESS as UNREACHED
from tests.web.conftest import Serving, context, expect

pytestmark = [pytest.mark.web, pytest.mark.processes, pytest.mark.full]

AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
ENDLESS = UNREACHED | {"maxEpochs": 100_000}
BUDGET = {"amount": 1.0, "currency": "USD"}
#: Every answer comes 1.5 s late; how many of one path were under way at once is counted.
SLOW = """
const ask = window.fetch;
window.most = {};
const now = {};
window.fetch = async (path, ...more) => {
  now[path] = (now[path] ?? 0) + 1;
  window.most[path] = Math.max(window.most[path] ?? 0, now[path]);
  const answer = await ask(path, ...more);
  await new Promise((done) => setTimeout(done, 1500));
  now[path] -= 1;
  return answer;
};
"""
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


# -- for everybody ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_axe_finds_nothing_serious(service: Serving, browser: Any, look: str) -> None:
    if not AXE.exists():
        missing("needs axe-core: npm ci --prefix web")
    service.submit("digits", maxEpochs=200, target={"loss": 0.3, "epochsInARow": 2}, budget=BUDGET)
    service.submit("a", "b", "c", "d", "e", budget=BUDGET, **ENDLESS)
    size = {"width": 400 if look == "narrow" else 1280, "height": 800}
    scheme = "dark" if look == "dark" else "light"
    # axe brings its own script, which the page's policy would refuse.
    with context(browser, viewport=size, color_scheme=scheme, bypass_csp=True) as made:
        page = made.new_page()
        page.goto(service.address())
        page.get_by_role("link", name="digits").click()
        page.get_by_text("✓ Succeeded").wait_for()
        places = ["/", "/cluster", "/submit", "/nothing", "/jobs/nobody"]
        places += ["/budgets", "/compare/digits,a", "/what-if/digits,a"]
        tabs = ("overview", "epochs", "money", "speed", "events", "logs", "spec")
        places += [f"/jobs/{name}/{tab}" for name, tab in [*(("digits", tab) for tab in tabs), ("e", "overview")]]
        found = []
        for place in places:
            page.goto(f"{service.url}/ui/#{place}")
            page.get_by_role("heading", level=1).wait_for()
            if look == "narrow":
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
                cut = page.locator("td.money, td.state").evaluate_all(
                    "cells => cells.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"
                )
                assert cut == [], place
            if place == "/jobs/e/overview":
                page.get_by_role("button", name="Cancel").click()
                page.get_by_role("dialog").get_by_role("status").wait_for()
            page.evaluate(AXE.read_text(encoding="utf-8"))
            result = page.evaluate("axe.run()")
            found += [
                f"{place}: {one['id']}: {one['nodes'][0]['html'][:200]}"
                for one in result["violations"]
                if one["impact"] in ("serious", "critical")
            ]
        assert found == []


def test_a_job_is_followed_stopped_and_paid_for_through_names_and_keys_alone(service: Serving, page: Any) -> None:
    service.submit("digits", budget=BUDGET, **ENDLESS)
    page.goto(service.address())
    page.get_by_role("link", name="digits", exact=True).focus()
    page.keyboard.press("Enter")
    for button, said, then, done in (
        ("Suspend", r"checkpoint", "Suspend at the end of the epoch", "Resume"),
        ("Resume", r"It goes on", "Resume", "Suspend"),
    ):
        page.get_by_role("button", name=button, exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text(re.compile(said)).wait_for()
        dialog.get_by_role("button", name=then, exact=True).click()
        page.get_by_role("button", name=done, exact=True).wait_for()
    page.get_by_role("button", name="Add budget").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Budget from now on, in USD")).fill("1.5")
    dialog.get_by_role("button", name="Add 0.5 USD").dblclick()
    dialog.wait_for(state="detached")
    page.get_by_text(re.compile(r"of 1\.5\sUSD")).wait_for()
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog.get_by_text(re.compile("stay spent")).wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog.get_by_role("button", name="Cancel now").click()
    page.get_by_text("Cancelled").first.wait_for()
    with Client() as coach:
        row = coach.job("digits").job
    assert (row.state, row.budget) == ("Cancelled", 1.5), "the double click paid once"


def test_times_and_money_are_of_the_readers_locale(service: Serving, browser: Any) -> None:
    service.submit("digits", maxEpochs=2, budget={"amount": 0.5, "currency": "USD"})
    with context(browser, locale="de-DE") as made:
        page = made.new_page()
        page.goto(service.address("/jobs/digits"))
        page.get_by_text(re.compile(r"of 0,5\sUSD")).first.wait_for()


# -- live -------------------------------------------------------------------------------------------------


def test_a_killed_service_is_found_again_without_a_reload(service: Serving, page: Any) -> None:
    service.submit("a", "b", budget=BUDGET, **ENDLESS)
    page.goto(service.address())
    page.get_by_role("link", name="a", exact=True).wait_for()
    page.evaluate("window.same = true")
    service.kill()
    page.get_by_text("the service does not answer").wait_for()
    service.start()
    page.get_by_text("live", exact=True).wait_for()
    with Client() as coach:
        coach.cancel("b")
    page.get_by_role("row", name=re.compile("^b Cancelled")).wait_for()
    assert page.evaluate("window.same"), "it was not loaded anew"
    page.reload()
    page.get_by_role("row", name=re.compile("^b Cancelled")).wait_for()
    page.get_by_text("live", exact=True).wait_for()


def test_nine_tabs_are_live_at_once(service: Serving, browser: Any) -> None:
    service.submit("a", "b", budget=BUDGET, **ENDLESS)
    with context(browser) as made:
        first = made.new_page()
        first.goto(service.address())
        first.get_by_role("link", name="a", exact=True).wait_for()
        tabs = [first, *(made.new_page() for _ in range(8))]
        # A hidden tab has no stream: a browser allows six connections to one place.
        for tab in tabs:
            tab.add_init_script("Object.defineProperty(document, 'hidden', {get: () => !!window.away})")
        for tab in tabs:
            tab.goto(f"{service.url}/ui/#/jobs/a")
            tab.get_by_text("live", exact=True).wait_for()
            tab.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
        last = tabs[-1]
        last.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
        last.get_by_text("live", exact=True).wait_for()
        with Client() as coach:
            coach.cancel("a")
        last.get_by_text("Cancelled").first.wait_for()


def test_lines_of_a_log_come_by_the_one_stream_and_once_across_a_crash(
    service: Serving, folder: Path, page: Any
) -> None:
    service.submit("a", budget=BUDGET, **ENDLESS)
    log = StateDirectory(folder / "home").logs("a") / "a-worker-0.log"
    log.write_text("first line\n")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(service.address("/jobs/a/logs"))
    shown = page.get_by_role("log", name="Log of a-worker-0")
    shown.get_by_text("first line").wait_for()
    with log.open("a") as out:
        out.write("second line\n")
    shown.get_by_text("second line").wait_for()
    service.kill()
    page.get_by_text("the service does not answer").wait_for()
    with log.open("a") as out:
        out.write("third line\n")
    service.start()
    shown.get_by_text("third line").wait_for()
    assert shown.inner_text().split() == ["first", "line", "second", "line", "third", "line"]
    assert not [url for url in asked if "/logs/" in url], "none was asked for by itself"


def test_a_slow_service_gets_one_question_at_a_time_and_its_last_answer_is_the_newest(
    service: Serving, page: Any
) -> None:
    page.add_init_script(SLOW)
    page.goto(service.address("/cluster"))
    page.get_by_text("No job waits for the cluster.").wait_for()
    service.submit("a", budget=BUDGET, **ENDLESS)
    page.get_by_role("row").get_by_role("link", name="a", exact=True).click()
    curve = "loss by passes over the data: {} epochs"
    page.get_by_role("img", name=re.compile(curve.format(r"\d\d"))).wait_for()
    with Client() as coach:
        coach.cancel("a")
        points = len([one for one in coach.job("a").epochs if one.loss is not None])
    page.get_by_role("img", name=re.compile(curve.format(points))).wait_for()
    most = page.evaluate("window.most")
    assert max(most.values()) == 1, most
    assert [path for path in most if path.endswith("/jobs/a/figures")]


def test_a_thousand_jobs_are_few_rows(service: Serving, page: Any) -> None:
    for part in range(4):
        service.submit(*(f"job-{part}-{number}" for number in range(250)), budget=BUDGET, **ENDLESS)
    page.goto(service.address())
    page.get_by_role("button", name="All 1000").wait_for()
    rows = page.get_by_role("region", name="Table of jobs").get_by_role("row")
    assert rows.count() < 60
    page.get_by_role("region", name="Table of jobs").evaluate("box => box.scrollTo(0, 1e9)")
    page.get_by_role("link", name="job-0-0", exact=True).wait_for()
    assert rows.count() < 60
    page.get_by_role("searchbox").fill("job-2-17")
    page.get_by_role("link", name="job-2-170", exact=True).wait_for()
    expect(rows).to_have_count(1 + 11)
    page.get_by_role("link", name="Cluster").click()
    page.get_by_text(re.compile(r"The first 100 of 9\d\d jobs that wait")).wait_for()
    page.get_by_role("button", name="Show more").click()
    page.get_by_text(re.compile(r"The first 200 of 9\d\d jobs that wait")).wait_for()


# -- against strangers ------------------------------------------------------------------------------------


def test_hostile_texts_are_text(service: Serving, folder: Path, browser: Any) -> None:
    with context(browser, complaint="TrustedHTML") as made:
        look_at_hostile_texts(service, folder, made.new_page())


def look_at_hostile_texts(service: Serving, folder: Path, page: Any) -> None:
    service.submit("a", budget=BUDGET, **ENDLESS)
    logs = StateDirectory(folder / "home").logs("a")
    (logs / "a-worker-0.log").write_text(f"{HOSTILE}\n")
    page.goto(service.address("/jobs/a/logs"))
    page.locator("pre.log").get_by_text(HOSTILE).wait_for()
    page.goto(f"{service.url}/ui/#/submit")
    page.get_by_role("textbox", name="Job file").fill(f"kind: {HOSTILE!r}\n")
    page.get_by_role("list").get_by_text("onerror").first.wait_for()
    page.goto(f"{service.url}/ui/#/jobs/{HOSTILE.replace('/', '%2F')}")
    page.get_by_role("alert").wait_for()
    assert page.evaluate("window.hit") is None
    refused = page.evaluate("try { document.body.innerHTML = '<b>x</b>'; 'done' } catch (error) { error.name }")
    assert refused == "TypeError", "no text becomes a document"


class Proxy(BaseHTTPRequestHandler):
    """Everything under /coach/ goes to the service, as a proxy of many services does."""

    port = 0

    def pass_on(self) -> None:
        there = http.client.HTTPConnection("127.0.0.1", self.port)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        there.request(self.command, self.path.removeprefix("/coach"), body, dict(self.headers))
        answer = there.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError, http.client.HTTPException):
            while data := answer.read1():
                self.wfile.write(data)
                self.wfile.flush()
        there.close()

    do_GET = do_POST = pass_on

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def proxy(service: Serving) -> Iterator[str]:
    handler = type("Proxy", (Proxy,), {"port": service.port})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/coach"
        server.shutdown()


def test_it_works_under_a_path_behind_a_proxy(service: Serving, proxy: str, page: Any) -> None:
    service.submit("a", budget=BUDGET, **ENDLESS)
    page.goto(service.address().replace(service.url, proxy))
    page.get_by_text("live", exact=True).wait_for()
    page.get_by_role("link", name="a", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel now").click()
    page.get_by_text("Cancelled").first.wait_for()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="SVG of Learning curve").click()
    assert opened.value.url.startswith(proxy)


# -- without a service ------------------------------------------------------------------------------------


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """A process that is over afterwards, whatever a test finds: `Popen` alone waits for its end."""
    try:
        yield
    finally:
        process.kill()


def test_coach_ui_shows_what_has_run_and_changes_nothing(service: Serving, page: Any) -> None:
    service.submit("done", maxEpochs=3, budget=BUDGET)
    with Client() as coach:
        for change in coach.follow("done"):
            assert change
    service.kill()
    command = [sys.executable, "-m", "coach.cli.main", "ui", "done", "--no-browser"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as shown, ended(shown):
        assert shown.stdout is not None
        page.goto(shown.stdout.readline().strip())
        page.get_by_role("heading", name="done", level=1).wait_for()
        page.get_by_text("live, read only").wait_for()
        page.get_by_role("img", name=re.compile("^loss by passes")).wait_for()
        expect(page.get_by_role("button", name="Add budget")).to_have_count(0)
        expect(page.get_by_role("link", name="Submit")).to_have_count(0)
        status = page.evaluate(
            "fetch('../api/v1/jobs/done/cancel', {method: 'POST', body: '{}', "
            "headers: {'Content-Type': 'application/json'}}).then((answer) => answer.status)"
        )
        assert status == 409
        shown.terminate()
        assert shown.wait(60) == 0


# -- for real ---------------------------------------------------------------------------------------------


@pytest.mark.mxnet
@pytest.mark.usefixtures("functions")
@pytest.mark.timeout(900)
def test_a_real_job_is_watched_to_its_target(folder: Path, browser: Any) -> None:
    command = [sys.executable, "-m", "coach.cli.main"]
    with subprocess.Popen(
        [*command, "run", str(ROOT / "jobs/lenet-digits.yaml"), "--no-live"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    ) as run:
        journal = folder / "home" / "journal.db"
        while not (journal.exists() and StateDirectory(folder / "home").past()):
            assert run.poll() is None
            time.sleep(0.2)
        with (
            subprocess.Popen(
                [*command, "ui", "lenet-digits", "--no-browser"], cwd=ROOT, stdout=subprocess.PIPE, text=True
            ) as shown,
            ended(shown),
        ):
            assert shown.stdout is not None
            with context(browser) as made:
                page = made.new_page()
                page.goto(shown.stdout.readline().strip())
                page.get_by_text("● Training").wait_for(timeout=300_000)
                page.get_by_text("✓ Succeeded").wait_for(timeout=500_000)
                page.get_by_text(re.compile("spent .*USD, left")).wait_for()
            shown.terminate()
            shown.wait(60)
        assert run.wait(60) == 0
