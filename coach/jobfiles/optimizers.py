"""What a framework would refuse of a job's optimizer, without the framework itself.

This has the optimizers of MXNet 1.9.1; `coach.jobfiles.pytorch_optimizers` has PyTorch's.
`tests/functions/test_optimizers.py` compares the table with MXNet's own registry, in the functions' environment.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coach.core.spec.training import Framework, Optimizer, Schedule
from coach.jobfiles import pytorch_optimizers as pytorch
from coach.jobfiles.diagnostics import show
from coach.jobfiles.pytorch_optimizers import FLAG, NUMBER, NUMBERS, PAIR, WORD

#: Arguments of every optimizer. Those that are objects in Python, such as `lr_scheduler`, cannot be in a job file.
COMMON = {
    "begin_num_update": NUMBER,
    "clip_gradient": NUMBER,
    "learning_rate": NUMBER,
    "multi_precision": FLAG,
    "rescale_grad": NUMBER,
    "wd": NUMBER,
}
_ADAM = {"beta1": NUMBER, "beta2": NUMBER, "epsilon": NUMBER}
_SGD = {"momentum": NUMBER, "lazy_update": FLAG}

#: Further arguments of each optimizer, by its name in MXNet's registry.
OPTIMIZERS: dict[str, dict[str, str]] = {
    "adadelta": {"rho": NUMBER, "epsilon": NUMBER},
    "adagrad": {"eps": NUMBER},
    "adam": {**_ADAM, "lazy_update": FLAG},
    "adamax": {"beta1": NUMBER, "beta2": NUMBER},
    "ccsgd": _SGD,
    "dcasgd": {"momentum": NUMBER, "lamda": NUMBER},
    "ftml": _ADAM,
    "ftrl": {"lamda1": NUMBER, "beta": NUMBER},
    "groupadagrad": {"eps": NUMBER},
    "lamb": {**_ADAM, "lower_bound": NUMBER, "upper_bound": NUMBER, "bias_correction": FLAG},
    "lars": {**_SGD, "eta": NUMBER, "eps": NUMBER, "momentum_correction": FLAG},
    "lbsgd": {
        "momentum": NUMBER,
        "warmup_strategy": WORD,
        "warmup_epochs": NUMBER,
        "batch_scale": NUMBER,
        "updates_per_epoch": NUMBER,
        "begin_epoch": NUMBER,
        "num_epochs": NUMBER,
    },
    "nadam": {**_ADAM, "schedule_decay": NUMBER},
    "nag": {"momentum": NUMBER},
    "rmsprop": {
        "gamma1": NUMBER,
        "gamma2": NUMBER,
        "epsilon": NUMBER,
        "centered": FLAG,
        "clip_weights": NUMBER,
    },
    "sgd": _SGD,
    "sgld": {},
    "signum": {"momentum": NUMBER, "wd_lh": NUMBER},
    "test": {},
}

#: Another name of an argument, which the functions take too.
SYNONYMS = {"weight_decay": "wd"}


class Mistake(NamedTuple):
    """What is wrong with the field `key` of an optimizer, and what would be right there."""

    key: str
    problem: str
    seen: str
    right: str


_ELSEWHERE = "; the model file's optimizer() can give others"


def mistakes(optimizer: Optimizer, framework: Framework) -> list[Mistake]:
    """What the framework would refuse of an optimizer. Names of optimizers may have other capitals than it has."""
    given = {key: value for key, value in optimizer.arguments.items() if key != "learning_rate"}
    if framework is Framework.PYTORCH:
        found = list(_pytorch(optimizer.name, given))
        return found + (list(_schedule(optimizer.schedule)) if optimizer.schedule else [])
    further = OPTIMIZERS.get(optimizer.name.lower())
    if further is None:
        right = _nearest(optimizer.name.lower(), list(OPTIMIZERS), _ELSEWHERE)
        return [Mistake("name", "MXNet has no such optimizer", show(optimizer.name), right)]
    known = COMMON | further
    del known["learning_rate"]
    return list(_arguments(optimizer.name, given, known, SYNONYMS))


def _pytorch(name: str, given: Mapping[str, Any]) -> Iterator[Mistake]:
    names = {each.lower(): each for each in (*pytorch.OPTIMIZERS, *pytorch.UNFIT_OPTIMIZERS)}
    spelled = names.get(name.lower(), "")
    if spelled in pytorch.UNFIT_OPTIMIZERS:
        right = f"one of {', '.join(pytorch.OPTIMIZERS)}"
        yield Mistake("name", f"not here: {pytorch.UNFIT_OPTIMIZERS[spelled]}", show(name), right)
    elif not spelled:
        right = _nearest(name, list(pytorch.OPTIMIZERS), _ELSEWHERE)
        yield Mistake("name", "torch.optim has no such optimizer", show(name), right)
    else:
        yield from _arguments(spelled, given, pytorch.OPTIMIZERS[spelled], {})


def _schedule(schedule: Schedule) -> Iterator[Mistake]:
    name, given = schedule.name, schedule.arguments
    if name in pytorch.UNFIT_SCHEDULES:
        problem = f"not here: {pytorch.UNFIT_SCHEDULES[name]}"
        right = f"one of {', '.join(pytorch.SCHEDULES)}; or the model file's schedule(optimizer)"
        yield Mistake("schedule.name", problem, show(name), right)
    elif name not in pytorch.SCHEDULES:
        right = _nearest(name, list(pytorch.SCHEDULES))
        yield Mistake("schedule.name", "torch.optim.lr_scheduler has no such schedule", show(name), right)
    else:
        known = pytorch.SCHEDULES[name]
        for key, *rest in _arguments(name, given, known, {}):
            yield Mistake(f"schedule.{key}", *rest)
        for key in pytorch.REQUIRED.get(name, ()):
            if key not in given:
                yield Mistake("schedule.name", f"{name} needs {key}", "not there", f"{key}: {known[key]}")


def _arguments(
    name: str, given: Mapping[str, Any], known: Mapping[str, str], synonyms: Mapping[str, str]
) -> Iterator[Mistake]:
    for key, value in given.items():
        meant = synonyms.get(key, key)
        if meant not in known:
            yield Mistake(key, f"{name} has no such argument", show(key), _nearest(key, list(known)))
        elif meant != key and meant in given:
            yield Mistake(key, f"said twice: it is another name of {meant}", show(value), meant)
        elif not _is(value, known[meant]):
            yield Mistake(key, f"not {known[meant]}", show(value), known[meant])


def _is(value: Any, kind: str) -> bool:
    if kind == NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind in (PAIR, NUMBERS):
        return isinstance(value, tuple) and (kind == NUMBERS or len(value) == 2)
    return isinstance(value, bool if kind == FLAG else str)


def _nearest(name: str, known: list[str], otherwise: str = "") -> str:
    """The name that was probably meant, or all there are."""
    folded = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), folded, 1, 0.6)
    return f"did you mean {folded[near[0]]}?" if near else f"one of {', '.join(sorted(known))}{otherwise}"
