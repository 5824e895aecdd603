"""LeNet as MXNet's own examples have it, for 28x28 digits: 431,080 weights."""

from mxnet import gluon

CLASSES = 10


def net(padding=0, dense=(500,)):
    """Two convolutions, then dense layers of these units. Input: (batch, channels, height, width), at least 16x16.

    With padding=2 it takes images of 8x8 and more, and computes three times as much on 28x28 ones.
    """
    layers = gluon.nn.HybridSequential()
    layers.add(
        gluon.nn.Conv2D(20, kernel_size=5, padding=padding, activation="relu"),
        gluon.nn.MaxPool2D(pool_size=2),
        gluon.nn.Conv2D(50, kernel_size=5, padding=padding, activation="relu"),
        gluon.nn.MaxPool2D(pool_size=2),
        *(gluon.nn.Dense(units, activation="relu") for units in dense),
        gluon.nn.Dense(CLASSES),
    )
    return layers


def loss():
    """Cross entropy, one value per sample."""
    return gluon.loss.SoftmaxCrossEntropyLoss()


def optimizer():
    """Used where the job names none."""
    return "sgd", {"learning_rate": 0.05, "momentum": 0.9}
