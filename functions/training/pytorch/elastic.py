"""Exchanges of an elastic group's workers over gloo, and of gradients on GPUs over NCCL."""

import json
from collections.abc import Callable
from typing import Any

import torch

from training.elastic.group import ElasticGroup
from training.membership.member import Clock
from training.membership.messages import View
from training.pytorch import gloo, nccl, optimizers
from training.pytorch.checkpoint import joined, split
from training.pytorch.learner import TorchLearner
from training.request import StartRequest

#: Elements at the end of what is exchanged that are the offers of the next view.
OFFERS = 2


class GlooGroup(ElasticGroup):
    """See training.elastic.group. Members give lists of tensors; the first ends with OFFERS elements of any value."""

    failures = (RuntimeError,)

    def __init__(self, request: StartRequest, owner: Any, fail: Callable[[BaseException], None]) -> None:
        self._transport = gloo.GlooTransport(request.host, request.line_address)
        super().__init__(request, owner, fail, self._transport)
        self._device = torch.device("cpu")
        #: The view's group of NCCL, where it has one.
        self._nccl: nccl.NcclGroup | None = None
        self._in_rank_order = request.deterministic
        #: Two sets of tensors for gradients, by turns: allocating them costs as much as filling them.
        self._spare: list[dict[torch.dtype, torch.Tensor]] = [{}, {}]

    def ready(self, learner: TorchLearner) -> None:
        """See training.elastic.group."""
        self._device = learner.device
        self._transport.gpu = nccl.gpu(learner.device)
        super().ready(learner)

    def _state(self) -> tuple[dict, list[torch.Tensor]]:
        learner, plain = self._owner.state()
        said, tensors = pack(learner)
        return {**plain, "learner": said}, tensors

    def _gather(self, view: View, group: Any, clock: Clock) -> list[Clock]:
        left, self._nccl = self._nccl, None
        if group is None:
            self._leave(left)
            return [clock]
        mine = torch.tensor([-1 if clock.steps is None else clock.steps, int(clock.kept)])
        found = [torch.empty_like(mine) for _ in view.members]
        group.group.allgather([found], [mine]).wait()
        self._leave(left)  # by now all have finished what they did in it
        nccl.form(self._transport, group, view.members.index(self.line.member.name), self._device)
        self._nccl = group.nccl
        return [Clock(None if steps < 0 else steps, bool(kept)) for steps, kept in (each.tolist() for each in found)]

    @staticmethod
    def _leave(group: nccl.NcclGroup | None) -> None:
        """Nothing writes into what was exchanged any more."""
        if group is not None:
            group.abort()

    def _give(self, group: Any, rank: int, *, whole: bool) -> None:
        plain, tensors = self._state() if whole else ({}, self._last)
        shapes = [(list(each.shape), str(each.dtype).removeprefix("torch.")) for each in tensors]
        header = torch.frombuffer(bytearray(json.dumps([plain, shapes]).encode()), dtype=torch.uint8)
        group.group.send([torch.tensor([len(header)])], rank, 0).wait()
        group.group.send([header], rank, 0).wait()
        for tensor in tensors:
            if tensor.numel():
                group.group.send([tensor.detach().cpu().contiguous()], rank, 0).wait()

    def _receive(self, group: Any, rank: int, *, whole: bool) -> Any:
        length = torch.empty(1, dtype=torch.int64)
        group.group.recv([length], rank, 0).wait()
        header = torch.empty(int(length), dtype=torch.uint8)
        group.group.recv([header], rank, 0).wait()
        plain, shapes = json.loads(bytes(header.tolist()))
        tensors = []
        for shape, dtype in shapes:
            tensors.append(torch.empty(shape, dtype=getattr(torch, dtype)))
            if tensors[-1].numel():
                group.group.recv([tensors[-1]], rank, 0).wait()
        if not whole:
            return tensors

        def install() -> None:
            learner_plain = plain.pop("learner")
            self._owner.install(lambda learner: unpack(learner, learner_plain, tensors), plain)

        return install

    def _add_up(
        self, group: Any, view: View, given: list[torch.Tensor], offer: tuple[float, float]
    ) -> tuple[list[torch.Tensor], tuple]:
        given[0][-OFFERS:] = torch.tensor(offer, dtype=given[0].dtype)
        if group is not None:
            try:
                given = self._sums(group.group, given, len(view.members))
            except RuntimeError:
                self._spare = [{}, {}]  # peers may still write into what was exchanged
                self._leave(self._nccl)
                raise
        return given, tuple(given[0][-OFFERS:].tolist())

    def _sums(self, group: Any, given: list[torch.Tensor], size: int) -> list[torch.Tensor]:
        in_order = self._in_rank_order
        if self._nccl is None:
            return [gloo.total(gloo.begin(group, each, size, in_rank_order=in_order)) for each in given]
        begun = self._nccl.begin(given[1:], in_rank_order=in_order)
        first = gloo.total(gloo.begin(group, given[0], size, in_rank_order=in_order))
        return [first, *self._nccl.end(begun)]

    def step(self, learner: TorchLearner, compute: Callable[[int, int], tuple[bool, list[float]]]) -> list[float]:
        """See training.elastic.group."""
        alone = on_gpus = False

        def contribute(rank: int, members: int) -> list[torch.Tensor]:
            nonlocal alone, on_gpus
            used, numbers = compute(rank, members)
            alone, on_gpus = members == 1, self._nccl is not None
            last = tail(learner, numbers, used=used)
            if alone:  # the gradients are where they belong
                return [last]
            self._spare.reverse()
            return gradients(learner, last, used=used, out=self._spare[0], on_gpus=on_gpus)

        sums = self.exchange(contribute, step=True)
        return apply(learner, sums, alone=alone, on_gpus=on_gpus)

    def average_buffers(self, learner: TorchLearner) -> None:
        """See training.elastic.group."""
        buffers = [each for each in learner.buffers if each.is_floating_point()]
        if not buffers:
            return
        ends = [torch.ones(1, dtype=torch.float64), torch.zeros(OFFERS, dtype=torch.float64)]
        (sums,) = self.exchange(lambda *_: [torch.cat([*(each.double().reshape(-1).cpu() for each in buffers), *ends])])
        *sums, members, _ = sums.split([*(each.numel() for each in buffers), 1, OFFERS])
        for buffer, total in zip(buffers, sums, strict=True):
            buffer.copy_((total / members).view_as(buffer))

    def total(self, compute: Callable[[int, int], list[float]]) -> list[float]:
        """See training.elastic.group."""
        (sums,) = self.exchange(
            lambda rank, members: [torch.tensor([*compute(rank, members), *[0.0] * OFFERS], dtype=torch.float64)]
        )
        return sums[:-OFFERS].tolist()


