"""A job's arguments for its model file: each function of the file gets those that it has a parameter for."""

import functools
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from training.errors import TrainingError
from training.model import model_file

#: What Coach calls of a model file, besides what makes the network.
FUNCTIONS = ("loss", "optimizer", "schedule", "data", "collate", "metrics", "final_metrics")


def bind(module: ModuleType, uri: str, net: str, arguments: Mapping[str, Any]) -> ModuleType:
    """The module with `arguments` given to its functions. Raises TrainingError ModelInvalid for one that none takes."""
    if not arguments:
        return module
    bound = ModuleType(module.__name__)
    vars(bound).update(vars(module))
    taken: set[str] = set()
    for name in (net, *FUNCTIONS):
        own = vars(module).get(name)
        if isinstance(own, Mapping):
            setattr(bound, name, {key: _given(each, key, uri, arguments, taken) for key, each in own.items()})
        elif callable(own):
            setattr(bound, name, _given(own, name, uri, arguments, taken))
    if unused := [name for name in arguments if name not in taken]:
        found = ", ".join(f"{each}()" for each in (net, *FUNCTIONS) if callable(vars(module).get(each)))
        message = f"no function of {model_file.shown(uri)} has a parameter {unused[0]}, as spec.model.args says"
        raise TrainingError("ModelInvalid", f"{message}; of {found} one should")
    return bound


def _given(own: Any, name: str, uri: str, arguments: Mapping[str, Any], taken: set[str]) -> Any:
    """The function or class with those of `arguments` that it has parameters for; all of them for a function's **."""
    try:
        asks = inspect.isroutine(own) or isinstance(own, type | functools.partial)
        parameters = list(inspect.signature(own).parameters.values()) if asks else []
    except (TypeError, ValueError):
        return own  # a built-in one, which says nothing of its parameters
    if inspect.isfunction(own) and any(each.kind is each.VAR_KEYWORD for each in parameters):
        chosen = dict(arguments)
    else:
        chosen = {each.name: arguments[each.name] for each in parameters if each.name in arguments}
    if not chosen:
        return own
    taken.update(chosen)
    _check_order(parameters, chosen, f"{name}() of {model_file.shown(uri)}")
    return functools.partial(own, **chosen)


def _check_order(parameters: Iterable[inspect.Parameter], chosen: Mapping[str, Any], where: str) -> None:
    """Coach gives what it has by position, so arguments have to come after that."""
    before = ""
    for each in parameters:
        if each.name in chosen:
            before = before or each.name
        elif before and each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD:
            message = f"{where}: its parameter {before}, an argument of the job, comes before {each.name}"
            raise TrainingError("ModelInvalid", f"{message}; write it after all that Coach gives")
