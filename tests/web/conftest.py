"""A real browser (Debian's Chromium by Playwright) in front of a real service on a platform in memory.

Run this folder alone: while the browser is open Playwright's event loop is that of the main thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coach import Client
from tests.cli.conftest import ROOT, functions
from tests.required import missing
from tests.service.conftest import job_text

__all__ = ["functions"]

#: Milliseconds that a condition may take on a machine that is many times too busy.
PATIENCE = 60_000
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Serving:
    """A service that can be killed and started again at the same port, with the same state folder."""

    folder: Path
    seconds: float = 0.2
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [sys.executable, "-m", "tests.service.fake_service", str(self.port), str(self.seconds)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        with (self.folder / "service.log").open("a") as log:
            self.process = subprocess.Popen(
                words, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        with self.process.stdout as out:
            ready = out.readline()
        assert ready.startswith("ready"), (self.folder / "service.log").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def submit(self, *names: str, **changes: Any) -> None:
        file = self.folder / "job.yaml"
        file.write_text(job_text(*names, **changes))
        with Client() as coach:
            coach.submit([file])

    def address(self, route: str = "") -> str:
        """The page's address with a new login."""
        with Client() as coach:
            return f"{self.url}/ui/#login={coach.login_codes().code}{route}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    (tmp_path / "model.py").write_text("def net(): ...\n")
    return tmp_path


@pytest.fixture
def service(folder: Path) -> Iterator[Serving]:
    serving = Serving(folder)
    serving.start()
    try:
        yield serving
    finally:
        serving.kill()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        missing("needs Chromium (Debian, Ubuntu: apt install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("needs Playwright: make setup")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


def expect(shown: Any) -> Any:
    """Playwright's assertions about what is shown, which wait until they hold: the page asks every half second."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=PATIENCE)
    return expected(shown)


@contextlib.contextmanager
def context(browser: Any, complaint: str = "", **more: Any) -> Iterator[Any]:
    """A browser of its own: cookies, storage. What it complains of, but for `complaint`, fails the test."""
    settings = {"locale": "en-GB", "timezone_id": "UTC", "viewport": {"width": 1280, "height": 800}} | more
    made = browser.new_context(**settings)
    made.set_default_timeout(PATIENCE)
    complaints: list[str] = []

    def hear(message: Any) -> None:
        # A service that is away, or refuses, is part of some tests: the browser complains of it by itself.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    made.on("console", hear)
    made.on("weberror", lambda error: complaints.append(str(error.error)))
    try:
        yield made
        assert [one for one in complaints if not complaint or complaint not in one] == []
    finally:
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with context(browser) as made:
        yield made.new_page()
