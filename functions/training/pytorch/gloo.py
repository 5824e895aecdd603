"""Process groups of torch.distributed's gloo, made directly: not as torch.distributed's global one.

It listens on the function's own address only, and the model file may use torch.distributed as it likes.
"""

import contextlib
import os
import socket
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.elastic.line import Values
from training.membership.messages import View

#: Seconds of one exchange. A member that is lost or hangs is known long before.
EXCHANGE_SECONDS = 1800


class KeyValueStore(dist.Store):
    """Where torch.distributed's members find each other: on the connections that they have anyway.

    `seconds`: how long to wait for a value; None: until the view is closed.
    """

    def __init__(self, values: Values, seconds: float | None = None) -> None:
        super().__init__()
        self._values = values
        self._seconds = seconds

    def set(self, key: str, value: bytes | str) -> None:
        """Share a value with all members."""
        self._values.set(key, value if isinstance(value, str) else value.decode("latin-1"))

    def get(self, key: str) -> bytes:
        """A value that a member shares; waits for it."""
        return self._values.get(key, self._seconds).encode("latin-1")

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until these have values."""
        for key in keys:
            self.get(key)


#: A sum under way, with the tensors of which the first becomes it.
Begun = tuple[Any, list[torch.Tensor]]


def begin(group: Any, tensor: torch.Tensor, size: int, *, in_rank_order: bool) -> Begun:
    """Start to add it up over all members. What `total` takes.

    A ring's order of summation depends on the place in the tensor; `in_rank_order` it is that of the ranks.
    """
    if not in_rank_order:
        return group.allreduce([tensor]), [tensor]
    parts = [torch.empty_like(tensor) for _ in range(size)]
    return group.allgather([parts], [tensor]), parts


def total(begun: Begun) -> torch.Tensor:
    """The sum, which may be the tensor itself."""
    work, parts = begun
    work.wait()
    for part in parts[1:]:
        parts[0] += part
    return parts[0]


@dataclass
class Connected:
    """One view's process group, with the inodes of its sockets, and the UUIDs of its members' GPUs."""

    group: Any
    values: Values
    sockets: set[str] = field(default_factory=set)
    gpus: tuple[str, ...] = ()
    #: The NcclGroup by which gradients on GPUs are added, where they are.
    nccl: Any = None
    closed: bool = False


class GlooTransport:
    """See training.elastic.line.Transport. Raises RuntimeError for what cannot be connected."""

    def __init__(self, host: str, scheduler: tuple[str, int]) -> None:
        self._host = host
        self._scheduler = scheduler
        #: Addresses of members, this one's too, and those from which they connect.
        self._hosts = {host}
        self._sources: set[str] = set()
        self._lock = threading.Lock()
        self._known: set[str] = set()
        #: The UUID of this member's GPU, where its gradients can go by NCCL.
        self.gpu = ""

    def connect(self, view: View, rank: int, values: Values) -> Connected:
        """See Transport."""
        values.set(f"host/{rank}", self._host)
        values.set(f"gpu/{rank}", self.gpu)
        hosts = {values.get(f"host/{each}") for each in range(len(view.members))}
        with self._lock:
            self._hosts |= hosts
            # The others connect from where this one would: all of them are on one machine, or each on its own.
            self._sources |= {_source(each) for each in hosts}
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = timedelta(seconds=EXCHANGE_SECONDS)
        group = dist.ProcessGroupGloo(KeyValueStore(values), rank, len(view.members), options)
        group.barrier().wait()  # a connection that cannot be made shows now
        with self._lock:
            mine = {inode for inode, _ in self._sockets() if inode not in self._known}
            self._known |= mine
        gpus = tuple(values.get(f"gpu/{each}") for each in range(len(view.members)))
        return Connected(group, values, mine, gpus)

    def leave_alone(self) -> None:
        """The connections to members that came since are not gloo's to shut down."""
        with self._lock:
            self._known |= {inode for inode, _ in self._sockets()}

    def close(self, group: Connected | None) -> None:
        """See Transport. gloo has no call for it: its sockets are shut down. NCCL's takes a while."""
        if group is not None:
            group.closed = group.values.closed = True
            if group.nccl is not None:
                threading.Thread(target=group.nccl.abort, daemon=True).start()
        with self._lock:
            for inode, descriptor in self._sockets():
                if inode in group.sockets if group is not None else inode not in self._known:
                    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as end:
                        end.shutdown(socket.SHUT_RDWR)
            if group is not None:
                self._known -= group.sockets

    def _sockets(self) -> list[tuple[str, int]]:
        """Inodes and descriptors of this process's connections to members.

        gloo listens on a member's address, and leaves it to the kernel from which one it connects. Other connections
        of this process are the scheduler's and the user's.
        """
        found = []
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                inode = str(entry.readlink())
                if not inode.startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(entry.name))) as end:
                    if end.family not in (socket.AF_INET, socket.AF_INET6) or end.type != socket.SOCK_STREAM:
                        continue
                    local, peer = end.getsockname()[:2], end.getpeername()[:2]
                ends = {local[0], peer[0]}
                if ends & self._hosts and ends <= self._hosts | self._sources and peer != self._scheduler:
                    found.append((inode, int(entry.name)))
        return found


def _source(host: str) -> str:
    """The address from which this machine connects to `host`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as end:
        end.connect((host, 9))  # sends nothing
        return str(end.getsockname()[0])
