"""PyTorch says which optimizers and schedules it has, and the functions make each of them."""

import json
import subprocess

import pytest

from coach.core.spec.training import Framework
from coach.handler.known_optimizers import optimizers_here
from coach.jobfiles.optimizers import FLAG, NUMBER, PAIR
from coach.platforms.local import pytorch_runtime
from tests.functions.hosting import ROOT

pytestmark = pytest.mark.pytorch

#: Makes each optimizer and each schedule as the functions do, all of their arguments given.
CREATE = """
import json, sys
sys.path.insert(0, "functions")
import torch
from training.pytorch.optimizers import create
net = torch.nn.Linear(2, 2)
for spec in json.loads('SPECS'):
    optimizer, schedule, _ = create(spec, net, None, "m.py")
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if schedule is not None:
        schedule.step()
print("made")
"""


def python(code: str) -> str:
    found = pytorch_runtime.torch().python
    ran = subprocess.run([found, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


def test_what_it_says_is_what_it_has() -> None:
    known = optimizers_here(Framework.PYTORCH)
    has = "[name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)]"
    there = json.loads(python(f"import json, torch; print(json.dumps({has}))"))
    assert known.optimizers.keys() == set(there) - {"Optimizer"}
    assert {name for name, one in known.optimizers.items() if one.unfit} == {"LBFGS", "SparseAdam"}
    assert known.optimizers["SGD"].arguments["nesterov"] == FLAG
    assert known.schedules["StepLR"].required == ("step_size",)
    assert all(known.schedules[name].unfit for name in ("LambdaLR", "ReduceLROnPlateau", "SequentialLR"))


def test_the_functions_make_each_of_them() -> None:
    known = optimizers_here(Framework.PYTORCH)
    example, special = {NUMBER: 0.5, FLAG: False, PAIR: [0.5, 0.9]}, {"etas": [0.5, 1.2]}
    specs = [
        {"name": name, "learning_rate": 0.1}
        | {key: special.get(key, example[kind]) for key, kind in one.arguments.items() if kind in example}
        for name, one in known.optimizers.items()
        if not one.unfit and name != "Muon"  # which takes matrices alone
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
    for name, one in known.schedules.items():
        if one.unfit:
            continue
        schedule = {"name": name} | {key: needed[key] for key in one.required}
        if name == "OneCycleLR":
            schedule["total_steps"] = 10
        specs.append({"name": "SGD", "learning_rate": 0.1, "momentum": 0.9, "schedule": schedule})
    assert python(CREATE.replace("SPECS", json.dumps(specs))) == "made"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"name": "Adamm"}, "torch.optim of PyTorch .* has no Adamm; did you mean Adam"),
        ({"name": "LBFGS"}, "LBFGS cannot be used: it computes the loss several times a step"),
        ({"name": "SGD", "schedule": {"name": "StepsLR"}}, "has no StepsLR; did you mean StepLR"),
        (
            {"name": "SGD", "schedule": {"name": "LambdaLR"}},
            "LambdaLR cannot be used: a job file cannot hold",
        ),
    ],
)
def test_the_functions_refuse_as_clearly_what_no_one_checked(spec: dict, said: str) -> None:
    code = CREATE.replace("SPECS", json.dumps([{"learning_rate": 0.1, **spec}]))
    with pytest.raises(AssertionError, match=said):
        python(code)
