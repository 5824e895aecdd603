"""PyTorch optimizers and learning-rate schedules from a start message or the model file."""

import copy
import difflib
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import torch

from training.errors import TrainingError
from training.model import model_file
from training.model.catalogue import classes

Optimizer = torch.optim.Optimizer

#: When neither the job nor the model file names one.
DEFAULT = {"name": "SGD", "learning_rate": 0.01}

#: What PyTorch has and cannot be used here, and why.
UNFIT = {
    "LBFGS": "it computes the loss several times a step, by a closure that Coach does not have",
    "SparseAdam": "it takes sparse gradients only, and gradients are summed as dense ones",
}

#: When a schedule is stepped: after each training step, or after each pass over the training data.
INTERVALS = ("step", "epoch")
#: When one is that follows a metric: after the evaluation at the end of each epoch of the job.
FOLLOWS = "evaluation:"

#: Schedules that a job file cannot say, and why.
_UNSAYABLE = {
    "ChainedScheduler": "a job file has one schedule",
    "LambdaLR": "a job file cannot hold a function",
    "MultiplicativeLR": "a job file cannot hold a function",
    "ReduceLROnPlateau": "it follows a metric, which the model file's schedule() says",
    "SequentialLR": "a job file has one schedule",
}
#: Arguments that no job file needs, or for which no plain value can stand.
_NOT_OURS = ("params", "lr", "optimizer", "differentiable", "last_epoch", "verbose", "scale_fn")


def catalogue() -> dict:
    """See training.model.catalogue."""
    schedules = torch.optim.lr_scheduler
    base = getattr(schedules, "LRScheduler", None) or schedules._LRScheduler
    return {
        "version": torch.__version__,
        "file": torch.version.__file__,
        "optimizers": classes(_classes(torch.optim, Optimizer), UNFIT, _NOT_OURS),
        "schedules": classes(_classes(schedules, (base, schedules.ReduceLROnPlateau)), UNFIT | _UNSAYABLE, _NOT_OURS),
    }


def _classes(module: ModuleType, base: Any) -> dict[str, type]:
    bases = base if isinstance(base, tuple) else (base,)
    return {
        name: made
        for name, made in vars(module).items()
        if isinstance(made, type) and issubclass(made, bases) and not name.startswith("_")
        if made not in (Optimizer, bases[0])
    }


def create(spec: dict | None, net: torch.nn.Module, model: ModuleType, uri: str) -> tuple[Optimizer, Any, str]:
    """The optimizer, its schedule (None without one), and whether that is stepped after each "step" or "epoch", or
    with a metric: "evaluation:loss".

    The job's, else the model file's optimizer(net) or optimizer(parameters) with its schedule(optimizer), else plain
    SGD. `spec` is {"name", "learning_rate", "schedule": {"name", "interval", ...} or nothing, **PyTorch's arguments}.
    Raises TrainingError BadRequest or ModelInvalid.
    """
    own = getattr(model, "optimizer", None)
    if spec is None and own is not None:
        with model_file.users_code(uri):
            optimizer = _of_model_file(own, net)
            return optimizer, *_schedule(getattr(model, "schedule", None), optimizer)
    try:
        return _from_spec(spec or DEFAULT, net)
    except Exception as error:
        raise TrainingError("BadRequest", f"optimizer {spec}: {error}") from error


def _of_model_file(own: Any, net: torch.nn.Module) -> Optimizer:
    """Its one parameter is the net, or the net's parameters where it is named so."""
    if not callable(own):
        kind = type(own).__name__
        raise TypeError(f"optimizer is a {kind}; write `def optimizer(net): return ...`: Coach makes the net")
    names = list(inspect.signature(own).parameters)
    made = own(net.parameters() if names and names[0].startswith("param") else net)
    if not isinstance(made, Optimizer):
        raise TypeError(f"optimizer() returned {type(made).__name__}, no torch.optim.Optimizer")
    if why := UNFIT.get(type(made).__name__):
        raise TypeError(f"{type(made).__name__} cannot be used: {why}")
    return made


