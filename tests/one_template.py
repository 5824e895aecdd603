"""One process of MXNet for many tests: the functions of each are forked from it, and nobody imports MXNet again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coach.platforms.local.environment import Functions, Template


@dataclass(frozen=True)
class Borrowed:
    """Another's template, as a platform has one of its own: `socket` leads to it."""

    socket: Path
    ended: bool = False

    async def close(self) -> None:
        self.socket.unlink()


@pytest.fixture(scope="session")
def lasting_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Functions, Path]]:
    """A template that ends with the tests: of which functions, and its socket."""
    loop = asyncio.new_event_loop()
    functions, path = Functions.find(), tmp_path_factory.mktemp("template") / "mxnet.sock"
    template = loop.run_until_complete(functions.start_template(path))
    yield functions, path
    loop.run_until_complete(template.close())
    loop.close()


@pytest.fixture
def one_template(lasting_template: tuple[Functions, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Platforms of this process start no MXNet of their own."""
    start, (lasting, path) = Functions.start_template, lasting_template

    async def borrow(functions: Functions, socket: Path) -> Template | Borrowed:
        if functions != lasting:
            return await start(functions, socket)
        socket.symlink_to(path)
        return Borrowed(socket)

    monkeypatch.setattr(Functions, "start_template", borrow)
