"""Groups of NCCL, by which gradients stay on GPUs. Each belongs to a view, whose gloo group does everything else.

It needs a GPU for each member and PyTorch 2.7 or later, whose `abort` frees a process that waits for a dead one
(NCCL 2.26, as in torchft). It has never run on two GPUs.
"""

import os
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist

from training.pytorch import gloo

#: Seconds that members may take to connect.
FORMING_SECONDS = 30

#: A model file that sets this variable to gloo has its gradients added on the CPU.
VARIABLE = "COACH_GRADIENTS"

#: As PyTorch and NCCL read them when the first group is made. The user's own come first.
SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # else its watchdog ends this process when a member is lost
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": str(FORMING_SECONDS),
    "NCCL_RUNTIME_CONNECT": "0",  # all connections are made with the group: see form
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
        self._closed = self._aborted = False
        self._aborting = threading.Lock()

    def connect(self) -> None:
        """Connect to the others, and add up once. Raises RuntimeError."""
        self._group.eager_connect_single_device(self._device)
        one = torch.ones(1, device=self._device)
        (found,) = self.end(self.begin([one]))
        if int(found) != self._size:
            raise RuntimeError(f"the sum of {self._size} ones over NCCL is {float(found):g}")

    def begin(self, tensors: list[torch.Tensor], *, in_rank_order: bool = False) -> list[gloo.Begun]:
        """Start to add these up over all members. What `end` takes."""
        return [gloo.begin(self._group, each, self._size, in_rank_order=in_rank_order) for each in tensors]

    def end(self, begun: list[gloo.Begun]) -> list[torch.Tensor]:
        """The sums. Raises RuntimeError where the group was aborted: they are not whole then."""
        sums = [gloo.total(each) for each in begun]  # on a GPU, the stream has waited for them, and not this thread
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        if self._closed:
            raise RuntimeError("the view was closed")
        return sums

    def abort(self) -> None:
        """End all waits in it, here and at the others. Returns when nothing writes into tensors any more."""
        self._closed = True
        with self._aborting:
            if not self._aborted:
                self._aborted = True
                self._group.abort()


def form(transport: gloo.GlooTransport, view: gloo.Connected, rank: int, device: torch.device) -> None:
    """Give a view its group of NCCL, where each member has a GPU of its own; else gloo adds all.

    All members are in the view and have no other exchange: none forms another view meanwhile, unless this one is
    closed. What cannot be formed while the view holds is left: by all, and in later views too.
    """
    size = len(view.gpus)
    if "" in view.gpus or len({*view.gpus}) < size:
        return
    failed: Exception | None = None
    try:
        view.nccl = NcclGroup(gloo.KeyValueStore(view.values, FORMING_SECONDS), rank, size, device)
        if not view.closed:
            view.nccl.connect()
            transport.leave_alone()
    except Exception as error:
        failed = error
    if view.closed:
        raise RuntimeError("the view was closed")
    failures = gloo.total(gloo.begin(view.group, torch.tensor([int(failed is not None)]), size, in_rank_order=False))
    if not int(failures):
        return
    transport.gpu = ""
    formed, view.nccl = view.nccl, None
    if formed is not None:
        formed.abort()
    why = "another worker could not" if failed is None else " ".join(str(failed).split())
    sys.stderr.write(f"NCCL does not connect the workers: {why}. Gradients go through the CPU, by gloo\n")
