"""LeNet in PyTorch for 28x28 digits: the layers of ../lenet.py, 431,080 weights."""

from torch import nn


class LeNet(nn.Sequential):
    """Two convolutions, two dense layers. Input: (batch, 1, 28, 28)."""

    def __init__(self, classes=10):
        super().__init__(
            nn.Conv2d(1, 20, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(800, 500),
            nn.ReLU(),
            nn.Linear(500, classes),
        )


loss = nn.CrossEntropyLoss()
