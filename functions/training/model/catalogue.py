"""Which optimizers and schedules the framework of this process has: `python -m training.model.catalogue` prints JSON.

`{"version": ..., "file": one that changes with the version, "optimizers": {...}, "schedules": {...}}`; each class by
its name is `{"arguments": {name: kind}, "required": [name]}`, or `{"unfit": why it cannot be used}`. A kind is one of
KINDS, or empty where a default of None shows none.
"""

import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from training import backend

FLAG, NUMBER, PAIR, WORD = "true or false", "a number", "two numbers", "a word"


def described(made: type, without: Iterable[str]) -> dict:
    """The arguments of a class, its bases' included where it hands over what it does not know."""
    found: dict[str, inspect.Parameter] = {}
    for each in made.__mro__:
        own = vars(each).get("__init__")
        if each is object or own is None:
            continue
        parameters = list(inspect.signature(own).parameters.values())[1:]
        for one in parameters:
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                found.setdefault(one.name, one)
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    named = {name: one.default for name, one in found.items() if name not in without}
    required = [name for name, default in named.items() if _is_required(default)]
    return {"arguments": {name: _kind(default) for name, default in named.items()}, "required": required}


def _is_required(default: Any) -> bool:
    # PyTorch 1.13 has an object of its own for what has no default.
    return default is inspect.Parameter.empty or "required parameter" in repr(default)


def _kind(default: Any) -> str:
    if isinstance(default, bool):
        return FLAG
    if isinstance(default, int | float):
        return NUMBER
    if isinstance(default, tuple) and len(default) == 2:
        return PAIR
    return WORD if isinstance(default, str) else ""


def classes(found: Mapping[str, type], unfit: Mapping[str, str], without: Iterable[str]) -> dict:
    """Each class as the module's description says."""
    return {
        name: {"unfit": unfit[name]} if name in unfit else described(made, without)
        for name, made in sorted(found.items())
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(backend.current().catalogue()) + "\n")
