"""The process that one program runs under: `python -m coach.platforms.local.supervisor`, orders on its standard input.

It starts the program in a session of its own, keeps its deadline, its memory and its log, and collects the metrics that
it reports. Whatever the program has started ends with it, in whichever session or process group it is: the kernel gives
orphans to the supervisor (PR_SET_CHILD_SUBREAPER), which kills its descendants until none is left. It does so, too,
when its standard input ends, that is when the handler has died, however it died.

Orders are lines of JSON: the first is an `Order`; then `{"seconds": s}` sets the deadline anew, s seconds from now,
`{"end": g}` ends the program, with SIGTERM now and SIGKILL after g seconds, and `{"group": ...}` answers its call of
`group_changed`. Answers are lines of JSON on standard output: a `ProgramReport` with `"seconds": s`, s seconds after
the start, `{"works": true}` where its processes have computed, read or written since the last look, `{"call": true}`
for a call of `group_changed`, `{"signal": "SIGTERM", "grace": s}` when the program gets it, or SIGKILL, or a yes to
`should_stop()`, and at last an `Ended`.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coach.platforms.local import devices
from coach.platforms.local.function_log import FunctionLog
from coach.platforms.process_table import Work
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.collector import Collector, collect
from coach.platforms.program_metrics.status import Flags, GroupCalls, Offer, Sender

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Seconds between two looks at the program's memory and at its work.
LOOK_SECONDS = 1.0
#: Seconds in which what the program printed last is read after its end.
LAST_WORDS_SECONDS = 5.0
#: Seconds after which what is killed and has not ended waits for a device, as a disk that hangs.
END_SECONDS = 10.0
#: Seconds for the first look at the files in which metrics are, before the program starts.
FIRST_LOOK_SECONDS = 30.0
SLOW_FILES = (
    f"the files in which its metrics are could not be looked through in {FIRST_LOOK_SECONDS:g} s; "
    "name them by a path with fewer folders, as in csv:logs/metrics.csv"
)
#: A program that asks whether it is to end gets SIGTERM so many seconds before it is killed, or half its grace period.
LAST_WARNING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Order:
    """What to run. `seconds` until SIGKILL, `grace` seconds before which comes SIGTERM. `memory` is GiB for all of it.

    `log` is a file. `leases` are descriptors of the sockets by which its job has devices (`devices.Lease`).
    """

    name: str
    command: Sequence[str]
    directory: str
    env: Mapping[str, str]
    log: str
    wanted: Wanted
    seconds: float
    grace: float
    memory: float
    cpus: Sequence[int] | None = None
    job: str = ""
    leases: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program ended. `code` as the shell has it: 128 and the signal's number where a signal ended it.

    `cause`: by itself, `deadline`, `memory` or `asked`; `cannot start`, with what is wrong in `words`, else `words` are
    the last lines that it printed.
    """

    code: int
    cause: str
    words: str
    seconds: float = 0.0
    memory_gib: float = 0.0


def descendants(of: int) -> dict[int, str]:
    """The processes below one by /proc, with their names; the name of one that only waits to be reaped is empty."""
    parents, names = dict[int, int](), dict[int, str]()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            head, _, rest = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")
            fields, pid = rest.split(), int(entry.name)
            waits = fields[0] in "ZX" and int(fields[17]) <= 1  # the first thread may end alone
            parents[pid], names[pid] = int(fields[1]), "" if waits else head.partition("(")[2]
    found: dict[int, str] = {}
    for pid in parents:
        at, seen = pid, set[int]()
        while at in parents and at not in seen:
            seen.add(at)
            at = parents[at]
            if at == of or at in found:
                found[pid] = names[pid]
                break
    return found


