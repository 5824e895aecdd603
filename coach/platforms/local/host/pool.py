"""The free workers of a function and the calls that wait for one."""

import asyncio
from collections import deque

from coach.platforms.local.host.worker import Worker, WrapperNotStarted


class Pool:
    """Hands out workers in the order of waiting, one event each.

    `serving` says whether new events are taken; `failed` is done when a worker cannot be had back, with the reason.
    """

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self.serving = False
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._free: deque[Worker] = deque()
        self._waiting: deque[asyncio.Future[Worker]] = deque()
        self._restarts: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """All workers are ready: serve."""
        self._free.extend(self.workers)
        self.serving = True

    def close(self) -> None:
        """Take no new events; those that wait are refused."""
        self.serving = False
        for waiter in self._waiting:
            waiter.cancel()

    async def take(self, timeout: float) -> Worker | None:
        """A free worker, waiting up to `timeout` seconds; None when there is none."""
        if not self.serving:
            return None
        if self._free:
            return self._free.popleft()
        if timeout <= 0:
            return None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Worker] = loop.create_future()
        self._waiting.append(waiter)
        timer = loop.call_later(timeout, waiter.cancel)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_back(waiter.result())
            return None
        finally:
            timer.cancel()

    def give_back(self, worker: Worker) -> None:
        """A worker has answered: the call that waited longest gets it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._free.append(worker)

    def replace(self, worker: Worker) -> None:
        """A worker's event timed out: give it a new process, then use it again."""
        task = asyncio.get_running_loop().create_task(self._restart(worker))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _restart(self, worker: Worker) -> None:
        try:
            await worker.restart()
        except WrapperNotStarted as error:
            if not self.failed.done():
                self.failed.set_result(str(error))
            return
        self.give_back(worker)
