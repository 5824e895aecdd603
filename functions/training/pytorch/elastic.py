"""Exchanges of an elastic group's workers over gloo: each is completed once, whatever happens to the group."""

import json
from collections.abc import Callable
from typing import Any, Protocol

import torch

from training.elastic.line import Left, Line, Replaced
from training.errors import TrainingError
from training.membership import member as machine
from training.membership.member import Clock
from training.membership.messages import Found, Give, Take, View
from training.pytorch import gloo
from training.pytorch.learner import TorchLearner
from training.request import StartRequest

#: Elements at the end of what is exchanged that are the offers of the next view.
OFFERS = 2


class Owner(Protocol):
    """Who has the state: the worker."""

    def found(self) -> None:
        """Make the initial state, which the others get."""

    def state(self) -> tuple[TorchLearner, dict]:
        """The learner, and what else a newcomer needs."""

    def install(self, restore: Callable[[TorchLearner], None], plain: dict) -> None:
        """The inverse of state(): `restore` gives a learner the state that was received."""


class ElasticGroup:
    """One worker's side. All but what Line's threads do runs in the main thread."""

    def __init__(self, request: StartRequest, owner: Owner, fail: Callable[[BaseException], None]) -> None:
        self._owner = owner
        self._in_rank_order = request.deterministic
        self.line = Line(request, gloo.GlooTransport(request.host, request.root_address), fail)
        self._last: list[torch.Tensor] = []
        #: Two sets of tensors for gradients, by turns: allocating them costs as much as filling them.
        self._spare: list[dict[torch.dtype, torch.Tensor]] = [{}, {}]
        self._replaced = False

    # -- views ------------------------------------------------------------------------------------------------------

    def settle(self, until: Callable[[], bool] = lambda: False) -> list[torch.Tensor] | None:
        """Do what a change of the group wants of this worker, until it can train, or `until` is true.

        Returns what the exchange under way gave, if another member had completed it. Raises Left.
        """
        line, member = self.line, self.line.member
        while True:
            with line.waiting(), line.changed:
                line.changed.wait_for(
                    lambda: until() or self._over() or member.state in (machine.ENTERING, machine.TRAINING)
                )
                if self._over():
                    if line.ended is not None and line.ended.because is not None:
                        raise TrainingError("PeerLost", line.ended.because)
                    raise Left
                if until() or member.state == machine.TRAINING:
                    return None
            given = self._enter()
            if given is not None:
                return given

    def rest(self, until: Callable[[], bool]) -> None:
        """Between epochs: do what a change of the group wants of this worker. Raises Left."""
        line, member = self.line, self.line.member
        line.rests(True)
        while True:
            with line.changed:
                line.changed.wait_for(lambda: until() or self._over() or member.state == machine.ENTERING)
            if until():
                break
            if self._over():
                raise Left
            self._enter()
        line.rests(False)

    def _over(self) -> bool:
        return self.line.ended is not None or self.line.left

    @property
    def trains(self) -> bool:
        """Whether it has the group's state, and is in a view."""
        return self.line.member.state == machine.TRAINING

    @property
    def rank(self) -> int:
        """In the present view."""
        view = self.line.member.view
        return view.members.index(self.line.member.name)

    @property
    def size(self) -> int:
        """Workers that train together at present."""
        return len(self.line.member.view.members) if self.trains else 0

    def _enter(self) -> list[torch.Tensor] | None:
        """Bring all members of a new view to the same state."""
        line, member = self.line, self.line.member
        with line.changed:
            if member.state != machine.ENTERING:
                return None
            if line.entered is not None:
                line.begin_pause()
            view = member.view
            group = line.groups[view.number]
            clock, commands = member.enter()
        taken, plain, tensors = None, {}, []
        if any(isinstance(each, Found) for each in commands):
            self._owner.found()
            self._replaced = True
        try:
            with line.waiting():
                clocks = self._gather(view, group, clock)
                with line.changed:
                    if member.view is not view or member.state != machine.ENTERING:
                        return None
                    orders = member.gathered(clocks)
                for order in orders:
                    rank = view.members.index(order.member)
                    if isinstance(order, Give):
                        self._send(group, rank, *(self._state() if order.whole else ({}, self._last)))
                    else:
                        taken = order
                        plain, tensors = self._receive(group, rank)
        except RuntimeError:
            with line.changed:
                line.do(member.broke(view.number))
            return None
        if taken is not None and taken.whole:
            learner_plain = plain.pop("learner")
            self._owner.install(lambda learner: unpack(learner, learner_plain, tensors), plain)
            self._replaced = True
        elif taken is not None:
            self._last = tensors
        with line.changed:
            line.do(member.settled(view.number, taken), pause=line.take_pause())
            line.entered = view.number
        return tensors if isinstance(taken, Take) and not taken.whole else None

    def _state(self) -> tuple[dict, list[torch.Tensor]]:
        learner, plain = self._owner.state()
        said, tensors = pack(learner)
        return {**plain, "learner": said}, tensors

    @staticmethod
    def _gather(view: View, group: Any, clock: Clock) -> list[Clock]:
        if group is None:
            return [clock]
        mine = torch.tensor([-1 if clock.steps is None else clock.steps, int(clock.kept)])
        found = [torch.empty_like(mine) for _ in view.members]
        group.group.allgather([found], [mine]).wait()
        return [
            Clock(None if steps < 0 else steps, bool(kept))
            for steps, kept in (each.tolist() for each in found)
        ]

    @staticmethod
    def _send(group: Any, rank: int, plain: dict, tensors: list[torch.Tensor]) -> None:
        shapes = [(list(each.shape), str(each.dtype).removeprefix("torch.")) for each in tensors]
        header = torch.frombuffer(bytearray(json.dumps([plain, shapes]).encode()), dtype=torch.uint8)
        group.group.send([torch.tensor([len(header)])], rank, 0).wait()
        group.group.send([header], rank, 0).wait()
        for tensor in tensors:
            if tensor.numel():
                group.group.send([tensor.detach().cpu().contiguous()], rank, 0).wait()

    @staticmethod
    def _receive(group: Any, rank: int) -> tuple[dict, list[torch.Tensor]]:
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
        return plain, tensors

    # -- exchanges --------------------------------------------------------------------------------------------------

    def exchange(
        self, contribute: Callable[[int, int], list[torch.Tensor]], *, step: bool = False
    ) -> list[torch.Tensor]:
        """The sums over all members of what each contributes. The group can change after a `step`.

        `contribute(rank, members)` is called again when the group changed before the sums were known. The first of its
        tensors ends with OFFERS elements of any value. Raises Left, or Replaced.
        """
        line, member = self.line, self.line.member
        while True:
            self._replaced = False
            given = self.settle()
            if self._replaced:
                raise Replaced
            if given is not None:
                return given
            with line.changed:
                if not self.trains:
                    continue
                view = member.view
                group = line.groups[view.number]
            tensors = contribute(view.members.index(member.name), len(view.members))
            with line.changed:
                if member.view is not view or not self.trains:
                    continue
                tensors[0][-OFFERS:] = torch.tensor(member.offer(may_change=step), dtype=tensors[0].dtype)
            try:
                if group is not None:
                    with line.waiting():
                        tensors = [
                            gloo.add_up(
                                group.group, each, len(view.members), in_rank_order=self._in_rank_order
                            )
                            for each in tensors
                        ]
            except RuntimeError:
                self._spare = [{}, {}]  # peers may still write into what was exchanged
                with line.changed:
                    line.do(member.broke(view.number))
                continue
            with line.changed:
                self._last = tensors
                line.do(member.completed(view.number, tuple(tensors[0][-OFFERS:].tolist())))
                if member.view is not view and member.view.planned:
                    line.went_over(view)
            return tensors

    # -- what the worker exchanges ----------------------------------------------------------------------------------

    def step(
        self, learner: TorchLearner, compute: Callable[[int, int], tuple[bool, list[float]]]
    ) -> list[float]:
        """One training step; the group can change after it.

        `compute(rank, members)` leaves this worker's gradients in the learner: whether it had samples, and numbers.
        Returns the sums of the numbers.
        """
        alone = False

        def contribute(rank: int, members: int) -> list[torch.Tensor]:
            nonlocal alone
            used, numbers = compute(rank, members)
            alone = members == 1
            if alone:  # the gradients are where they belong
                return [tail(learner, numbers, used=used)]
            self._spare.reverse()
            return gradients(learner, numbers, used=used, out=self._spare[0])

        sums = self.exchange(contribute, step=True)
        return apply(learner, sums, alone=alone)

    def average_buffers(self, learner: TorchLearner) -> None:
        """What layers measured becomes the mean over the workers, as they saw equal shares."""
        buffers = [each for each in learner.buffers if each.is_floating_point()]
        if not buffers:
            return
        ends = [torch.ones(1, dtype=torch.float64), torch.zeros(OFFERS, dtype=torch.float64)]
        (sums,) = self.exchange(
            lambda *_: [torch.cat([*(each.double().reshape(-1).cpu() for each in buffers), *ends])]
        )
        offset, members = 0, sums[-OFFERS - 1]
        for buffer in buffers:
            buffer.copy_((sums[offset : offset + buffer.numel()] / members).view_as(buffer))
            offset += buffer.numel()

    def total(self, compute: Callable[[int, int], list[float]]) -> list[float]:
        """The sums of what `compute(rank, members)` returns over all workers."""
        (sums,) = self.exchange(
            lambda rank, members: [
                torch.tensor([*compute(rank, members), *[0.0] * OFFERS], dtype=torch.float64)
            ]
        )
        return sums[:-OFFERS].tolist()


