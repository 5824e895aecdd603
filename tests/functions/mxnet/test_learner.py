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
    means = [each / 32 for each in sums]
    CLIP
    for parameter, mean in zip(parameters, means):
        parameter.grad()[:] = mean
    trainer.update(1)
saved = np.load(SAVED)
own = net._collect_params_with_prefix()
print(json.dumps([float(abs(saved["weights/" + name] - each.data().asnumpy()).max()) for name, each in own.items()]))
"""


def differences(folder: Path, report: dict, clip: str) -> list[float]:
    given = {
        "FUNCTIONS": str(FUNCTIONS),
        "MODEL": str(folder / "plain.py"),
        "SAVED": report["weights_uri"].removeprefix("file://"),
    }
    code = PLAIN.replace("CLIP", clip)
    for name, value in given.items():
        code = code.replace(name, json.dumps(value))
    return json.loads(run_python(code).splitlines()[-1])


@pytest.mark.parametrize(
    ("clip", "plain"),
    [
        (None, "pass"),
        ({"norm": 0.5}, "gluon.utils.clip_global_norm(means, 0.5)"),
        ({"value": 0.01}, "means = [each.clip(-0.01, 0.01) for each in means]"),
    ],
)
def test_micro_batches_and_clipping_are_as_in_a_loop_of_ones_own(
    gang: Gang, tmp_path: Path, clip: dict | None, plain: str
) -> None:
    model = model_file(tmp_path / "model.py", MODEL.replace("SMALLEST", "7")) | {"args": {"width": 12}}
    model_file(tmp_path / "plain.py", MODEL.replace("SMALLEST", "16"))
    given = {"model": model, "micro_batch": 7, "clip": clip, "evaluation_batch": 40}
    found = []
    for workers in (1, 2):
        gang.fresh_group()
        report = gang.epoch(workers, 1, **epoch(tmp_path, **given))
        found.append(report["metrics"])
        assert max(differences(tmp_path, report, plain)) < 1e-5
        if clip is not None and workers == 1:
            assert max(differences(tmp_path, report, "pass")) > 1e-3, "clipping changes nothing here"
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert (found[0]["a"], found[0]["b"], found[0]["c"]) == pytest.approx((1, 2, 3))
    assert 0.0 < found[0]["f1"] < 1.0
