"""One framework's functions on this machine: the process that all are forked from, and hosts that wait for pods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from coach.core.errors import PermanentError
from coach.platforms.local.cluster import free_memory
from coach.platforms.local.environment import Functions, Template
from coach.platforms.local.host.command import HostProcess
from coach.platforms.local.host.launch import launch
from coach.platforms.local.host.warm_pool import Spares

#: GiB that must be free for each spare; it takes a tenth of that.
SPARE_MEMORY = 0.5


class Runtime:
    """The template process of `functions`, and up to `spares` hosts for pods to come, of whichever node.

    `folder` is for its sockets and the hosts' files.
    """

    def __init__(self, functions: Functions, folder: Path, spares: int) -> None:
        self._functions = functions
        self._folder = folder
        self._env = functions.env | {"COACH_ZYGOTE_TEMPLATE": str(self._socket)}
        self.spares = Spares(
            min(spares, int(free_memory() / SPARE_MEMORY)), functions.python, self._env, folder
        )
        self.filling: asyncio.Task[None] | None = None
        self.template: Template | None = None
        self._died: list[Template] = []  #: functions that were forked from them may run still
        self._lock = asyncio.Lock()

    @property
    def _socket(self) -> Path:
        return self._folder / f"{self._functions.framework.value}.sock"

    async def open(self) -> None:
        """Start the template and the spares. Raises PermanentError where the framework cannot be imported."""
        # A core is free for spares until the first group trains: while the framework is imported, and while a worker
        # loads.
        self.filling = asyncio.create_task(self.spares.fill())
        try:
            self.template = await self._functions.start_template(self._socket)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the template and the spares."""
        await self._end_filling()
        await self.spares.close()
        for template in (self.template, *self._died):
            if template:
                await template.close()

    async def _end_filling(self) -> None:
        filling, self.filling = self.filling, None
        if filling:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    def refill(self, at_most: int) -> None:
        """Start no more spares than `at_most` from now on."""
        if self.filling is not None:
            self.filling.cancel()
        self.filling = asyncio.create_task(self.spares.fill(at_most)) if at_most else None

    async def launch(
        self,
        role: str,
        name: str,
        address: str,
        *,
        log_path: Path,
        cpus: Sequence[int] | None,
        network: str | None,
    ) -> HostProcess:
        """Have a spare become the function's host, or start one."""
        await self._keep_template()
        functions = self._functions
        return await launch(
            functions.folder / role,
            name,
            address,
            python=functions.python,
            python_path=functions.python_path,
            env=self._env,
            log_path=log_path,
            run_dir=self._folder / name,
            cpus=cpus,
            network=network,
            spares=self.spares,
        )

    async def _keep_template(self) -> None:
        """Start the template again where it has died: without it every function would import by itself."""
        async with self._lock:
            if self.template and self.template.ended:
                self._died.append(self.template)
                self.template = None
                with contextlib.suppress(PermanentError):
                    self.template = await self._functions.start_template(self._socket)
