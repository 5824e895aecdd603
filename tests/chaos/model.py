"""A perceptron that takes its time, so that an epoch has instants to be hit at; sleeping costs no processor."""

import time

from mxnet import gluon

#: Seconds of a forward pass.
PAUSE = 0.004


class Slow(gluon.Block):
    """Lets its input through, a little later."""

    def forward(self, x):
        """The same as came in."""
        time.sleep(PAUSE)
        return x


def net():
    """Input: (batch, 1, 8, 8)."""
    layers = gluon.nn.Sequential()
    layers.add(Slow(), gluon.nn.Flatten(), gluon.nn.Dense(24, activation="relu"), gluon.nn.Dense(10))
    return layers


def loss():
    """Cross entropy, one value per sample."""
    return gluon.loss.SoftmaxCrossEntropyLoss()
