"""A wide multilayer perceptron: 1.9 million weights and little to compute, so communication takes most of the time.

On 28x28 images each step sends 7.5 MB of gradients to the servers and gets 7.5 MB of weights from them.
"""

from mxnet import gluon

#: Units of each hidden layer. The larger matrix is divided among the servers, the smaller is on one of them.
HIDDEN = (1024, 1024)
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
