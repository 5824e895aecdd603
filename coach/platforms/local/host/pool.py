"""The workers of a function: which is free, who waits for one, and what happens when one is lost."""

import asyncio
import uuid
from collections import deque
from typing import Any

from coach.platforms.local.host.config import HostConfig
from coach.platforms.local.host.idle_wrapper import BareWrapper
from coach.platforms.local.host.logs import FunctionLog
from coach.platforms.local.host.process import Answer, WrapperDied, WrapperNotStarted, WrapperProcess


class NotReady(Exception):
    """The worker's process is being replaced; Nuclio's own words are the message."""

    def __init__(self) -> None:
        super().__init__("Processor not ready (current status: stopped)")


class Worker:
    """A slot: one process, replaced only after an event timed out."""

    def __init__(self, index: int) -> None:
        self.id = str(index)
        self.event_id = str(uuid.uuid4())  # Nuclio too gives all events of a worker one id
        self.process: WrapperProcess | None = None
        self.replacing = False
        self.busy = False


class Pool:
    """Hands out workers in the order of asking, one event each.

    `lost` is done, with the reason, when a process ended by itself or could not be started again: then the whole host
    must end, as Nuclio's processor does. `bare` is a wrapper that runs already, for the first worker.
    """

    def __init__(self, config: HostConfig, log: FunctionLog, bare: BareWrapper | None = None) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.workers = [Worker(index) for index in range(config.workers)]
        self._config, self._log, self._bare = config, log, bare
        self._opened = self._closed = False
        self._free: deque[Worker] = deque()
        self._waiting: deque[asyncio.Future[Worker | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> bool:
        """Whether every worker has a process that runs. Like Nuclio's, it stays true while the host stops."""
        return self._opened and not any(worker.replacing for worker in self.workers)

    def spawn(self) -> None:
        """Start all processes side by side. Raises OSError when the functions' Python cannot be run."""
        for worker in self.workers:
            self._spawn(worker)

    async def open(self) -> None:
        """Wait for every init_context, then take events. Raises WrapperNotStarted."""
        await asyncio.gather(*(worker.process.ready() for worker in self.workers if worker.process))
        self._free.extend(self.workers)
        self._opened = True

    async def close(self, timeout: float) -> None:
        """Refuse new and waiting events, let termination callbacks run, end all processes within `timeout` seconds."""
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        await asyncio.gather(
            *(worker.process.terminate(timeout) for worker in self.workers if worker.process)
        )

    def kill(self) -> None:
        """End all processes now."""
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill_group()

    async def take(self) -> Worker | None:
        """A free worker, waiting as long as the function allows; None when there is none, or the host stops."""
        if self._closed:
            return None
        if self._free:
            return self._free.popleft()
        if self._config.availability_timeout <= 0:
            return None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Worker | None] = loop.create_future()
        self._waiting.append(waiter)
        timer = loop.call_later(self._config.availability_timeout, _give_up, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            if waiter.cancelled():
                self._waiting.remove(waiter)

    async def call(self, worker: Worker, head: dict[str, Any], body: bytes) -> Answer:
        """One event on a taken worker, which is free again afterwards.

        Raises NotReady, TimeoutError (the process is then replaced) or WrapperDied (answer, then call `lose`).
        """
        try:
            if worker.replacing or worker.process is None:
                raise NotReady
            worker.busy = True
            answer = await worker.process.call({**head, "id": worker.event_id}, body)
        except WrapperDied:
            raise  # the worker is not released: it has no process
        except TimeoutError:
            self._replace(worker)
            self._release(worker)
            raise
        except BaseException:
            self._release(worker)
            raise
        self._release(worker)
        return answer

    def lose(self, reason: str) -> None:
        """Declare the function lost."""
        if not self.lost.done():
            self.lost.set_result(reason)

    def _release(self, worker: Worker) -> None:
        worker.busy = False
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._free.append(worker)

    def _replace(self, worker: Worker) -> None:
        worker.replacing = True
        task = asyncio.get_running_loop().create_task(self._restart(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _restart(self, worker: Worker) -> None:
        try:
            if worker.process is not None:
                await worker.process.kill()
            if not self._closed:
                await self._spawn(worker).ready()
        except (WrapperNotStarted, OSError) as error:
            self.lose(str(error))
        worker.replacing = False

    def _spawn(self, worker: Worker) -> WrapperProcess:
        bare, self._bare = self._bare, None
        process = worker.process = WrapperProcess(self._config, worker.id, self._log, bare)
        process.ended.add_done_callback(lambda ended: self._on_end(worker, ended))
        return process

    def _on_end(self, worker: Worker, ended: asyncio.Future[str]) -> None:
        if not ended.cancelled() and not self._closed and not worker.busy:
            self.lose(f"the wrapper of worker {worker.id} ended by itself ({ended.result()})")


def _give_up(waiter: "asyncio.Future[Worker | None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
