"""One framework's functions on this machine, and the process that all of them are forked from."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
        await self._keep_template()
        try:
            return await self._fork(name, order)
        except OSError:  # the template has ended just now, or is ended because it was paused
            await self._template_ended()
            await self._keep_template()
        try:
            return await self._fork(name, order)
        except OSError as error:
            raise TemporaryError(f"there is no process to fork it from ({error})") from error

    async def _fork(self, name: str, order: Mapping[str, Any]) -> FunctionProcess:
        """Raises OSError when the template has ended."""
        function = FunctionProcess(name, self._socket, order)
        try:
            await function.wait_forked(FORK_SECONDS)
        except BaseException as error:
            function.kill()
            if isinstance(error, TimeoutError):
                os.kill(function.template_pid, signal.SIGKILL)
            raise
        return function

    async def _template_ended(self) -> None:
        """Until its keeper has seen the end of it."""
        until = time.monotonic() + FORK_SECONDS
        while self.template and not self.template.ended and time.monotonic() < until:
            await asyncio.sleep(0.02)

    async def _keep_template(self) -> None:
        """Start the template again where it has died. Raises PermanentError."""
        async with self._lock:
            if self.template and self.template.ended:
                self._died.append(self.template)
                self.template = None
            if self.template is None:
                self.template = await self._functions.start_template(self._socket)
