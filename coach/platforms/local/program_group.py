"""The group of a program that forms it anew in the same process: who is in it, and who waits to be.

Its workers call `coach_program.group_changed()` at the same points of their loops. There they wait for each other. When
all have come, and the new workers of the next group as well, all go on in that group; else they go on as they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

#: Seconds until the first worker of a new group listens at the others' MASTER_PORT; they come later, or then.
LISTEN_SECONDS = 1.0
#: By a worker's name, in the order of their ranks: the variables of its group.
Variables = Mapping[str, Mapping[str, str]]


class Group:
    """The workers in it by name, in the order of their ranks. `answer` answers a worker's call."""

    def __init__(self, members: Sequence[str], answer: Callable[[str, Mapping[str, object]], None]) -> None:
        self.members = list(members)
        #: Whether its program can form it anew: it has asked.
        self.asked = False
        #: Those that were to leave and need not end well.
        self.left = set[str]()
        #: Whether it was formed anew since this was last set to False.
        self.changed = False
        self._answer = answer
        self._next: Variables = {}
        self._waiting = set[str]()
        self._until = 0.0
        self._tasks = set[asyncio.Task[None]]()

    @property
    def coming(self) -> int:
        """Number of workers of the next group that are in none yet."""
        return len(self._next.keys() - set(self.members))

    def called(self, worker: str) -> None:
        """A worker calls, and waits for the answer."""
        self.asked = True
        self._waiting.add(worker)
        self._resolve()

    def forget(self, worker: str) -> None:
        """A worker starts that has the name of an earlier one."""
        self._waiting.discard(worker)
        self.left.discard(worker)

    def hold(self, seconds: float) -> None:
        """Let the calls wait for a decision, at most so many seconds."""
        self._until = asyncio.get_running_loop().time() + seconds

    def decide(self, variables: Variables | None = None) -> None:
        """The group is to have these workers; None: nothing new was decided."""
        self._until = 0.0
        if variables is not None:
            self._next = {} if list(variables) == self.members else variables
        self._resolve()

    def close(self) -> None:
        """No worker comes any more: those that wait for it leave."""
        for worker in self._waiting - set(self.members):
            self._answer(worker, {"leave": True})

    def _resolve(self) -> None:
        loop, members = asyncio.get_running_loop(), set(self.members)
        if not members <= self._waiting:
            return
        if (left := self._until - loop.time()) > 0.0:
            loop.call_later(left, self._resolve)
        elif self._next and self._next.keys() <= self._waiting:
            self._change(self._next)
        else:
            self._waiting -= members
            for worker in self.members:
                self._answer(worker, {})

    def _change(self, variables: Variables) -> None:
        leaving, first = set(self.members) - variables.keys(), next(iter(variables))
        self.left |= leaving
        self.members, self._next, self.changed = list(variables), {}, True
        self._waiting.clear()
        for worker in leaving:
            self._answer(worker, {"leave": True})
        self._answer(first, {"env": variables[first]})
        task = asyncio.create_task(self._admit({name: env for name, env in variables.items() if name != first}))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, others: Variables) -> None:
        """Answer the others when the first one listens: who connects to PyTorch's store too early sleeps a second."""
        late = time.monotonic() + LISTEN_SECONDS
        for worker, env in others.items():
            while time.monotonic() < late and not listens(int(env["MASTER_PORT"])):
                await asyncio.sleep(0.002)
            self._answer(worker, {"env": env})


def listens(port: int) -> bool:
    """Whether a process of this machine listens at a TCP port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    return True
    return False
