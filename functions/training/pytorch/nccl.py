"""Groups of NCCL, by which gradients stay on GPUs. Each belongs to a view, whose gloo group does everything else.

It needs a GPU for each member and PyTorch 2.7 or later, whose `abort` frees a process that waits for a dead one
(NCCL 2.26, as in torchft). It has never run on two GPUs.
"""

import os
import threading
from typing import Any

import torch
import torch.distributed as dist

#: Seconds that members may take to connect.
FORMING_SECONDS = 30

#: A model file that sets this variable to gloo has its gradients added on the CPU.
VARIABLE = "COACH_GRADIENTS"

#: Exchanges under way, each with the tensors of which the first becomes the sum.
Begun = list[tuple[Any, list[torch.Tensor]]]

#: As PyTorch and NCCL read them when the first group is made. The user's own come first.
SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # else its watchdog ends this process when a member is lost
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": str(FORMING_SECONDS),
    "NCCL_RUNTIME_CONNECT": "0",  # all connections are made with the group: see GlooTransport.add_gpus
}


def gpu(device: torch.device) -> str:
    """The UUID of a GPU whose gradients can go by NCCL, else ""."""
    able = torch.version.cuda and dist.is_nccl_available() and hasattr(dist.ProcessGroupNCCL, "abort")
    if device.type != "cuda" or not able or os.environ.get(VARIABLE) == "gloo":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def make(store: dist.Store, rank: int, size: int) -> Any:
    """A process group that is not connected yet."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    options = dist.ProcessGroupNCCL.Options()
    options.config.blocking = False
    return dist.ProcessGroupNCCL(store, rank, size, options)


class NcclGroup:
    """One view's. `connect`, `begin` and `end` are the main thread's; `abort` may come from any."""

    def __init__(self, store: dist.Store, rank: int, size: int, device: torch.device) -> None:
        self._group = make(store, rank, size)
        self._size = size
        self._device = device
        self._aborting = threading.Lock()
        self._aborted = False

    def connect(self) -> None:
        """Connect to the others, and add up once. Raises RuntimeError."""
        self._group.eager_connect_single_device(self._device)
        one = torch.ones(1, device=self._device)
        (found,) = self.end(self.begin([one]))
        if int(found) != self._size:
            raise RuntimeError(f"the sum of {self._size} ones over NCCL is {float(found):g}")

    def begin(self, tensors: list[torch.Tensor], *, in_rank_order: bool = False) -> Begun:
        """Start to add these up over all members, in place unless `in_rank_order`. What `end` takes."""
        begun: Begun = []
        for tensor in tensors:
            parts = [torch.empty_like(tensor) for _ in range(self._size)] if in_rank_order else [tensor]
            work = self._group.allgather([parts], [tensor]) if in_rank_order else self._group.allreduce(parts)
            begun.append((work, parts))
        return begun

    def end(self, begun: Begun) -> list[torch.Tensor]:
        """The sums. Raises RuntimeError where the group was aborted: they are not whole then."""
        sums = []
        for work, parts in begun:
            work.wait()  # on a GPU, this has the stream wait, not this thread
            for part in parts[1:]:
                parts[0] += part
            sums.append(parts[0])
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        if self._aborted:
            raise RuntimeError("the view was closed")
        return sums

    def abort(self) -> None:
        """End all waits in it, here and at the others. Returns when nothing writes into tensors any more."""
        before, self._aborted = self._aborted, True
        with self._aborting:
            if not before:
                self._group.abort()
