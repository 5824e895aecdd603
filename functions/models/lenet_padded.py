"""LeNet with padded convolutions: for images of 8x8 and more, and three times the computing on 28x28 ones."""

from mxnet import gluon

CLASSES = 10


def net():
    """Two convolutions, three dense layers. Input: (batch, channels, height, width)."""
    layers = gluon.nn.HybridSequential()
    layers.add(
        gluon.nn.Conv2D(20, kernel_size=5, padding=2, activation="relu"),
        gluon.nn.MaxPool2D(pool_size=2),
        gluon.nn.Conv2D(50, kernel_size=5, padding=2, activation="relu"),
        gluon.nn.MaxPool2D(pool_size=2),
        gluon.nn.Dense(120, activation="relu"),
        gluon.nn.Dense(84, activation="relu"),
        gluon.nn.Dense(CLASSES),
    )
    return layers


def loss():
    """Cross entropy, one value per sample."""
    return gluon.loss.SoftmaxCrossEntropyLoss()


def optimizer():
    """Used where the job names none."""
    return "sgd", {"learning_rate": 0.05, "momentum": 0.9}
