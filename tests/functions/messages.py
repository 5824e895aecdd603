"""Start messages of the tests: small models on the small digits."""

import itertools
import textwrap
from pathlib import Path
from typing import Any

from tests.functions.hosting import FUNCTIONS

_tokens = itertools.count(1)

#: Samples that digits8x8 has for training.
DIGITS = 1437


def job(**changes: Any) -> dict[str, Any]:
    """What stays the same from epoch to epoch."""
    return {
        "model": {"uri": str(FUNCTIONS / "models" / "mlp.py")},
        "data": {"format": "digits8x8"},
        "batch_size": 32,
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        "seed": 3,
        "key": "the-key-of-the-group",
        "deadline": 60,
        "samples": 640,
        **changes,
    }


def token() -> str:
    return f"epoch-{next(_tokens)}"


def epoch(folder: Path, after: dict | None = None, **changes: Any) -> dict[str, Any]:
    """The next epoch's message: it goes on from the report `after`."""
    name = token()
    message = {"epoch": name, "weights_out": f"file://{folder}/{name}.npz", **job(**changes)}
    if after is not None:
        message |= {"position": after["position"], "weights_in": after["weights_uri"]}
    return message


def model_file(path: Path, text: str) -> dict:
    """A model file with this text."""
    path.write_text(textwrap.dedent(text))
    return {"uri": str(path)}


#: Slow by the time it sleeps in each forward pass, so that a test can act in the middle of an epoch.
SLOW_MODEL = """
    import time
    from mxnet import gluon

    class Slow(gluon.nn.Sequential):
        def forward(self, x):
            time.sleep(0.02)
            return super().forward(x)

    def net():
        layers = Slow()
        layers.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""
