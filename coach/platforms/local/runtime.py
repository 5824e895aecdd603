"""One framework's functions on this machine, and the process that all of them are forked from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from coach.core.errors import TemporaryError
from coach.platforms.local.environment import Functions, Template
from coach.platforms.local.function_process import FunctionProcess

#: Seconds that a template may take to fork: it does nothing else. One that takes longer was paused from outside.
FORK_SECONDS = 10.0


class Runtime:
    """The template process of `functions`; `folder` is for its socket."""

    def __init__(self, functions: Functions, folder: Path) -> None:
        self._functions = functions
        self._socket = folder / f"{functions.framework.value}.sock"
        self.template: Template | None = None
        self._died: list[Template] = []  #: functions that were forked from them may run still
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Start the template. Raises PermanentError where the framework cannot be imported."""
        self.template = await self._functions.start_template(self._socket)

    async def close(self) -> None:
        """End the template, and all functions."""
        for template in (self.template, *self._died):
            if template:
                await template.close()

    async def launch(
        self,
        role: str,
        name: str,
        address: str,
        *,
        log_path: Path,
        cpus: Sequence[int] | None,
        network: str | None,
    ) -> FunctionProcess:
        """Have a function forked; it may not be ready yet. Raises CoachError."""
        order = {
            "role": role,
            "address": address,
            "log": str(log_path.resolve()),
            "cpus": list(cpus) if cpus else None,
            "network": network,
        }
        for _ in range(2):
            await self._keep_template()
            with contextlib.suppress(OSError):  # it has ended just now, or is ended here
                function = FunctionProcess(name, self._socket, order)
                try:
                    await function.wait_forked(FORK_SECONDS)
                    return function
                except BaseException as error:
                    function.kill()
                    if not isinstance(error, TimeoutError):
                        raise
                    os.kill(function.template_pid, signal.SIGKILL)
        raise TemporaryError("no process to fork it from")

    async def _keep_template(self) -> None:
        """Start the template again where it has died. Raises PermanentError."""
        async with self._lock:
            if self.template and self.template.ended:
                self._died.append(self.template)
                self.template = None
            if self.template is None:
                self.template = await self._functions.start_template(self._socket)