class _Supervisor:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._began = time.monotonic()
        self._due = self._began + order.seconds
        self._cause = ""
        self._killed = False
        self._most_memory = 0.0
        self._work = Work(LOOK_SECONDS)
        self._input = b""
        self._flags = Flags.shared()
        self._leases = [devices.adopt(one) for one in order.leases]
        self._terminate = float("inf")  #: when a program that asks gets SIGTERM

    def run(self) -> Ended:
        order, offer = self._order, Offer(Path(self._order.log).with_suffix(".token"))
        log = FunctionLog(Path(order.log), order.name)
        reader, writer = os.pipe()
        words, said = os.pipe()
        over, self._over = os.pipe()
        answers, self._answers = os.pipe()
        looked, looks = os.pipe()
        self._collector = os.fork()
        if self._collector == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.close(writer)
            os.close(self._over)
            os.close(looked)
            collector = Collector(order.wanted, Path(order.directory), partial(log.write, "info"), self._heard)
            os.close(looks)
            calls = GroupCalls(answers, lambda: _say({"call": True}))
            collect(collector, (reader, over, said), offer, Sender(self._flags, collector.take, calls))
        for here in (reader, said, over, answers, looks):
            os.close(here)
        offer.listening.close()
        if cause := self._waits_for(looked):
            self._end_collector()
            offer.close()
            return Ended(137 if cause == "asked" else 127, cause, "" if cause == "asked" else SLOW_FILES)
        try:
            program = self._start(writer, offer.env(order.env))
        except OSError as error:
            self._end_collector()
            offer.close()
            what = error.strerror or str(error)
            return Ended(127, "cannot start", f"{error.filename}: {what}")
        os.close(writer)
        code = self._watch(program)
        seconds = time.monotonic() - self._began
        left = self._end_descendants()
        os.close(self._over)
        last = self._last_words(words)
        offer.close()
        if left:
            words_of = f"it left processes behind, which were ended: {', '.join(left)[:1000]}"
            FunctionLog(Path(self._order.log), self._order.name).write("warning", words_of)
        return Ended(code, self._cause, last, seconds, self._most_memory)

    def _waits_for(self, looked: int) -> str:
        """Wait until the collector has looked at what was there before the program, as this process cannot: that may
        take for ever. Why the program does not start; empty where it does.
        """
        until = min(self._due, time.monotonic() + FIRST_LOOK_SECONDS)
        with selectors.DefaultSelector() as selector:
            selector.register(looked, selectors.EVENT_READ)
            selector.register(0, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(left)}
                if looked in ready:
                    os.close(looked)
                    return ""
                if 0 in ready:
                    read = os.read(0, 1 << 16)
                    self._input += read
                    if not read or b'"end"' in self._input:
                        return "asked"
        return "cannot start"

    def _end_collector(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self._collector, signal.SIGKILL)

    def _heard(self, report: ProgramReport) -> None:
        seconds = time.monotonic() - self._began
        _say({**asdict(report), "seconds": seconds})

    def _start(self, output: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        order = self._order

        def prepare() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if order.cpus:
                os.sched_setaffinity(0, order.cpus)

        return subprocess.Popen(
            order.command,
            cwd=order.directory,
            env={**order.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - there are no threads here
        )

    def _watch(self, program: subprocess.Popen[bytes]) -> int:
        """Follow the program to its end; its exit code."""
        os.set_blocking(0, False)
        self._take_orders(program, b"")
        ended = os.pidfd_open(program.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            for lease in self._leases:
                selector.register(lease, selectors.EVENT_READ, lease)
            look = self._began
            while program.poll() is None:
                now = time.monotonic()
                if now >= look:
                    look = now + LOOK_SECONDS
                    self._look()
                self._keep_deadline(program, now)
                for key, _ in selector.select(max(0.0, min(look, self._next()) - now)):
                    if key.fd == 0:
                        self._obey(program)
                    elif key.data:
                        devices.answer(key.data, self._order.job)
        os.close(ended)
        return 128 - program.returncode if program.returncode < 0 else program.returncode

    def _next(self) -> float:
        """When the deadline asks for something next."""
        if self._killed:
            return float("inf")
        return min(self._due, self._terminate) if self._cause else self._due - self._order.grace

    def _keep_deadline(self, program: subprocess.Popen[bytes], now: float) -> None:
        if not self._killed and now >= self._due:
            self._cause = self._cause or "deadline"
            self._kill()
        elif not self._cause and now >= self._due - self._order.grace:
            self._cause = "deadline"
            self._ask_to_end(program)
        elif now >= self._terminate:
            self._terminate = float("inf")
            self._terminate_now(program)

    def _ask_to_end(self, program: subprocess.Popen[bytes]) -> None:
        """SIGTERM; a program that asks is answered first, and gets it later."""
        self._flags.stop = True
        if self._flags.asks:
            left = self._due - time.monotonic()
            self._terminate = self._due - min(LAST_WARNING_SECONDS, left / 2)
            _say({"signal": "should_stop()", "grace": max(0.0, left)}, whole=False)
        else:
            self._terminate_now(program)

    def _terminate_now(self, program: subprocess.Popen[bytes]) -> None:
        _say({"signal": "SIGTERM", "grace": max(0.0, self._due - time.monotonic())}, whole=False)
        program.terminate()

    def _obey(self, program: subprocess.Popen[bytes]) -> None:
        read = b""
        with contextlib.suppress(BlockingIOError):
            read = os.read(0, 1 << 16)
            if not read:  # the handler is gone
                self._cause = self._cause or "asked"
                self._kill()
                return
        self._take_orders(program, read)

    def _take_orders(self, program: subprocess.Popen[bytes], read: bytes) -> None:
        self._input += read
        *lines, self._input = self._input.split(b"\n")
        for line in map(json.loads, lines):
            if "end" in line:
                self._due = min(self._due, time.monotonic() + line["end"])
                if not self._cause:
                    self._cause = "asked"
                    self._ask_to_end(program)
            elif "group" in line:
                os.write(self._answers, json.dumps(line["group"]).encode() + b"\n")
            elif not self._cause:
                self._due = time.monotonic() + line["seconds"]

    def _look(self) -> None:
        below = self._below()
        if self._work.done(below):
            _say({"works": True}, whole=False)
        used = sum(map(_memory, below)) / 2**30
        self._most_memory = max(self._most_memory, used)
        if used > self._order.memory and not self._killed:
            self._cause = "memory"
            self._kill()

    def _below(self) -> dict[int, str]:
        return {pid: name for pid, name in descendants(os.getpid()).items() if pid != self._collector}

    def _kill(self) -> None:
        self._killed = True
        _say({"signal": "SIGKILL", "grace": 0.0}, whole=False)
        for pid in self._below():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _end_descendants(self) -> list[str]:
        """Kill what is left, until nothing is but what the kernel does not let end; the names of what was left."""
        names: list[str] = []
        until = time.monotonic() + END_SECONDS
        while (below := self._below()) and time.monotonic() < until:
            names = names or sorted(filter(None, below.values()))
            for pid in below:  # what is stopped starts no other
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGSTOP)
            for pid in below:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) and pid != self._collector:
                    pass
            time.sleep(0.005)
        return [] if self._killed else names

    def _last_words(self, words: int) -> str:
        """What the program printed last, once it is all in the log."""
        found, until = b"", time.monotonic() + LAST_WORDS_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(words, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0 and selector.select(left):
                if not (read := os.read(words, 1 << 16)):
                    break
                found += read
        self._end_collector()
        return found.decode(errors="replace")


def _memory(pid: int) -> int:
    """Bytes of memory that a process has, its share of what it shares with others included."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _say(what: Mapping[str, Any], *, whole: bool = True) -> None:
    """One line to the handler; with one that is gone there is nothing to say. Unless `whole`, nothing where it reads
    nothing, as it is stopped: the deadline is kept then too.
    """
    if not whole and not select.select([], [1], [], 0)[1]:
        return
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(what).encode() + b"\n")


def main() -> None:
    """Run one program."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    line = io.FileIO(0, closefd=False).readline()  # without a buffer: what follows is read later
    if not line.endswith(b"\n"):
        raise SystemExit(0)
    order = json.loads(line)
    ended = _Supervisor(Order(**order | {"wanted": Wanted.read(order["wanted"])})).run()
    _say(asdict(ended))


if __name__ == "__main__":
    main()
