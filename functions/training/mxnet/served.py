"""The user's gluon model where its optimizer runs on elastic parameter servers."""

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from training.errors import TrainingError
from training.mxnet.learner import MxnetLearner
from training.request import StartRequest
from training.servers.optimizers import Rule

#: MXNet's optimizers that servers have, with the names of their arguments here.
_COMMON = {"wd": "weight_decay"}
_ADAM = {**_COMMON, "epsilon": "eps"}
OPTIMIZERS = {
    "SGD": ("sgd", {**_COMMON, "momentum": "momentum"}),
    "NAG": ("sgd", {**_COMMON, "momentum": "momentum"}),
    "Adam": ("adam", _ADAM),
    "AdamW": ("adamw", _ADAM),
}


class ServedLearner(MxnetLearner):
    """See training.servers.group.ServedLearner. Gradients are sums over samples."""

    def __init__(
        self, request: StartRequest, model: ModuleType, sample: tuple[tuple[np.ndarray, np.ndarray], int]
    ) -> None:
        super().__init__(request, model, sample)
        self._batch = request.batch_size
        self.updates = 0
        self.served: list[np.ndarray] | None = None
        self._rule = self._make_rule()

    def _make_rule(self) -> Callable[[int], Rule]:
        """The servers' optimizer of the job's. Raises TrainingError BadRequest where they have none like it."""
        optimizer, kind = self.optimizer, type(self.optimizer).__name__
        if kind not in OPTIMIZERS:
            known = ", ".join(each.lower() for each in OPTIMIZERS)
            message = f"optimizer {kind.lower()} does not run on elastic parameter servers; use one of {known}"
            raise TrainingError("BadRequest", f"{message}, or parameterServer: ps-lite")
        if optimizer.clip_gradient is not None:
            raise TrainingError("BadRequest", "clip_gradient of the optimizer: use the job's clip: value")
        for name, each in zip(self._trained_names, self._trained, strict=True):
            if np.dtype(each.dtype) != np.float32:
                right = "elastic parameter servers need float32"
                raise TrainingError("ModelInvalid", f"{self._uri}: {name} is {np.dtype(each.dtype)}; {right}")
        name, arguments = OPTIMIZERS[kind]
        fixed = {ours: getattr(optimizer, theirs) for theirs, ours in arguments.items()}
        if name != "sgd":
            fixed["betas"] = (optimizer.beta1, optimizer.beta2)
        fixed |= {"scale": 1 / self._batch, "nesterov": kind == "NAG"}
        fixed |= {f"clip_{key}": value for key, value in self._clip.items()}
        schedule = optimizer.lr_scheduler
        return lambda updates: Rule(
            name, lr=optimizer.learning_rate if schedule is None else schedule(updates + 1), **fixed
        )

    def rules(self) -> list[tuple[int, Rule]]:
        """See training.servers.group.ServedLearner: parameters may have multipliers of their own."""
        rule, found = self._rule(self.updates), []
        for (lr, wd), of in itertools.groupby(self._trained, lambda each: (each.lr_mult, each.wd_mult)):
            own = replace(rule, lr=rule.lr * lr, weight_decay=rule.weight_decay * wd)
            found.append((sum(each.data().size for each in of), own))
        return found

    def update(self, batch_size: int) -> None:
        """See ServedLearner."""
        del batch_size
        self.updates += 1

    @property
    def progress(self) -> int:
        """See ServedLearner."""
        return self.updates

    @progress.setter
    def progress(self, value: int) -> None:
        self.updates = value

    def flat_weights(self) -> list[np.ndarray]:
        """See ServedLearner. Waits for all that was ordered: what is written may not be read meanwhile."""
        mx.nd.waitall()
        return [memory(each) for each in self.weights]

    def flat_gradients(self, *, used: bool) -> list[np.ndarray]:
        """See ServedLearner."""
        mx.nd.waitall()
        found = [memory(each) for each in self.gradients]
        for gradient in found if not used else ():
            gradient[:] = 0
        return found

    @property
    def measured(self) -> list[np.ndarray]:
        """See ServedLearner."""
        return [each.asnumpy().reshape(-1) for each in self.auxiliary]

    @measured.setter
    def measured(self, values: list[np.ndarray]) -> None:
        for array, value in zip(self.auxiliary, values, strict=True):
            array[:] = value.reshape(array.shape)

    def end_pass(self) -> None:
        """A pass over the training data is over: MXNet's schedules count updates."""

    def arrays(self) -> dict[str, np.ndarray]:
        """See training.backend.Learner: the optimizer's state is flat."""
        served = {f"optimizer/flat/{number}": each for number, each in enumerate(self.served or ())}
        return super().arrays() | served

    def settings(self) -> dict:
        """See training.backend.Learner."""
        return {"optimizer": f"{type(self.optimizer).__name__} on servers", "updates": self.updates}

    def restore(self, arrays: dict[str, np.ndarray], settings: dict | None) -> None:
        """See training.backend.Learner."""
        super().restore(arrays, None)
        if settings is None:
            return
        if settings["optimizer"] != (ours := self.settings()["optimizer"]):
            message = f"the checkpoint is of optimizer {settings['optimizer']}, the job uses {ours}"
            raise TrainingError("CheckpointInvalid", message)
        self.updates = settings["updates"]
        names = sorted(name for name in arrays if name.startswith("optimizer/flat/"))
        self.served = [arrays[name] for name in names]


def memory(array: mx.nd.NDArray) -> np.ndarray:
    """The array's own memory, flat, which nothing may use meanwhile."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), shape=(array.size,))
