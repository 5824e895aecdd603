"""Curves that rest and then drop, recorded by training: results/early-ends/plateaus.csv.

    /usr/bin/python3 -m benchmarks.training.plateau_curves     # any Python with PyTorch; 10 minutes on 2 cores

Plain loops on data made here, for `benchmarks.decisions.early_ends`. A row is a run: its family, its seed, what its
values are, and the values after each pass over the data.

- *parity*: the sign of the product of three of 30 signs, by a network of one hidden layer, of four widths and rates;
  its accuracy on other samples rests at one half.
- *product*: the product of three features as a regression; the squared error rests at its variance.
- *deep*: ten layers whose weights begin small, on rings; the loss rests at ln 3.
- *schedule*: a rate that is too large, a tenth of it from the 30th pass on; the loss rests, and drops then.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

FILE = Path("results/early-ends/plateaus.csv")
SEEDS = range(1, 7)
Split = tuple[torch.Tensor, torch.Tensor]


def signs(split: int) -> Split:
    """30 signs, [n, 30], and whether the product of the first three is positive, [n]."""
    made = torch.Generator().manual_seed(split)
    x = torch.randint(0, 2, (2000 if split else 8000, 30), generator=made).float() * 2 - 1
    return x, (x[:, 0] * x[:, 1] * x[:, 2] > 0).long()


def features(split: int) -> Split:
    """20 normal features, [n, 20], and the product of the first three, [n, 1]."""
    made = torch.Generator().manual_seed(split)
    x = torch.randn(1000 if split else 4000, 20, generator=made)
    return x, x[:, :3].prod(1, keepdim=True)


def rings(split: int) -> Split:
    """Points in the plane, [n, 2], and which of three rings each is on, [n]."""
    made = torch.Generator().manual_seed(split)
    count = 1000 if split else 3000
    y = torch.randint(0, 3, (count,), generator=made)
    angle, radius = (
        6.2832 * torch.rand(count, generator=made),
        1.0 + y + 0.3 * torch.randn(count, generator=made),
    )
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def hidden(inputs: int, width: int, outputs: int) -> nn.Module:
    """A network of one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


def deep() -> nn.Module:
    """Ten layers with small weights."""
    layers: list[nn.Module] = [nn.Linear(2, 32), nn.Tanh()]
    for _ in range(8):
        layers += [nn.Linear(32, 32), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Linear(32, 3))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.6 / layer.in_features**0.5)
    return net


def trained(  # noqa: PLR0917
    net: nn.Module,
    data: Callable[[int], Split],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    rate: Callable[[int], float],
    epochs: int,
    right: bool,
) -> Iterator[float]:
    """The test loss after each epoch, or with `right` the accuracy."""
    (x, y), (test, truth) = data(0), data(1)
    optimizer = torch.optim.SGD(net.parameters(), rate(0), momentum=0.9)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = rate(epoch)
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(net(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            out = net(test)
            yield float((out.argmax(1) == truth).float().mean() if right else loss(out, truth))


def runs() -> Iterator[tuple[str, int, str, list[float]]]:
    """Family, seed, metric and values of every run."""
    for seed in SEEDS:
        for width, rate in ((128, 0.01), (64, 0.01), (128, 0.005), (32, 0.02)):
            torch.manual_seed(seed)
            values = trained(hidden(30, width, 2), signs, F.cross_entropy, lambda _, r=rate: r, 60, True)
            yield f"parity {width} {rate}", seed, "accuracy", list(values)
        torch.manual_seed(seed)
        yield (
            "product",
            seed,
            "loss",
            list(trained(hidden(20, 128, 1), features, F.mse_loss, lambda _: 0.003, 60, False)),
        )
        torch.manual_seed(seed)
        yield "deep", seed, "loss", list(trained(deep(), rings, F.cross_entropy, lambda _: 0.003, 60, False))
        torch.manual_seed(seed)
        drop = trained(hidden(20, 128, 1), features, F.mse_loss, lambda n: 0.03 if n < 30 else 0.003, 60, False)
        yield "schedule", seed, "loss", list(drop)


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with FILE.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["family", "seed", "metric", "values"])
        for family, seed, metric, values in runs():
            rows.writerow([family, seed, metric, ";".join(f"{value:.5g}" for value in values)])
            file.flush()
            print(family, seed, *(f"{value:.3g}" for value in values[::6]), flush=True)
