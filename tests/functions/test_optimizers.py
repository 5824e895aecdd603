"""`coach validate` knows exactly the optimizers and arguments that MXNet has."""

import json

import pytest

from coach.jobfiles.optimizers import COMMON, FLAG, NUMBER, OPTIMIZERS, WORD
from tests.functions.conftest import run_python

pytestmark = pytest.mark.mxnet

#: Each optimizer of MXNet's registry with its arguments and their defaults, base classes included.
REGISTRY = """
import inspect, json
import mxnet as mx

def arguments(made):
    found = {}
    for each in made.__mro__:
        own = vars(each).get("__init__")
        if each is object or own is None:
            continue
        parameters = list(inspect.signature(own).parameters.values())[1:]
        named = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        for one in named:
            found.setdefault(one.name, None if one.default is one.empty else one.default)
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return found

print(json.dumps({name: arguments(made) for name, made in mx.optimizer.Optimizer.opt_registry.items()}))
"""

#: Makes each optimizer of the table as the functions do, each argument given.
CREATE = """
import json, sys
sys.path.insert(0, "functions")
from training.mxnet.optimizers import from_spec
for name, arguments in json.loads('SPECS').items():
    from_spec({"name": name, **arguments})
print("made")
"""

#: No plain value can stand for these.
OBJECTS = {"lr_scheduler", "param_dict", "param_idx2name", "sym"}
#: Arguments whose default is nothing: what they would be.
UNSET = {"clip_gradient", "clip_weights", "learning_rate", "lower_bound", "upper_bound"}


def kind(name: str, default: object) -> str:
    if isinstance(default, bool):
        return FLAG
    assert default is not None or name in UNSET, f"{name}: look what it is"
    return WORD if isinstance(default, str) else NUMBER


def test_the_table_of_optimizers_is_the_frameworks_own() -> None:
    registry = json.loads(run_python(REGISTRY).splitlines()[-1])
    real = {
        name: {key: kind(key, default) for key, default in arguments.items() if key not in OBJECTS}
        for name, arguments in registry.items()
    }
    assert {name: COMMON | further for name, further in OPTIMIZERS.items()} == real


def test_the_functions_make_every_optimizer_of_the_table_with_all_its_arguments() -> None:
    example = {NUMBER: 0.5, FLAG: True, WORD: "linear"}
    specs = {
        name: {key: example[one] for key, one in (COMMON | further).items()}
        for name, further in OPTIMIZERS.items()
    }
    assert run_python(CREATE.replace("SPECS", json.dumps(specs))).splitlines()[-1] == "made"
