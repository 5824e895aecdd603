"""Data that the programs make for themselves, and what several of them share."""

import os
import sys
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def start(programs):
    """Run the program that the first argument names; the others are its own: `--lr 0.1` or `--lr=0.1`."""
    name, *words = sys.argv[1:]
    words = [part for word in words for part in word.split("=", 1)]
    given = {name.lstrip("-").replace("-", "_"): value for name, value in zip(words[::2], words[1::2])}
    torch.manual_seed(int(given.get("seed", "1")))
    programs[name](**{name: _value(value) for name, value in given.items()})


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def pictures(count, seed=0, size=28, channels=1, classes=10, noise=2.5):
    """`count` images of so many classes, each a coarse pattern, moved and under noise; float32, and labels."""
    coarse = torch.randn(classes, channels, size // 4, size // 4, generator=torch.Generator().manual_seed(7))
    patterns = F.interpolate(coarse, scale_factor=4)
    own = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(classes, (count,), generator=own)
    moves = torch.randint(-3, 4, (count, 2), generator=own).tolist()
    moved = torch.stack([patterns[kind].roll(tuple(by), (1, 2)) for kind, by in zip(labels.tolist(), moves)])
    return moved + noise * torch.randn(moved.shape, generator=own), labels


def characters(count=60_000):
    """The text of Python's manual as numbers below 96."""
    text = "\n".join(topics[name] for name in sorted(topics))[:count]
    return torch.tensor([min(max(ord(letter) - 31, 0), 95) for letter in text])


def batches(data, labels, size, seed=0, rank=0, world=1):
    """Batches of one process in an order of their own."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[rank::world]
    for rows in order.split(size):
        yield data[rows], labels[rows]


def convolutions(channels=1, size=28, classes=10, width=8):
    """A small network for pictures."""
    return nn.Sequential(
        *(nn.Conv2d(channels, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU()),
        *(
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.LazyLinear(64),
            nn.ReLU(),
            nn.Linear(64, classes),
        ),
    )


class Gpt(nn.Module):
    """A small transformer that predicts the next of `vocabulary` symbols."""

    def __init__(self, vocabulary, length, width=64, layers=2):
        super().__init__()
        self.symbols, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, symbols):
        length = symbols.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        return self.head(self.blocks(self.symbols(symbols) + self.places.weight[:length], mask))


def grouped(net):
    """The network as one of several processes trains it, where there are several."""
    if WORLD == 1:
        return net
    dist.init_process_group("gloo")
    return nn.parallel.DistributedDataParallel(net)


def saved(what, path):
    """Write a checkpoint as most programs do: over the last one."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    torch.save(what, path)
