"""The few calls of Linux and its C library that a group's processes need: to end with each other, and for memory."""

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import time
from collections.abc import Set
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_F_SETSIG = 10  # Linux; Python names it since 3.12
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt
_MOST = 2**31 - 1  # that an int holds
_LARGEST_KEPT = 32 << 20  # glibc's own maximum
_CLONE_NEWNET = 0x40000000  # Linux; Python names it since 3.12, and has setns since then
#: Seconds that processes may take to be gone after SIGKILL.
END_SECONDS = 5.0
_THREADS_CPU_CLOCK = 6  # Linux: the low bits of a clock's id, above them the complement of the thread's
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends; at once if it already did."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def die_with_pipe(reader: int) -> None:
    """Have the kernel kill this process when the last writer of a pipe is gone, whatever runs here at that moment.

    Unlike PR_SET_PDEATHSIG it does not care who forked this process, nor which thread did.
    """
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reader, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([reader], [], [], 0)[0]:  # it was gone before the prctl call
        os._exit(1)


def join_network(path: str) -> None:
    """Enter a network namespace, unless this process is in it. Raises OSError where it may not, or there is none."""
    if Path(path).stat().st_ino == Path("/proc/self/ns/net").stat().st_ino:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(descriptor)


def kill(pid: int) -> None:
    """SIGKILL to a process and to the group it leads. For processes that were not waited for yet."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of each descendant whose parent ends, in place of process 1."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int, without: Set[int] = frozenset()) -> dict[int, str]:
    """The command name of each process below `root`, by its id; not those of `without`, nor what is below them.

    Processes that have ended, and were not waited for, are none.
    """
    processes = _processes()
    found, left = {}, {root}
    while left:
        left = {pid for pid, (parent, _, _) in processes.items() if parent in left} - without
        found |= {pid: processes[pid][2] for pid in left if processes[pid][1]}
    return found


def end_descendants(root: int, without: Set[int]) -> dict[int, str]:
    """SIGKILL to all that `descendants` finds, until it finds none; what was found. `root` is this process.

    All are stopped first, so that none starts another one meanwhile. One that may not be killed is left after
    END_SECONDS.
    """
    found: dict[int, str] = {}
    if not _children(root) - without:
        return found
    until = time.monotonic() + END_SECONDS
    while (running := descendants(root, without)) and time.monotonic() < until:
        number = signal.SIGSTOP if running.keys() - found.keys() else signal.SIGKILL
        found |= running
        for pid in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if number == signal.SIGKILL:
            time.sleep(0.001)
        bury(root, without)
    bury(root, without)
    return found


def bury(parent: int, without: Set[int]) -> None:
    """Wait for children of this process that have ended, other than those of `without`."""
    for pid in _children(parent) - without:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def _children(pid: int) -> set[int]:
    """The children of a process, also those that have ended. Without the kernel's lists, from all processes."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text().split()))
        except FileNotFoundError:
            if task.exists():
                return {each for each, (parent, _, _) in _processes().items() if parent == pid}
    return found


def _processes() -> dict[int, tuple[int, bool, str]]:
    """Parent, whether it runs, and command name of each process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                found[int(entry.name)] = int(fields[1]), _runs(fields), name
    return found


def _runs(fields: list[str]) -> bool:
    """Whether a process runs, by its `stat` from the state on.

    One whose first thread has ended is a zombie while others go on, and has its files and sockets until they end.
    """
    state, threads = fields[0], int(fields[17])
    return state not in "ZX" or threads > 1


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and was not waited for is none."""
    with contextlib.suppress(OSError):
        return _runs(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split())
    return False


def limit_memory(gib: float) -> None:
    """Let this process map `gib` GiB of private writable memory beyond what it has mapped already."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    mapped = int(status["VmData"].split()[0]) * 1024
    limit = mapped + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def keep_freed_memory() -> None:
    """Have the C library keep for this process what it frees, up to 32 MiB a piece, until the process ends.

    It would give the memory of gradients and messages back to the kernel after every step, and the kernel clear each
    page of it for the next one. A C library without glibc's mallopt is left alone.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        _libc.mallopt(_M_TRIM_THRESHOLD, _MOST)


def cpu_seconds() -> float:
    """Processor time of this process, user and system, all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def threads_cpu_seconds() -> dict[int, float]:
    """Processor time of each thread of this process, by its kernel id."""
    found = {}
    for thread in (int(task.name) for task in Path("/proc/self/task").iterdir()):
        with contextlib.suppress(OSError):  # it ended
            found[thread] = time.clock_gettime(~thread << 3 | _THREADS_CPU_CLOCK)
    return found


def busiest_thread_seconds(since: dict[int, float]) -> float:
    """What the thread that worked most has computed since threads_cpu_seconds() was `since`."""
    return max(now - since.get(thread, 0.0) for thread, now in threads_cpu_seconds().items())


def max_rss_gib() -> float:
    """The most memory this process ever had resident, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def threads() -> int:
    """Threads of this process, Python's and others."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def cgroup_oom_kills() -> int | None:
    """How often the kernel killed for memory in this container (cgroup v2); None where that is not reported."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path("/sys/fs/cgroup/memory.events").read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])
    return None
