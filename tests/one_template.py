"""One process of MXNet for many tests: the functions of each are forked from it, and nobody imports MXNet again.

A command that is forked from a test (`forked`) borrows it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach.platforms.local.environment import Functions
from coach.platforms.local.runtime import Runtime


@pytest.fixture(scope="session")
def lasting_template() -> Iterator[tuple[Functions, Path]]:
    """A template that ends with the tests: of which functions, and its socket."""
    loop = asyncio.new_event_loop()
    functions = Functions.find()
    runtime = Runtime(functions)
    loop.run_until_complete(runtime.open())
    yield functions, runtime._socket
    loop.run_until_complete(runtime.close())
    loop.close()


@pytest.fixture
def one_template(lasting_template: tuple[Functions, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Platforms of this process start no MXNet of their own."""
    borrow_template(lasting_template, monkeypatch)


def borrow_template(template: tuple[Functions, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """See `one_template`; for fixtures of a wider scope."""
    start, ended, (lasting, path) = Runtime.open, Runtime.ended, template

    async def borrow(runtime: Runtime) -> None:
        if runtime._functions == lasting:
            runtime._socket = path
        else:
            await start(runtime)

    monkeypatch.setattr(Runtime, "open", borrow)
    monkeypatch.setattr(Runtime, "ended", property(lambda of: of._socket != path and ended.__get__(of)))
