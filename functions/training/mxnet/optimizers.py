"""MXNet optimizers from a start message, and their state as arrays and JSON (MXNet itself would pickle it)."""

from types import ModuleType
from typing import Any

import mxnet as mx
import numpy as np

from training.errors import TrainingError
from training.model import model_file
from training.model.catalogue import classes

#: When neither the job nor the model file names one.
DEFAULT = {"name": "sgd", "learning_rate": 0.01}


#: Arguments for which no plain value can stand.
_OBJECTS = ("learning_rate", "lr_scheduler", "param_dict", "param_idx2name", "sym")


def catalogue() -> dict:
    """See training.model.catalogue."""
    optimizers = classes(mx.optimizer.Optimizer.opt_registry, {}, _OBJECTS)
    return {"version": mx.__version__, "file": mx.libinfo.__file__, "optimizers": optimizers, "schedules": {}}


def create(spec: dict | None, model: ModuleType | None, uri: str) -> mx.optimizer.Optimizer:
    """The job's optimizer, else the model file's optimizer(), else plain SGD.

    `spec` is {"name", **MXNet's arguments}; `weight_decay` may stand for MXNet's `wd`, and `schedule` is
    {"name": <class in mx.lr_scheduler>, **arguments}. Raises TrainingError BadRequest or ModelInvalid.
    """
    own = getattr(model, "optimizer", None)
    if spec is None and callable(own):
        with model_file.users_code(uri):
            made = own()
            if isinstance(made, mx.optimizer.Optimizer):
                return made
            name, arguments = made
            return from_spec({"name": name, **arguments})
    try:
        return from_spec(spec or DEFAULT)
    except Exception as error:
        raise TrainingError("BadRequest", f"optimizer {spec}: {error}") from error


def from_spec(spec: dict) -> mx.optimizer.Optimizer:
    """An optimizer from its JSON form. Raises whatever MXNet does for a name or argument it does not know."""
    arguments = {key: value for key, value in spec.items() if key not in ("name", "weight_decay", "schedule")}
    if "weight_decay" in spec:
        arguments["wd"] = spec["weight_decay"]
    if spec.get("schedule"):
        schedule = dict(spec["schedule"])
        arguments["lr_scheduler"] = getattr(mx.lr_scheduler, schedule.pop("name"))(**schedule)
    return mx.optimizer.create(spec["name"], **arguments)


def state_arrays(updater: Any, names: list[str]) -> dict[str, np.ndarray]:
    """The optimizer's arrays, e.g. momenta: `optimizer/<weight's name>/<number>`."""
    arrays = {}
    for index, state in updater.states.items():
        for number, array in enumerate(_flat(state)):
            arrays[f"optimizer/{names[index]}/{number}"] = array.asnumpy()
    return arrays


def settings(optimizer: mx.optimizer.Optimizer) -> dict:
    """Counts, and what the learning-rate schedule remembers."""
    schedule = optimizer.lr_scheduler
    return {
        "optimizer": type(optimizer).__name__,
        "updates": optimizer.num_update,
        "counts": {str(index): count for index, count in optimizer._index_update_count.items()},
        "schedule": _plain(vars(schedule)) if schedule is not None else None,
    }


def restore(updater: Any, names: list[str], arrays: dict[str, np.ndarray], saved: dict) -> None:
    """Undo state_arrays and settings. Raises TrainingError CheckpointInvalid when they belong to another optimizer."""
    optimizer = updater.optimizer
    if saved["optimizer"] != type(optimizer).__name__:
        message = f"the checkpoint is of optimizer {saved['optimizer']}, the job uses {type(optimizer).__name__}"
        raise TrainingError("CheckpointInvalid", message)
    if not saved["counts"]:
        return  # written by an asynchronous group: the optimizer's state stayed on its servers
    for index, name in enumerate(names):
        state = optimizer.create_state_multi_precision(index, optimizer.param_dict[index].data())
        for number, array in enumerate(_flat(state)):
            stored = arrays.get(f"optimizer/{name}/{number}")
            if stored is None or stored.shape != array.shape:
                raise TrainingError("CheckpointInvalid", f"the checkpoint has no fitting optimizer state for {name}")
            array[:] = mx.nd.array(stored, dtype=stored.dtype)
        updater.states[index] = state
        updater.states_synced[index] = True
    optimizer.num_update = saved["updates"]
    counts = {int(index): count for index, count in saved["counts"].items()}
    optimizer._all_index_update_counts[0] = counts
    optimizer._index_update_count = counts
    if optimizer.lr_scheduler is not None and saved["schedule"] is not None:
        vars(optimizer.lr_scheduler).update(saved["schedule"])


def _flat(state: Any) -> list[mx.nd.NDArray]:
    if state is None:
        return []
    return [state] if isinstance(state, mx.nd.NDArray) else [array for part in state for array in _flat(part)]


def _plain(values: dict) -> dict:
    return {key: value for key, value in values.items() if isinstance(value, bool | int | float | str | list)}
