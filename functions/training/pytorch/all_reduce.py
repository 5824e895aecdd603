"""The group of workers that sum their gradients by all-reduce, over torch.distributed's gloo. It has no servers.

Workers find each other over the liveness connection.
"""

from typing import Any

import torch

from training.errors import TrainingError
from training.liveness import Hub, Member
from training.pytorch import gloo
from training.pytorch.learner import TorchLearner
from training.request import StartRequest


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
        prefix, put, get = self._request.group, self._liveness.put, self._liveness.get
        store = gloo.KeyValueStore(
            lambda key, value: put(f"{prefix}/{key}", value), lambda key: get(f"{prefix}/{key}")
        )
        self._group = gloo.process_group(store, self._request.host, self._request.rank, self._request.workers)
        self._sum(torch.zeros(1))  # so that a connection that cannot be made shows now

    def serve(self) -> None:
        """See training.backend.Group: the scheduler's part is the liveness hub's."""
        self._liveness.wait_for_end()

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all workers."""
        in_order = self._request.deterministic
        return gloo.add_up(self._group, tensor, self._request.workers, in_rank_order=in_order)

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