def tail(learner: TorchLearner, numbers: list[float], *, used: bool) -> torch.Tensor:
    """Which parameters have a gradient, `numbers`, and place for the offers."""
    has = [float(used and each.grad is not None) for each in learner.parameters]
    return torch.tensor([*has, *numbers, *[0.0] * OFFERS])


def gradients(
    learner: TorchLearner, numbers: list[float], *, used: bool, out: dict[torch.dtype, torch.Tensor]
) -> list[torch.Tensor]:
    """The gradients, flat, by dtype, in `out`. The first is float32 and ends with the tail."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {torch.float32: []}
    for parameter in learner.parameters:
        grad = parameter.grad if used and parameter.grad is not None else torch.zeros_like(parameter)
        dense = grad.to_dense() if grad.is_sparse else grad
        by_dtype.setdefault(parameter.dtype, []).append(dense.reshape(-1).cpu())  # gloo adds on the CPU
    by_dtype[torch.float32].append(tail(learner, numbers, used=used))
    for dtype, parts in by_dtype.items():
        out[dtype] = torch.cat(parts, out=out[dtype]) if dtype in out else torch.cat(parts)
    return [out[dtype] for dtype in by_dtype]


def apply(learner: TorchLearner, sums: list[torch.Tensor], *, alone: bool) -> list[float]:
    """Let the optimizer apply the sums of all gradients. Returns the sums of the numbers.

    `alone`: the sums are the tail, and the gradients those that the learner has.
    """
    if alone:
        learner.update(0)
        return sums[0][len(learner.parameters) : -OFFERS].tolist()
    by_dtype = {each.dtype: each for each in sums}
    sizes = dict.fromkeys(by_dtype, 0)
    for parameter in learner.parameters:
        sizes[parameter.dtype] += parameter.numel()
    ends = sums[0][sizes[torch.float32] : -OFFERS].tolist()
    offsets = dict.fromkeys(by_dtype, 0)
    for parameter, given in zip(learner.parameters, ends, strict=False):
        start = offsets[parameter.dtype]
        offsets[parameter.dtype] += parameter.numel()
        flat = by_dtype[parameter.dtype][start : offsets[parameter.dtype]]
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
    tensors, places, plain = list(arrays.values()), [], {}
    for index, values in optimizer["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                places.append([index, name])
                tensors.append(value)
            else:
                plain[f"{index}/{name}"] = value
    said = {
        "arrays": list(arrays),
        "places": places,
        "plain": plain,
        "param_groups": optimizer["param_groups"],
        "schedule": learner.schedule_state(),
    }
    return said, tensors


def unpack(learner: TorchLearner, said: dict, tensors: list[torch.Tensor]) -> None:
    """The inverse of pack; takes the tensors over."""
    arrays = dict(zip(said["arrays"], tensors, strict=False))
    learner.net.load_state_dict({**learner.net.state_dict(), **arrays})
    optimizer = learner.optimizer
    optimizer.load_state_dict({"state": {}, "param_groups": said["param_groups"]})
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    optimizer.state.clear()
    for (index, name), tensor in zip(said["places"], tensors[len(arrays) :], strict=True):
        # Scalars, such as Adam's number of steps, stay where they were made.
        at = parameters[index]
        optimizer.state[at][name] = tensor.to(at.device) if tensor.ndim else tensor
    for key, value in said["plain"].items():
        index, _, name = key.partition("/")
        optimizer.state[parameters[int(index)]][name] = value
    learner.restore_schedule(said["schedule"])
