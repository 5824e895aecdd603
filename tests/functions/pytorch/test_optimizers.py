"""`coach validate` knows the optimizers and schedules that PyTorch has, and their arguments."""

import json
import subprocess

import pytest

from coach.jobfiles.pytorch_optimizers import (
    FLAG,
    NUMBER,
    NUMBERS,
    OPTIMIZERS,
    PAIR,
    REQUIRED,
    SCHEDULES,
    UNFIT_OPTIMIZERS,
    UNFIT_SCHEDULES,
    WORD,
)
from coach.platforms.local import pytorch_runtime
from tests.functions.hosting import ROOT

pytestmark = pytest.mark.pytorch

#: The version, and each class with its arguments: the kind of its default ("" where it has none).
SIGNATURES = """
import inspect, json
import torch

def arguments(made):
    found = {}
    for each in list(inspect.signature(made.__init__).parameters.values())[2:]:
        missing = each.default is each.empty or type(each.default) is object or "required" in repr(each.default)
        found[each.name] = "" if missing else type(each.default).__name__
    return found

def classes(module, base):
    return {
        name: arguments(made) for name, made in vars(module).items()
        if isinstance(made, type) and issubclass(made, base) and made is not base and not name.startswith("_")
    }

from torch.optim import lr_scheduler
base = getattr(lr_scheduler, "LRScheduler", None) or lr_scheduler._LRScheduler
schedules = classes(lr_scheduler, base) | {"ReduceLROnPlateau": {}}
version = int(torch.__version__.partition(".")[0])
print(json.dumps([version, classes(torch.optim, torch.optim.Optimizer), schedules]))
"""

#: Makes each optimizer and each schedule of the table as the functions do, all of their arguments given.
CREATE = """
import json, sys
sys.path.insert(0, "functions")
import torch
from training.pytorch.optimizers import create
net = torch.nn.Linear(2, 2)
for spec in json.loads('SPECS'):
    optimizer, schedule = create(spec, net, None, "m.py")
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if schedule is not None:
        schedule.step()
print("made")
"""

#: PyTorch 2 has these in addition.
SINCE_2 = {"capturable", "decoupled_weight_decay", "foreach", "fused", "maximize"}
#: Optimizers that only newer versions have, which the table leaves to the model file's optimizer().
NEWER = {"Adafactor", "Muon"}
#: What no job file needs: a step is not differentiated, and we count and print ourselves.
NOT_OURS = {"differentiable", "last_epoch", "verbose", "lr"}
#: Arguments that only a function can be.
OBJECTS = {"scale_fn"}
KINDS = {"bool": FLAG, "float": NUMBER, "int": NUMBER, "str": WORD, "tuple": PAIR}
#: Arguments without a default, or whose default is None.
UNSET = {"foreach": FLAG, "fused": FLAG, "milestones": NUMBERS, "momentum": NUMBER}


def python(code: str) -> str:
    found = pytorch_runtime.torch().python
    ran = subprocess.run([found, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


def kinds(arguments: dict[str, str]) -> dict[str, str]:
    return {
        name: UNSET.get(name) or KINDS.get(kind, NUMBER)
        for name, kind in arguments.items()
        if name not in NOT_OURS | OBJECTS
    }


@pytest.fixture(scope="module")
def signatures() -> tuple[int, dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    version, optimizers, schedules = json.loads(python(SIGNATURES))
    return version, optimizers, schedules


def test_the_table_of_optimizers_is_the_frameworks_own(signatures) -> None:
    version, optimizers, _ = signatures
    assert optimizers.keys() - NEWER == OPTIMIZERS.keys() | UNFIT_OPTIMIZERS.keys()
    for name, known in OPTIMIZERS.items():
        real = kinds(optimizers[name])
        assert real.items() <= known.items(), name
        assert known.keys() - real.keys() <= (SINCE_2 if version < 2 else {"decoupled_weight_decay"}), name


def test_the_table_of_schedules_is_the_frameworks_own(signatures) -> None:
    _, _, schedules = signatures
    assert SCHEDULES.keys() | UNFIT_SCHEDULES.keys() == schedules.keys()
    for name, known in SCHEDULES.items():
        assert kinds(schedules[name]) == known, name
        needed = {key for key, kind in schedules[name].items() if kind == ""}
        assert needed == set(REQUIRED.get(name, ())), name


def test_the_functions_make_all_of_the_table(signatures) -> None:
    _, optimizers, _ = signatures
    example, special = {NUMBER: 0.5, FLAG: False, PAIR: [0.5, 0.9]}, {"etas": [0.5, 1.2]}
    specs = [
        {"name": name, "learning_rate": 0.1}
        | {key: special.get(key, example[kind]) for key, kind in known.items() if key in optimizers[name]}
        for name, known in OPTIMIZERS.items()
    ]
    needed = {
        "T_max": 5,
        "T_0": 5,
        "base_lr": 0.1,
        "max_lr": 0.2,
        "gamma": 0.5,
        "milestones": [1, 3],
        "step_size": 2,
    }
    for name in SCHEDULES:
        schedule = {"name": name} | {key: needed[key] for key in REQUIRED.get(name, ())}
        if name == "OneCycleLR":
            schedule["total_steps"] = 10
        specs.append({"name": "SGD", "learning_rate": 0.1, "momentum": 0.9, "schedule": schedule})
    assert python(CREATE.replace("SPECS", json.dumps(specs))) == "made"
