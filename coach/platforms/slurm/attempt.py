"""One Slurm job: its folder on the shared file system, what it is asked there, and what its workers write."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import shlex
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from coach.core.cluster import PodId, Resources, Role
from coach.core.errors import CoachError
from coach.platforms.local.programs import PEERS_GRACE
from coach.platforms.local.supervisor import Ended
from coach.platforms.logged_programs import LoggedRun, LoggedWorker, Printed
from coach.platforms.slurm import queue
from coach.platforms.slurm import rank as inside

#: Seconds between two looks at what the workers have written ...
LOOK_SECONDS = 0.5
#: ... and between two at the queue, at least; so long, too, may a file be seen late. COACH_SLURM_INTERVAL sets others.
INTERVAL = 15.0
#: Seconds after which a worker of which nothing is seen counts as lost. COACH_SLURM_SILENCE sets others.
SILENCE = 120.0
#: Seconds before the end of what is paid by which all tasks have ended: files are seen a little late.
MARGIN = 3.0
#: Seconds that the clocks of a node and of Slurm's controller may differ, with what Slurm rounds off.
CLOCKS = 2.0
#: Bytes that are read at once.
CHUNK = 1 << 20
#: What Slurm writes into a job's output when it has ended a process for its memory.
_OUT_OF_MEMORY = re.compile(r"oom[-_ ]kill|exceeded( job| step)? memory limit", re.IGNORECASE)
#: What Slurm's states mean for a worker that was ended.
_WORDS = {
    "TIMEOUT": "Slurm ended it at its time limit",
    "PREEMPTED": "Slurm gave its nodes to another job (PREEMPTED)",
    "NODE_FAIL": "a node of it failed (NODE_FAIL)",
    "REQUEUED": "Slurm queued it again",
    "FORGOTTEN": "Slurm has forgotten it",
    "SILENT": "nothing is seen of it any more",
}


def _set(name: str, otherwise: float, least: float) -> float:
    with contextlib.suppress(ValueError):
        return max(least, float(os.environ.get(name, "")))
    return otherwise


def interval() -> float:
    """Seconds between two looks at the queue."""
    return _set("COACH_SLURM_INTERVAL", INTERVAL, 0.1)


def silence() -> float:
    """Seconds after which a worker counts as lost: it writes every 5 s, and a shared file system shows that later."""
    return _set("COACH_SLURM_SILENCE", SILENCE, 10.0)


class Attempt:
    """One Slurm job of a program, from before it is submitted. `token` is its name for Coach, whatever its id."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.token = folder, folder.name
        order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
        self.job: str = order["own"]["COACH_JOB"]
        self.pods = [PodId(self.job, Role.WORKER, number) for number in range(order["workers"])]
        #: What it was asked for: another handler takes a queued job only for the same.
        self.asked: list[str] = order["asked"]
        self.wall: float = order["wall"]
        self.grace: float = order["grace"]
        #: Whether more workers may follow; when Slurm was asked how long one more would wait, and what it said last.
        self.grows: bool = order.get("grows", False)
        self.asked_at, self.wait = -math.inf, -math.inf
        #: Whether its program waits until a smaller job has ended; the nodes and what its workers hold there.
        self.hold: bool = order.get("ahead", False) and not self.followed
        self.held: dict[int, tuple[str, Resources]] = {}
        #: Seconds without a sign of life after which a worker counts as lost: for ever, where it gives none.
        self.silence: float = order.get("silence", math.inf)
        #: Whether one counts as lost, and until when the others may run, by `time.monotonic`.
        self.silent, self.paid = False, math.inf
        self.id = ""
        #: When it was no longer needed, on the event loop's clock.
        self.unwanted = float("inf")
        #: As Slurm says it last, and the reason for it; the former is one of `queue.ENDED`, or FORGOTTEN, at the end.
        self.entry: queue.Entry | None = None
        self.over = ""
        #: For how long it may wait without a handler; 0 for one that was followed before: it has its deadline.
        self.waits = 0.0
        #: Looks at Slurm's queue in which it was not, in a row, and in which it waited.
        self.missed = self.waited = 0
        self.looked = asyncio.Event()
        self._wanted: dict[str, Any] = {}

    @classmethod
    def make(cls, folder: Path, order: dict[str, Any]) -> Attempt:
        """Make its folder. Raises OSError."""
        folder.mkdir(0o700, parents=True)
        shutil.copyfile(inside.__file__, folder / "rank.py")
        (folder / "batch.sh").write_text(f"#!/bin/sh\nexec python3 {shlex.quote(str(folder / 'rank.py'))} batch\n")
        for number in range(order["workers"]):
            (folder / f"rank-{number}.log").touch()  # the handler finds what is written in a file that it knows
        (folder / "order.json").write_text(json.dumps(order), encoding="utf-8")
        (folder / "order.json").chmod(0o600)
        return cls(folder)

    @property
    def time(self) -> str:
        """How long it may take, as `sbatch` gets it."""
        return f"--time={math.floor(self.wall / 60)}"

    def tell(self, **wanted: Any) -> None:
        """Write what its workers are to do: `seconds` from now on until they end, or `end`: now, in so many seconds."""
        if "end" in self._wanted and ("end" not in wanted or wanted["end"] > self._wanted["end"]):
            return
        self._wanted = wanted = {**wanted, "hold": True} if self.hold else wanted
        if "seconds" in wanted:
            self.paid = time.monotonic() + wanted["seconds"] + self.grace + MARGIN
        new = self.folder / "control.new"
        with contextlib.suppress(OSError):  # a full disk: what is not renewed ends
            new.write_text(json.dumps(wanted), encoding="utf-8")
            new.replace(self.folder / "control")

    def began(self, rank: int) -> tuple[int, str] | None:
        """When a worker started, nanoseconds since 1970 on its node's clock, and on which node; None before."""
        with contextlib.suppress(OSError, ValueError):
            with (self.folder / f"rank-{rank}.log").open("rb") as file:
                line = file.readline()
            if line.endswith(b"\n"):
                at, kind, node = line.decode(errors="replace").split(" ", 2)
                return (int(at), node.strip()) if kind == "began" else None
        return None

    async def give_up(self) -> None:
        """End it in Slurm. Returns when that is done, or when the lease of a worker has ended that runs unseen."""
        self.silent = True
        self.tell(end=PEERS_GRACE, cause="asked")
        while not self.over and time.monotonic() < self.paid:
            with contextlib.suppress(CoachError):
                await queue.cancel_own(self.id, self.token)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.looked.wait(), interval())

    def seen(self, entry: queue.Entry | None) -> None:
        """What one look at the queue says of it. One look without it shows nothing; two do."""
        self.missed = 0 if entry else self.missed + 1
        self.entry = entry or self.entry
        if entry is not None:
            self.id = entry.id
            self.waited += entry.state == "PENDING"
            self.over = entry.state if entry.state in queue.ENDED else ""
        elif self.missed >= 2 and (self.id or self.unwanted < float("inf")):
            self.over = self.over or "FORGOTTEN"
        self.looked.set()
        self.looked = asyncio.Event()

    def how(self) -> str:
        """How it ended in Slurm: `over`, but CANCELLED where a person did it.

        A job that may not be queued again is cancelled by Slurm itself where a node cannot start it, as one that an
        earlier job of the same id has not left: then it has nodes, and no worker began, or one began before it started.
        Ids and starts that a killed controller had not saved come again.
        """
        if self.over != "CANCELLED" or self.entry is None or not self.entry.nodes:
            return self.over
        began = [found[0] / 1e9 for pod in self.pods if (found := self.began(pod.index))]
        if not began:
            return "LAUNCH_FAILED"
        with contextlib.suppress(ValueError):
            if datetime.fromisoformat(self.entry.start).timestamp() > min(began) + CLOCKS:
                return "REQUEUED"
        return self.over

    def printed(self) -> str:
        """What Slurm and the batch script have printed last."""
        with contextlib.suppress(OSError):
            return " ".join((self.folder / "slurm.out").read_text(errors="replace").split())[-1000:]
        return ""

    @property
    def finished(self) -> bool:
        """Whether all its workers have written how they ended."""
        return all(self._last(pod.index) for pod in self.pods)

    @property
    def followed(self) -> bool:
        """Whether a handler has followed its workers, which all run or ran."""
        return (self.folder / "followed").exists()

    def _last(self, rank: int) -> bool:
        with contextlib.suppress(OSError), (self.folder / f"rank-{rank}.log").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().splitlines()
            return bool(lines) and lines[-1].split(b" ", 2)[1:2] == [b"ended"]
        return False


