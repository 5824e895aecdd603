"""The optimizers of MXNet 1.9.1 and the arguments that a job file can give them, without MXNet itself.

`tests/functions/test_optimizers.py` compares this table with MXNet's own registry, in the functions' environment.
"""

from __future__ import annotations

import difflib
from typing import NamedTuple

from coach.core.spec.training import Optimizer
from coach.jobfiles.diagnostics import show

NUMBER, FLAG, WORD = "a number", "true or false", "a word"

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


def mistakes(optimizer: Optimizer) -> list[Mistake]:
    """What MXNet would refuse of an optimizer. Names of optimizers may be in capitals, as in MXNet."""
    further = OPTIMIZERS.get(optimizer.name.lower())
    if further is None:
        right = _nearest(
            optimizer.name.lower(), list(OPTIMIZERS), "; the model file's optimizer() can give others"
        )
        return [Mistake("name", "MXNet has no such optimizer", show(optimizer.name), right)]
    known = COMMON | further
    given = {key: value for key, value in optimizer.arguments.items() if key != "learning_rate"}
    found = []
    for key, value in given.items():
        meant = SYNONYMS.get(key, key)
        if meant not in known:
            names = [name for name in known if name != "learning_rate"]
            problem = f"{optimizer.name} has no such argument"
            found.append(Mistake(key, problem, show(key), _nearest(key, names)))
        elif meant != key and meant in given:
            found.append(Mistake(key, f"said twice: it is another name of {meant}", show(value), meant))
        elif not _is(value, known[meant]):
            found.append(Mistake(key, f"not {known[meant]}", show(value), known[meant]))
    return found


def _is(value: bool | int | float | str, kind: str) -> bool:
    if kind == NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, bool if kind == FLAG else str)


def _nearest(name: str, known: list[str], otherwise: str = "") -> str:
    """The name that was probably meant, or all there are."""
    near = difflib.get_close_matches(name, known, 1, 0.6)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(sorted(known))}{otherwise}"
