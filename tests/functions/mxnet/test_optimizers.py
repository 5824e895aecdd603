"""MXNet says which optimizers it has, and the functions make each of them."""

import json

import pytest

from coach.core.spec.job import SERVED_OPTIMIZERS
from coach.core.spec.training import Framework
from coach.handler.known_optimizers import optimizers_here
from coach.jobfiles.optimizers import FLAG, NUMBER, WORD
from tests.functions.conftest import run_python

pytestmark = pytest.mark.mxnet

#: Makes each optimizer as the functions do, each argument given.
CREATE = """
import json, sys
sys.path.insert(0, "functions")
from training.mxnet.optimizers import from_spec
from training.mxnet.served import OPTIMIZERS
for name, arguments in json.loads('SPECS').items():
    from_spec({"name": name, **arguments})
print(json.dumps([name.lower() for name in OPTIMIZERS]))
"""


def test_what_it_says_is_what_it_has() -> None:
    known = optimizers_here(Framework.MXNET)
    changed = "another one: change this number, and the list in tests/jobfiles/mistakes_mxnet.txt"
    assert len(known.optimizers) == 19 and not known.schedules, changed
    sgd = known.optimizers["sgd"]
    assert sgd.arguments["momentum"] == NUMBER and sgd.arguments["lazy_update"] == FLAG
    assert "learning_rate" not in sgd.arguments and "lr_scheduler" not in sgd.arguments and not sgd.required


def test_the_functions_make_each_of_them_with_all_its_arguments() -> None:
    example = {NUMBER: 0.5, FLAG: True, WORD: "linear", "": 0.5}
    specs = {
        name: {key: example[kind] for key, kind in one.arguments.items()}
        for name, one in optimizers_here(Framework.MXNET).optimizers.items()
    }
    served = json.loads(run_python(CREATE.replace("SPECS", json.dumps(specs))).splitlines()[-1])
    assert served == list(SERVED_OPTIMIZERS), "OPTIMIZERS of functions/training/mxnet/served.py"
