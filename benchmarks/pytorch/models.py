"""The three models whose speed `benchmarks.pytorch.speed` compares: a model file as jobs have it."""

import pydoc_data.topics

import torch
from torch import nn
from torch.nn import functional as F

LENGTH = 64


class LeNet(nn.Sequential):
    """431,080 weights, 28x28 digits."""

    def __init__(self):
        super().__init__(
            *(
                nn.Conv2d(1, 20, 5),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(20, 50, 5),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ),
            *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
        )


class Mlp(nn.Sequential):
    """10.1 million weights, 28x28 digits."""

    def __init__(self):
        super().__init__(
            *(nn.Flatten(), nn.Linear(784, 2600), nn.ReLU(), nn.Linear(2600, 2600), nn.ReLU()),
            *(nn.Linear(2600, 480), nn.ReLU(), nn.Linear(480, 10)),
        )


class Transformer(nn.Module):
    """A language model on bytes: two layers of width 64, its head tied to the embedding; 0.1 million weights."""

    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(256, 64), nn.Embedding(LENGTH, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)

    def forward(self, ids):
        """Scores of the next byte at each place, (batch, 256, length)."""
        mask = torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1)
        hidden = self.body(self.embedding(ids) + self.position.weight, mask=mask)
        return (hidden @ self.embedding.weight.T).transpose(1, 2)


class Windows(torch.utils.data.Dataset):
    """Each byte of a text with those before it."""

    def __init__(self, text):
        self.ids = torch.tensor(list(text))

    def __len__(self):
        return (len(self.ids) - 1) // LENGTH

    def __getitem__(self, number):
        window = self.ids[number * LENGTH : (number + 1) * LENGTH + 1]
        return window[:-1], window[1:]


def data(split):
    """The text of Python's own help topics: the transformer's data."""
    text = "".join(value for _, value in sorted(pydoc_data.topics.topics.items())).encode()
    return Windows(text[: 8 * len(text) // 10] if split == "train" else text[8 * len(text) // 10 :])


def loss(net, batch):
    """Cross entropy."""
    return F.cross_entropy(net(batch[0]), batch[1])
