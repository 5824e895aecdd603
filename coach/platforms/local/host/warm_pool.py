"""Hosts that were started before they are needed: Python runs and has imported, only the function is missing.

Starting a host takes some 0.2 s of computing, most of it imports; a spare takes on a function in a tenth of that. It
knows nothing of any job, so it serves whichever comes. Like every host it ends with the process that started it.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from coach.platforms.local.host.command import Command, HostProcess, base_environment

_READ_AT_START = ("PYTHON", "NUCLIO_PYTHON_EXE_PATH", "LANG", "LC_", "LD_", "GLIBC_", "MALLOC_")
"""What Python and the C library read when they start, and never again."""


class Spares:
    """Up to `wanted` hosts with the environment `env` on top of this process's own; their output goes to `folder`."""

    def __init__(self, wanted: int, python: Path, env: Mapping[str, str], folder: Path) -> None:
        self._wanted = wanted
        self._env = {**base_environment(python), **env}
        self._folder = folder
        self._waiting: list[HostProcess] = []
        self._spoilt: list[HostProcess] = []

    def __len__(self) -> int:
        self._waiting = [host for host in self._waiting if host.returncode is None]
        return len(self._waiting)

    async def fill(self, at_most: int | None = None) -> None:
        """Start what is missing, but `at_most` so many, one after the other: others need the cores too."""
        left = self._wanted if at_most is None else at_most
        while left > 0 and len(self) < self._wanted:
            left -= 1
            spare = Command(["--spare"], self._env, self._folder, self._folder / "spare.log").start()
            self._waiting.append(spare)
            await spare.wait_spare()

    def take(self, name: str, address: str, command: Command) -> HostProcess | None:
        """The host that `command` would start, made of a spare; None when there is none that can become it."""
        if _at_start(command.env) != _at_start(self._env):
            return None
        while len(self):
            host = self._waiting.pop(0)
            if host.become(name, address, command):
                return host
            host.kill()
            self._spoilt.append(host)
        return None

    async def close(self) -> None:
        """End them all."""
        ending, self._waiting, self._spoilt, self._wanted = [*self._waiting, *self._spoilt], [], [], 0
        for host in ending:
            host.kill()
        await asyncio.gather(*(host.wait() for host in ending))


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(_READ_AT_START)}
