"""ResNet-18 in PyTorch for grey images: the layers of ../resnet18.py, 11 million weights.

Source: He et al., Deep Residual Learning for Image Recognition, 2016 (the basic block, with CIFAR's stem).
"""

from torch import nn

#: Channels of each stage; every stage but the first halves the image.
STAGES = (64, 128, 256, 512)
BLOCKS = 2


def _convolution(before, after, kernel_size, stride=1):
    padding = kernel_size // 2
    layer = nn.Conv2d(before, after, kernel_size, stride, padding, bias=False)
    return layer, nn.BatchNorm2d(after)


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(*_convolution(before, after, 3, stride), nn.ReLU(), *_convolution(after, after, 3))
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(before, after, 1, stride))

    def forward(self, x):
        """relu(body(x) + shortcut(x))."""
        return nn.functional.relu(self.body(x) + self.shortcut(x))


class ResNet18(nn.Sequential):
    """Input: (batch, 1, 28, 28), or other sizes: the images are averaged before the last layer."""

    def __init__(self, classes=10):
        layers = [*_convolution(1, STAGES[0], 3), nn.ReLU()]
        before = STAGES[0]
        for stage, channels in enumerate(STAGES):
            for block in range(BLOCKS):
                layers.append(Block(before, channels, stride=2 if stage > 0 and block == 0 else 1))
                before = channels
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


loss = nn.CrossEntropyLoss()
