"""Finding the processes of a running cluster, and seeing that none is left, through /proc alone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def children(pid: int) -> list[int]:
    """Its children, oldest first."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in (Path("/proc") / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """All that come from it."""
    found = children(pid)
    for child in found:
        found += children(child)  # the list grows while it is walked
    return found


def parent(pid: int) -> int:
    """The process that it is a child of; 0 where it has gone."""
    with contextlib.suppress(OSError):
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def command(pid: int) -> str:
    """Its command line."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def variable(pid: int, name: str) -> str:
    """One variable of its environment; "" where it has none."""
    with contextlib.suppress(OSError):
        for entry in (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0"):
            key, _, value = entry.decode(errors="replace").partition("=")
            if key == name:
                return value
    return ""


def alive(pid: int) -> bool:
    """Whether it runs, or is stopped; a zombie does not count."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def marked(variable_name: str, value: str) -> list[str]:
    """`pid command` of every other process whose environment has this variable with this value."""
    found = []
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdigit() else 0
        if pid not in (0, os.getpid()) and variable(pid, variable_name) == value and alive(pid):
            found.append(f"{pid} {command(pid)}")
    return found


def writing(name: str) -> list[int]:
    """The processes that have a file of this name open."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and any(one.readlink().name == name for one in (entry / "fd").iterdir()):
                found.append(int(entry.name))
    return found


def listening(addresses: Iterable[str]) -> list[str]:
    """host:port of TCP sockets that still listen on these addresses."""
    wanted = {_hex(address): address for address in addresses}
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        host, port = local.split(":")
        if state == "0A" and host in wanted:
            found.append(f"{wanted[host]}:{int(port, 16)}")
    return found


def _hex(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def gone(what: Callable[[], list[str]], seconds: float) -> list[str]:
    """What is still there after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := what()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
