"""What a job file says of the steps is what a user's own gluon loop would do, with any number of workers."""

import json
from pathlib import Path

import pytest

from tests.functions.conftest import run_python
from tests.functions.hosting import FUNCTIONS, Gang
from tests.functions.messages import epoch, model_file

pytestmark = pytest.mark.mxnet

#: The tests look at the samples that come at once; F1 of the even digits is no mean.
MODEL = """
    import mxnet as mx
    from mxnet import autograd, gluon

    class Small(gluon.nn.Block):
        def forward(self, x):
            assert len(x) <= (SMALLEST if autograd.is_training() else 40), len(x)
            return x

    def net(width):
        layers = gluon.nn.Sequential()
        layers.add(Small(), gluon.nn.Flatten(), gluon.nn.Dense(width, activation="relu"), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()

    def metrics(outputs, batch):
        said, right = outputs.argmax(axis=1) % 2, batch[1] % 2
        mean = lambda each: each.mean().asscalar()
        return {"tp": mean(said * right), "wrong": mean((said - right).abs()), "a": 1, "b": 2, "c": 3}

    def final_metrics(means):
        return {**means, "f1": 2 * means["tp"] / (2 * means["tp"] + means["wrong"])}
"""

#: Prints, of each loop in LOOPS (what it does to the mean gradients) and each file in SAVED, the largest differences.
PLAIN = """
import json, random, sys
sys.path.insert(0, FUNCTIONS)
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from training.data import formats
from training.data.dataset import Stream
namespace = {}
exec(open(MODEL).read(), namespace)
def trained(clip):
    mx.random.seed(3); np.random.seed(3); random.seed(3)
    data, stream = formats.load("sklearn:digits", "digits8x8", None, None), Stream(1437, 3)
    net, loss = namespace["net"](12), namespace["loss"]()
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(data.train.rows(slice(0, 1))[0]))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=None)
    parameters = net.collect_params().values()
    for position in range(0, 640, 32):
        x, y = data.train.rows(stream.rows(position, 32))
        sums = None
        for start in range(0, 32, 16):
            with autograd.record():
                losses = loss(net(mx.nd.array(x[start : start + 16])), mx.nd.array(y[start : start + 16]))
            losses.backward()
            some = [each.grad().copy() for each in parameters]
            sums = some if sums is None else [one + other for one, other in zip(sums, some)]
        means = clip([each / 32 for each in sums])
        for parameter, mean in zip(parameters, means):
            parameter.grad()[:] = mean
        trainer.update(1)
    return {name: each.data().asnumpy() for name, each in net._collect_params_with_prefix().items()}

def norm(means):
    gluon.utils.clip_global_norm(means, 0.5)
    return means

def value(means):
    return [each.clip(-0.01, 0.01) for each in means]

found = []
for loop in LOOPS:
    own = trained({"none": lambda means: means, "norm": norm, "value": value}[loop])
    files = [np.load(path) for path in SAVED]
    found.append([max(float(abs(saved["weights/" + n] - own[n]).max()) for n in own) for saved in files])
print(json.dumps(found))
"""


def differences(folder: Path, reports: list[dict], *loops: str) -> list[list[float]]:
    """Of each loop and each report."""
    given = {
        "FUNCTIONS": str(FUNCTIONS),
        "MODEL": str(folder / "plain.py"),
        "SAVED": [report["weights_uri"].removeprefix("file://") for report in reports],
        "LOOPS": loops,
    }
    code = PLAIN
    for name, value in given.items():
        code = code.replace(name, json.dumps(value))
    return json.loads(run_python(code).splitlines()[-1])


@pytest.mark.parametrize("clip", [pytest.param({}, marks=pytest.mark.full), {"norm": 0.5}, {"value": 0.01}])
def test_micro_batches_and_clipping_are_as_in_a_loop_of_ones_own(gang: Gang, tmp_path: Path, clip: dict) -> None:
    model = model_file(tmp_path / "model.py", MODEL.replace("SMALLEST", "7")) | {"args": {"width": 12}}
    model_file(tmp_path / "plain.py", MODEL.replace("SMALLEST", "16"))
    given = {"model": model, "micro_batch": 7, "clip": clip or None, "evaluation_batch": 40}
    reports = []
    for workers in (1, 2):
        gang.fresh_group()
        reports.append(gang.epoch(workers, 1, **epoch(tmp_path, **given)))
    found = [report["metrics"] for report in reports]
    same, unclipped = differences(tmp_path, reports, *clip or ["none"], "none")
    assert max(same) < 1e-5
    assert not clip or min(unclipped) > 1e-3, "clipping changes nothing here"
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert (found[0]["a"], found[0]["b"], found[0]["c"]) == pytest.approx((1, 2, 3))
    assert 0.0 < found[0]["f1"] < 1.0
