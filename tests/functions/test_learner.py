"""A learner by itself: its first weights are those that MXNet gives by computing, and its losses are exact sums."""

import json
import subprocess
from typing import Any

import pytest

from tests.functions.hosting import FUNCTIONS, PYTHON

pytestmark = pytest.mark.mxnet

#: Runs LEARNER with each of NETS in a process of its own, one after the other; MXNet is imported once for all.
SCRIPT = """
import json, os, sys, traceback, types
import numpy as np
from training import backend
from training.request import StartRequest
backend.current().warm_up()
import mxnet as mx
from mxnet import gluon
from training.mxnet.learner import MxnetLearner
for net in NETS:
    if (child := os.fork()) == 0:
        try:
            exec(net + LEARNER, globals())
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
"""

#: Makes a learner for `net`, does a step, and prints its weights before it and after it, and those that MXNet itself
#: gives them by computing.
LEARNER = """
def plain():
    mx.random.seed(3); np.random.seed(3)
    made = net()
    made.initialize(mx.init.Xavier())
    made(mx.nd.array(x[:1])).wait_to_read()
    return made

x = np.random.RandomState(1).rand(8, 1, 6, 6).astype(np.float32)
y = np.arange(8, dtype=np.float32) % 4
request = StartRequest(**{**REQUEST, "weights_in": None})
model = types.SimpleNamespace(net=net, loss=gluon.loss.SoftmaxCrossEntropyLoss)
computed = []
call = gluon.HybridBlock._call_cached_op
gluon.HybridBlock._call_cached_op = lambda *a: computed.append(1) or call(*a)
learner = MxnetLearner(request, model, ((x[:1], y[:1]), 1))
first = {name: value.copy() for name, value in learner.arrays().items()}
told = {
    "computed": len(computed),
    "equal": [
        bool(np.array_equal(parameter.data().asnumpy(), first["weights/" + name]))
        for name, parameter in plain()._collect_params_with_prefix().items()
    ],
}
learner.step([((x, y), 8)], 5)
learner.update(8)
after = learner.arrays()
told["moved"] = sum(not np.array_equal(first[name], after[name]) for name in first)
restored = MxnetLearner(StartRequest(**{**REQUEST, "weights_in": "somewhere"}), model, ((x[:1], y[:1]), 1))
restored.restore(after, learner.settings())
def total(often):
    learner, sums = MxnetLearner(request, model, ((x[:1], y[:1]), 1)), []
    for seed in range(40):
        learner.step([((x, y), 8)], seed)
        learner.update(8)
        if often or seed == 39:
            sums.append(learner.take_loss()[0])
    return sum(sums)

told["totals"] = [total(True), total(False)]
told["restored"] = all(bool(np.array_equal(after[name], value)) for name, value in restored.arrays().items())
told["evaluates"] = restored.evaluate([((x, y), 8)]) == learner.evaluate([((x, y), 8)])
print(json.dumps(told))
"""

HYBRID = """
def net():
    layers = gluon.nn.HybridSequential()
    layers.add(
        gluon.nn.Conv2D(3, kernel_size=3), gluon.nn.BatchNorm(), gluon.nn.Dense(5, activation="relu"), gluon.nn.Dense(4)
    )
    return layers
"""

#: Its graph says 36 inputs, its own forward() gives 72.
OWN_FORWARD = """
class Doubled(gluon.nn.HybridSequential):
    def forward(self, x):
        return super().forward(mx.nd.concat(x, x, dim=1))

def net():
    layers = Doubled()
    layers.add(gluon.nn.Dense(5), gluon.nn.Dense(4))
    return layers
"""

UNUSED = """
class Unused(gluon.nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.used = gluon.nn.Dense(4, in_units=36)
        self.unused = gluon.nn.Dense(3, in_units=2)  # and not trained
        for parameter in self.unused.collect_params().values():
            parameter.grad_req = "null"

    def hybrid_forward(self, F, x):
        return self.used(x)

net = Unused
"""


NETS = {HYBRID: False, OWN_FORWARD: True, UNUSED: True}
"""Each net, and whether its first weights are computed."""


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """What was printed of each net."""
    request = {
        "epoch": "e",
        "group": "g",
        "key": "the-key-of-the-group",
        "role": "worker",
        "rank": 0,
        "workers": 1,
        "servers": 1,
        "root": "127.0.0.1:9000",
        "host": "127.0.0.1",
        "deadline": 10.0,
        "model": {"uri": "net.py"},
        "seed": 3,
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
    }
    script = SCRIPT.replace("NETS", repr([*NETS])).replace("LEARNER", repr(LEARNER.replace("REQUEST", repr(request))))
    done = subprocess.run(
        [PYTHON, "-c", script], cwd=FUNCTIONS, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(NETS, map(json.loads, done.stdout.splitlines()[-len(NETS) :]), strict=True))


@pytest.mark.parametrize("net", NETS)
def test_first_weights_are_those_that_computing_gives(net: str, results: dict[str, dict[str, Any]]) -> None:
    result = results[net]
    if net != OWN_FORWARD:  # that one is never compiled, and computes all the same
        assert (result["computed"] > 0) == NETS[net]
    assert result["equal"] and all(result["equal"])
    assert result["moved"] >= 2
    assert result["totals"][0] == result["totals"][1], "the training loss depends on how often progress is reported"
    assert result["restored"] and result["evaluates"]
