"""ResNet-18 as it is used on CIFAR: a 3x3 stem without pooling, four stages of two basic blocks.

Source: He et al., Deep Residual Learning for Image Recognition, 2016 (the basic block, with CIFAR's stem).
"""

from mxnet import gluon

CLASSES = 10
#: Channels of each stage; every stage but the first halves the image.
STAGES = (64, 128, 256, 512)
BLOCKS = 2


class Block(gluon.nn.HybridBlock):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, channels, stride, changes_shape):
        super().__init__()
        self.body = gluon.nn.HybridSequential()
        self.body.add(
            gluon.nn.Conv2D(channels, kernel_size=3, strides=stride, padding=1, use_bias=False),
            gluon.nn.BatchNorm(),
            gluon.nn.Activation("relu"),
            gluon.nn.Conv2D(channels, kernel_size=3, padding=1, use_bias=False),
            gluon.nn.BatchNorm(),
        )
        self.shortcut = None
        if changes_shape:
            self.shortcut = gluon.nn.HybridSequential()
            self.shortcut.add(
                gluon.nn.Conv2D(channels, kernel_size=1, strides=stride, use_bias=False), gluon.nn.BatchNorm()
            )

    def hybrid_forward(self, F, x):
        """relu(body(x) + shortcut(x))."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return F.relu(self.body(x) + shortcut)


def net():
    """Input: (batch, 3, 32, 32), or other sizes: the images are averaged before the last layer."""
    layers = gluon.nn.HybridSequential()
    layers.add(
        gluon.nn.Conv2D(STAGES[0], kernel_size=3, padding=1, use_bias=False),
        gluon.nn.BatchNorm(),
        gluon.nn.Activation("relu"),
    )
    for stage, channels in enumerate(STAGES):
        for block in range(BLOCKS):
            first = stage > 0 and block == 0
            layers.add(Block(channels, stride=2 if first else 1, changes_shape=first))
    layers.add(gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(CLASSES))
    return layers


def loss():
    """Cross entropy, one value per sample."""
    return gluon.loss.SoftmaxCrossEntropyLoss()


def optimizer():
    """Used where the job names none."""
    return "sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 5e-4}
