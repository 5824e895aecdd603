"""The user's torch.nn.Module where its optimizer runs on parameter servers."""

from dataclasses import fields
from types import ModuleType
from typing import Any

import numpy as np
import torch

from training.errors import TrainingError
from training.pytorch import optimizers
from training.pytorch.learner import TorchLearner
from training.request import StartRequest
from training.servers.optimizers import Rule

#: PyTorch's optimizers that servers have, with the names of their state.
OPTIMIZERS = {
    torch.optim.SGD: ("sgd", ("momentum_buffer",)),
    torch.optim.Adam: ("adam", ("exp_avg", "exp_avg_sq")),
    torch.optim.AdamW: ("adamw", ("exp_avg", "exp_avg_sq")),
}
#: What they can have in addition, and servers do not.
_LACKS = ("amsgrad", "dampening", "maximize")
_ARGUMENTS = {field.name for field in fields(Rule)} - {"name", "scale", "clip_value", "clip_norm"}


class ServedLearner(TorchLearner):
    """See training.servers.group.ServedLearner. Its checkpoints are those of all-reduce."""

    def __init__(self, request: StartRequest, model: ModuleType, sample: tuple[Any, int]) -> None:
        super().__init__(request, model, sample)
        self.updates = 0
        self._kind, self._states = self._known()
        #: By the optimizer's groups, one after the other: each has rates of its own.
        self._groups = [[each for each in of["params"] if each.requires_grad] for of in self.optimizer.param_groups]
        self._served = [each for group in self._groups for each in group]
        self._names = {each: name for name, each in self.net.named_parameters()}
        for each in self._served:
            if each.dtype != torch.float32 or each.device.type != "cpu":
                is_so = f"is {str(each.dtype).removeprefix('torch.')} on {each.device}"
                raise self._unfit(f"{self._names[each]} {is_so}; parameter servers need float32 on cpu")
            each.data = each.data.contiguous()

    def _known(self) -> tuple[str, tuple[str, ...]]:
        optimizer = self.optimizer
        if type(optimizer) not in OPTIMIZERS:
            known = ", ".join(each.__name__ for each in OPTIMIZERS)
            raise self._unfit(f"optimizer {type(optimizer).__name__} does not run on parameter servers; use {known}")
        for name in _LACKS:
            if name in optimizer.defaults and any(group[name] for group in optimizer.param_groups):
                raise self._unfit(f"{name} of {type(optimizer).__name__} is not on parameter servers; leave it out")
        kind, states = OPTIMIZERS[type(optimizer)]
        if kind == "sgd" and not any(group["momentum"] for group in optimizer.param_groups):
            return kind, ()
        return "adamw" if optimizer.defaults.get("decoupled_weight_decay") else kind, states

    def _unfit(self, why: str) -> TrainingError:
        return TrainingError("ModelInvalid", f"{self._uri}: {why}; or servers: 0, which is all-reduce")

    def rules(self) -> list[tuple[int, Rule]]:
        """See training.servers.group.ServedLearner."""
        clip = {f"clip_{key}": value for key, value in self._clip.items()}
        found = []
        for parameters, group in zip(self._groups, self.optimizer.param_groups, strict=True):
            own = {key: value for key, value in group.items() if key in _ARGUMENTS}
            rule = Rule(self._kind, **own | {"lr": float(group["lr"])}, **clip)
            found.append((sum(each.numel() for each in parameters), rule))
        return found

    def flat_weights(self) -> list[np.ndarray]:
        """See ServedLearner."""
        return [_memory(each.detach()) for each in self._served]

    def flat_gradients(self, *, used: bool) -> list[np.ndarray]:
        """See ServedLearner. Raises TrainingError ModelInvalid."""
        if not used:
            return [np.zeros(each.numel(), np.float32) for each in self._served]
        for each in self._served:
            if each.grad is None:
                words = f"the loss does not depend on {self._names[each]}, and parameter servers need its gradient"
                raise self._unfit(f"{words}; set its requires_grad to False")
        grads = (each.grad for each in self._served)
        return [_memory((each.to_dense() if each.is_sparse else each).contiguous()) for each in grads]

    def update(self, batch_size: int) -> None:
        """See ServedLearner. Without gradients PyTorch's optimizer does nothing but count for its schedule."""
        for each in self.parameters:
            each.grad = None
        super().update(batch_size)
        self.updates += 1

    @property
    def served(self) -> list[np.ndarray] | None:
        """See ServedLearner: PyTorch's own state, flat."""
        state = [self.optimizer.state.get(each, {}) for each in self._served]
        if all(of.get(name) is None for of in state for name in self._states):
            return None
        none = [np.zeros(each.numel(), np.float32) for each in self._served]  # a momentum of 0 has no buffer
        return [
            np.concatenate(
                [zeros if of.get(name) is None else _memory(of[name]) for of, zeros in zip(state, none, strict=True)]
            )
            for name in self._states
        ]

    @served.setter
    def served(self, values: list[np.ndarray] | None) -> None:
        self.optimizer.state.clear()
        start = 0
        for each in self._served if values else ():
            step = {} if self._kind == "sgd" else {"step": torch.tensor(float(self.updates))}
            of = {name: flat[start : start + each.numel()] for name, flat in zip(self._states, values, strict=True)}
            self.optimizer.state[each] = step | {
                name: torch.from_numpy(flat).view(each.shape) for name, flat in of.items()
            }
            start += each.numel()

    @property
    def measured(self) -> list[np.ndarray]:
        """See ServedLearner."""
        return [each.detach().clone().reshape(-1).numpy() for each in self.buffers]

    @measured.setter
    def measured(self, values: list[np.ndarray]) -> None:
        for buffer, value in zip(self.buffers, values, strict=True):
            buffer.copy_(torch.from_numpy(np.array(value)).view(buffer.shape))

    @property
    def progress(self) -> dict:
        """See ServedLearner: a schedule changes what groups of parameters have."""
        groups = [{key: each[key] for key in each if key != "params"} for each in self.optimizer.param_groups]
        return {"updates": self.updates, "groups": groups, "schedule": optimizers.schedule_state(self.schedule)}

    @progress.setter
    def progress(self, value: dict) -> None:
        self.updates = value["updates"]
        for group, own in zip(self.optimizer.param_groups, value["groups"], strict=True):
            group.update(own)
        optimizers.restore_schedule(self.schedule, value["schedule"])

    def restore(self, arrays: dict[str, torch.Tensor], settings: dict | None) -> None:
        """See training.backend.Learner."""
        super().restore(arrays, settings)
        self.updates = int(self.optimizer.state.get(self._served[0], {}).get("step", 0))


def _memory(tensor: torch.Tensor) -> np.ndarray:
    """Its own memory, flat."""
    return tensor.reshape(-1).numpy()