class RankWorker(LoggedWorker):
    """One worker's task, followed by its log."""

    def __init__(self, attempt: Attempt, pod: PodId, memory: float, log: Path, files: str) -> None:
        super().__init__(pod, memory, log, files)
        self.attempt = attempt

    def began(self) -> int:
        """When it started, on its node's clock."""
        found = self.attempt.began(self.pod.index)
        return found[0] if found else 0

    async def follow(self, run: LoggedRun, *, metrics: bool) -> None:
        """Follow it to its end; `metrics`: what it reports counts."""
        self._mark = run.mark
        with contextlib.suppress(OSError):
            (self.attempt.folder / "followed").touch()
        await super().follow(run, metrics=metrics)

    def end(self, grace: float, cause: str = "asked") -> None:
        """SIGTERM now, SIGKILL after `grace` seconds, for all workers of the job."""
        super().end(grace, cause)
        self.attempt.tell(end=grace, cause=cause)

    async def _follow(self, printed: Printed) -> Ended:
        try:
            ended = await self._read(printed)
            await printed.finish()
            return await self._how(ended, printed.last)
        finally:
            await printed.close()

    async def _read(self, printed: Printed) -> dict[str, Any] | None:
        """Read its log to the end; how it says that it ended, None where nothing comes of it any more."""
        at, late = 0, float("inf")
        changed, silent = 0, 0.0
        while True:
            before = changed
            lines, size, changed = await asyncio.to_thread(self._more, at)
            at += size
            for line in lines:
                time_of, _, rest = line.decode(errors="replace").partition(" ")
                kind, _, text = rest.partition(" ")
                if not time_of.isdigit() or kind == "began":
                    continue
                if kind == "ended":
                    with contextlib.suppress(ValueError):
                        found: dict[str, Any] = json.loads(text)
                        return found
                elif int(time_of) <= self._mark:
                    continue
                elif kind == "line":
                    await printed.take(int(time_of), text)
                elif kind in ("status", "report") and printed.reader is not None:
                    with contextlib.suppress(ValueError):
                        printed.reader.record(int(time_of), kind, json.loads(text))
            if size:
                continue
            entry = self.attempt.entry
            quiet = changed == before and (entry is None or entry.state not in queue.HALTED)
            silent = silent + LOOK_SECONDS if quiet else 0.0  # looks, not time: this process may have been stopped, too
            if silent >= self.attempt.silence and not self.attempt.over:
                await self.attempt.give_up()
                return None
            if self._lost or time.monotonic() > late:
                return None
            if self.attempt.over and late == float("inf"):
                late = time.monotonic() + interval()
            await asyncio.sleep(LOOK_SECONDS)

    def _more(self, at: int) -> tuple[list[bytes], int, int]:
        """Whole lines that follow in its log, their bytes, and when it changed; opened anew, it shows them soonest."""
        with contextlib.suppress(OSError), (self.attempt.folder / f"rank-{self.pod.index}.log").open("rb") as file:
            file.seek(at)
            data = file.read(CHUNK)
            whole = data.rfind(b"\n") + 1
            return data[:whole].splitlines(), whole, os.fstat(file.fileno()).st_mtime_ns
        return [], 0, 0

    async def _how(self, said: dict[str, Any] | None, last: str) -> Ended:
        """How it ended, by what it says; where that is not enough, by what Slurm says of its job."""
        code, cause = (137, "lost") if said is None else (int(said["code"]), str(said["cause"]))
        seconds = 0.0 if said is None else float(said["seconds"])
        if self._cause or cause in ("asked", "deadline"):
            return Ended(code, self._cause or cause, last, seconds)
        if cause == "cannot start":
            return Ended(code, cause, said["words"] if said else "", seconds)
        if cause == "wall":
            self.disrupted = True
            return Ended(code or 143, "lost", "its Slurm job came to its time limit", seconds)
        if cause in ("slurm", "lost") or code == 137:  # another ended it; who, Slurm knows, a little later
            if cause == "":  # and only when the other workers have ended, too
                self.attempt.tell(end=PEERS_GRACE, cause="asked")
            while not self.attempt.over and not self.attempt.silent:
                await self.attempt.looked.wait()
                if self.attempt.entry is not None and self.attempt.entry.state in ("PENDING", "REQUEUED"):
                    self.attempt.over = "REQUEUED"  # it would begin again under the same id
            state = "SILENT" if self.attempt.silent else await asyncio.to_thread(self.attempt.how)
            if state == "OUT_OF_MEMORY" or _OUT_OF_MEMORY.search(self.attempt.printed()):
                return Ended(code, "memory", "", seconds, self._memory)
            if state == "CANCELLED":
                return Ended(code, "cancelled", f"Slurm job {self.attempt.id}, by scancel", seconds)
            if cause != "":
                self.disrupted = state in (*queue.TAKEN_AWAY, "REQUEUED", "FORGOTTEN", "SILENT")
                words = _WORDS.get(state, f"Slurm ended it ({state})")
                return Ended(code or 143, "lost", f"{words}, job {self.attempt.id}", seconds)
        return Ended(code, "", last, seconds)
