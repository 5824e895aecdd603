"""The group of workers that sum their gradients by all-reduce, over torch.distributed's gloo. It has no servers.

Workers find each other over the liveness connection. The process group is made directly, not as torch.distributed's
global one: it listens on the function's own address only, and the model file may use torch.distributed as it likes.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from training.errors import TrainingError
from training.liveness import Hub, Member
from training.pytorch.learner import TorchLearner
from training.request import StartRequest

#: Seconds of one exchange. A lost member is known by the liveness connection long before.
EXCHANGE_SECONDS = 1800


class LivenessStore(dist.Store):
    """Where torch.distributed's members find each other: on the connections that the group has anyway."""

    def __init__(self, liveness: Hub | Member, prefix: str) -> None:
        super().__init__()
        self._liveness = liveness
        self._prefix = prefix

    def set(self, key: str, value: bytes | str) -> None:
        """Share a value with all members."""
        text = value if isinstance(value, str) else value.decode("latin-1")
        self._liveness.put(f"{self._prefix}/{key}", text)

    def get(self, key: str) -> bytes:
        """A value that a member shares; waits for it."""
        return self._liveness.get(f"{self._prefix}/{key}").encode("latin-1")

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until these have values."""
        for key in keys:
            self.get(key)


class AllReduceGroup:
    """See training.backend.Group. Every worker holds all weights and the optimizer's whole state."""

    can_add = True

    def __init__(self, request: StartRequest, liveness: Hub | Member) -> None:
        if request.servers:
            raise TrainingError(
                "BadRequest", f"servers is {request.servers}; all-reduce works without them, so 0"
            )
        if request.mode != "sync":
            raise TrainingError("BadRequest", "all-reduce is synchronous: mode must be sync")
        self._request = request
        self._liveness = liveness
        self._group: Any = None
        self._shared = False
        self._used: list[torch.nn.Parameter] | None = None

    def form(self) -> None:
        """See training.backend.Group."""
        if self._request.workers == 1:
            return
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._request.host)]
        options._timeout = timedelta(seconds=EXCHANGE_SECONDS)
        store = LivenessStore(self._liveness, self._request.group)
        self._group = dist.ProcessGroupGloo(store, self._request.rank, self._request.workers, options)
        self._sum(torch.zeros(1))  # so that a connection that cannot be made shows now

    def serve(self) -> None:
        """See training.backend.Group: the scheduler's part is the liveness hub's."""
        self._liveness.wait_for_end()

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, in place the sum over all workers."""
        self._group.allreduce([tensor]).wait()
        return tensor

    def share(self, learner: TorchLearner) -> None:
        """See training.backend.Group."""
        if self._group is None or self._shared:
            return
        self._shared = True
        with torch.no_grad():
            for tensor in (*learner.parameters, *learner.buffers):
                whole = tensor.detach().contiguous()
                self._group.broadcast([whole]).wait()
                tensor.copy_(whole)

    def step(self, learner: TorchLearner, batch_size: int) -> None:
        """See training.backend.Group."""
        if self._group is not None:
            self._exchange(learner)
        learner.update(batch_size)

    def _exchange(self, learner: TorchLearner) -> None:
        """Sum the gradients over all workers, as one flat tensor of each dtype."""
        if self._used is None:
            # A parameter that no worker's loss depends on has no gradient in plain training either.
            has = torch.tensor([float(each.grad is not None) for each in learner.parameters])
            kept = self._sum(has).tolist()
            self._used = [each for each, used in zip(learner.parameters, kept, strict=True) if used]
        by_dtype: dict[torch.dtype, list[torch.nn.Parameter]] = {}
        for parameter in self._used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        for parameters in by_dtype.values():
            flat = self._sum(torch.cat([each.grad.reshape(-1) for each in parameters]))
            offset = 0
            for each in parameters:
                each.grad = flat[offset : offset + each.numel()].view_as(each)
                offset += each.numel()

    def settle(self, learner: TorchLearner) -> None:
        """See training.backend.Group: what layers measured becomes the mean over the workers, as they saw equal shares.

        Counters, which are whole numbers, are equal on all.
        """
        if self._group is None:
            return
        for buffer in learner.buffers:
            if buffer.is_floating_point():
                buffer.copy_(self._sum(buffer.detach().contiguous()) / self._request.workers)

    def total(self, values: list[float]) -> list[float]:
        """See training.backend.Group."""
        if self._group is None:
            return values
        return [float(each) for each in self._sum(torch.tensor(values, dtype=torch.float64))]

    def leave(self) -> None:
        """See training.backend.Group."""
        self._group = None
