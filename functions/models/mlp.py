"""A multilayer perceptron for small images of any size."""

from mxnet import gluon

#: Units of each hidden layer.
HIDDEN = (64, 32)
CLASSES = 10


def net():
    """Dense layers with rectifiers. Input: (batch, channels, height, width)."""
    layers = gluon.nn.HybridSequential()
    layers.add(gluon.nn.Flatten())
    for units in HIDDEN:
        layers.add(gluon.nn.Dense(units, activation="relu"))
    layers.add(gluon.nn.Dense(CLASSES))
    return layers


def loss():
    """Cross entropy, one value per sample."""
    return gluon.loss.SoftmaxCrossEntropyLoss()