def _schedule(own: Any, optimizer: Optimizer) -> tuple[Any, str]:
    """A model file may return a schedule, or as Lightning has it {"scheduler": a schedule, "interval": "epoch"}, with
    "monitor": "the metric's name" for a ReduceLROnPlateau.
    """
    if own is None:
        return None, "step"
    if not callable(own):
        raise TypeError(f"schedule is a {type(own).__name__}; write `def schedule(optimizer): return ...`")
    made, interval, metric = own(optimizer), "step", "loss"
    if isinstance(made, Mapping):
        interval, metric = made.get("interval", "epoch"), made.get("monitor", metric)
        made = made.get("scheduler")
    if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau) and interval in INTERVALS:
        return made, f"{FOLLOWS}{metric}"
    if interval not in INTERVALS or not hasattr(made, "step"):
        right = 'a schedule, or {"scheduler": a schedule, "interval": "step" or "epoch"}'
        raise TypeError(f"schedule() has to return {right}; it returned {type(made).__name__}, {interval!r}")
    return made, interval


def _from_spec(spec: dict, net: torch.nn.Module) -> tuple[Optimizer, Any, str]:
    arguments = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in spec.items()
        if key not in ("name", "learning_rate", "schedule")
    }
    kinds = {name.lower(): each for name, each in vars(torch.optim).items() if isinstance(each, type)}
    kind = kinds.get(spec["name"].lower())
    if kind is None or not issubclass(kind, Optimizer):
        raise ValueError(_none("torch.optim", spec["name"], _classes(torch.optim, Optimizer)))
    if why := UNFIT.get(kind.__name__):
        raise ValueError(f"{kind.__name__} cannot be used: {why}")
    trained = [each for each in net.parameters() if each.requires_grad]
    made = kind(trained, lr=spec["learning_rate"], **arguments)
    schedule = spec.get("schedule")
    if not schedule:
        return made, None, "step"
    interval = schedule.get("interval", "step")
    rest = {key: value for key, value in schedule.items() if key not in ("name", "interval")}
    found = catalogue()["schedules"]
    if schedule["name"] not in found:
        raise ValueError(_none("torch.optim.lr_scheduler", schedule["name"], found))
    if why := found[schedule["name"]].get("unfit"):
        raise ValueError(f"{schedule['name']} cannot be used: {why}")
    return made, getattr(torch.optim.lr_scheduler, schedule["name"])(made, **rest), interval


def _none(module: str, name: str, found: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), folded := {each.lower(): each for each in found}, 1, 0.6)
    meant = f"did you mean {folded[near[0]]}?" if near else f"it has {', '.join(sorted(found))}"
    return f"{module} of PyTorch {torch.__version__} has no {name}; {meant}"


def state(optimizer: Optimizer, schedule: Any) -> dict:
    """Both state_dicts, copied: training may go on while they are written."""
    plain = copy.deepcopy(optimizer.state_dict())
    return {"optimizer_state_dict": plain, "scheduler_state_dict": schedule_state(schedule)}


def schedule_state(schedule: Any) -> dict | None:
    """A schedule's state_dict, as far as it is plain."""
    return None if schedule is None else _without_objects(schedule.state_dict())


def restore_schedule(schedule: Any, saved: dict | None) -> None:
    """Undo schedule_state."""
    if schedule is not None and saved is not None:
        schedule.load_state_dict({**schedule.state_dict(), **saved})


def restore(optimizer: Optimizer, schedule: Any, saved: dict) -> None:
    """Undo `state`. Raises TrainingError CheckpointInvalid when it belongs to another optimizer."""
    try:
        # load_state_dict takes any state that has as many parameters: one of another optimizer shows at the next step.
        groups = saved["optimizer_state_dict"]["param_groups"]
        if [set(each) for each in groups] != [set(each) for each in optimizer.state_dict()["param_groups"]]:
            raise ValueError("its settings are of another optimizer")
        optimizer.load_state_dict(saved["optimizer_state_dict"])
    except (ValueError, KeyError, TypeError) as error:
        message = f"the checkpoint does not fit {type(optimizer).__name__}: {error}"
        raise TrainingError("CheckpointInvalid", message) from error
    restore_schedule(schedule, saved["scheduler_state_dict"])


def _without_objects(values: dict) -> dict:
    """What torch.load(weights_only=True) reads; functions, such as a LambdaLR's, come from the job again."""
    return {
        key: value
        for key, value in values.items()
        if value is None
        or isinstance(value, bool | int | float | str)
        or (isinstance(value, list) and all(isinstance(each, bool | int | float | str) for each in value))
    }