def tail(learner: TorchLearner, numbers: list[float], *, used: bool) -> torch.Tensor:
    """Which parameters have a gradient, `numbers`, and place for the offers."""
    has = [float(used and each.grad is not None) for each in learner.parameters]
    return torch.tensor([*has, *numbers, *[0.0] * OFFERS])


def gradients(
    learner: TorchLearner, last: torch.Tensor, *, used: bool, out: dict[torch.dtype, torch.Tensor], on_gpus: bool
) -> list[torch.Tensor]:
    """The gradients, flat, by dtype, in `out`, and the tail: `on_gpus` first, alone, else at the first one's end.

    gloo adds on the CPU, so there the first is float32, and one exchange takes both.
    """
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {} if on_gpus else {torch.float32: []}
    for parameter in learner.parameters:
        grad = parameter.grad if used and parameter.grad is not None else torch.zeros_like(parameter)
        flat = (grad.to_dense() if grad.is_sparse else grad).reshape(-1)
        by_dtype.setdefault(parameter.dtype, []).append(flat.to(learner.device if on_gpus else "cpu"))
    if not on_gpus:
        by_dtype[torch.float32].append(last)
    for dtype, parts in by_dtype.items():
        out[dtype] = torch.cat(parts, out=out[dtype]) if dtype in out else torch.cat(parts)
    return [*([last] if on_gpus else []), *(out[dtype] for dtype in by_dtype)]


def apply(learner: TorchLearner, sums: list[torch.Tensor], *, alone: bool, on_gpus: bool) -> list[float]:
    """Let the optimizer apply the sums of all gradients. Returns the sums of the numbers.

    `alone`: the sums are the tail, and the gradients those that the learner has. `on_gpus`: see gradients.
    """
    if alone:
        learner.update(0)
        return sums[0][len(learner.parameters) : -OFFERS].tolist()
    parts, ends = {}, sums[0][:-OFFERS].tolist() if on_gpus else []
    for flat in sums[1:] if on_gpus else sums:
        sizes = [each.numel() for each in learner.parameters if each.dtype == flat.dtype]
        *found, rest = flat.split([*sizes, flat.numel() - sum(sizes)])
        parts[flat.dtype] = iter(found)
        ends = ends or rest[:-OFFERS].tolist()
    for parameter, given in zip(learner.parameters, ends, strict=False):
        flat = next(parts[parameter.dtype])
        # A parameter that no worker's loss depends on has no gradient in plain training either.
        grad = flat.view_as(parameter).to(parameter.device) if given else None
        # Another member may still need the sums as they are.
        parameter.grad = grad.clone() if grad is not None and learner.clips else grad
    learner.update(0)
    return ends[len(learner.parameters) :]


def pack(learner: TorchLearner) -> tuple[dict, list[torch.Tensor]]:
    """The learner's whole state, without a copy."""
    arrays = {name: each for name, each in learner.net.state_dict().items() if isinstance(each, torch.Tensor)}
    optimizer = learner.optimizer.state_dict()
    tensors, plain = split(optimizer["state"])
    said = {
        "arrays": list(arrays),
        "tensors": list(tensors),
        "plain": plain,
        "param_groups": optimizer["param_groups"],
        "schedule": optimizers.schedule_state(learner.schedule),
    }
    return said, [*arrays.values(), *tensors.values()]


def unpack(learner: TorchLearner, said: dict, tensors: list[torch.Tensor]) -> None:
    """The inverse of pack; takes the tensors over."""
    arrays = dict(zip(said["arrays"], tensors, strict=False))
    learner.net.load_state_dict({**learner.net.state_dict(), **arrays})
    optimizer = learner.optimizer
    optimizer.load_state_dict({"state": {}, "param_groups": said["param_groups"]})
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    optimizer.state.clear()
    state = dict(zip(said["tensors"], tensors[len(arrays) :], strict=True)) | said["plain"]
    for index, values in joined(state).items():
        at = parameters[index]
        for name, value in values.items():
            # Scalars, such as Adam's number of steps, stay where they were made.
            moves = isinstance(value, torch.Tensor) and value.ndim
            optimizer.state[at][name] = value.to(at.device) if moves else value
    optimizers.restore_schedule(learner.schedule, said["schedule"])
