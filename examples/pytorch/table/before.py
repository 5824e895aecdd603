"""Which orders come back? A network on a table of four columns, made by a formula."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def table(rows, seed):
    """Price, discount, days until delivery, earlier orders; 1 where the order comes back."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.rand(rows, 4, generator=generator)
    price, discount, days, earlier = columns.unbind(1)
    score = 3 * price * (1 - discount) + 2 * days**2 - torch.sqrt(earlier) - 0.6
    noise = torch.randn(rows, generator=generator) / 4
    return TensorDataset(columns, (score + noise > 0).float())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, columns):
        return self.layers(columns).squeeze(1)


loss = nn.BCEWithLogitsLoss()


def accuracy(outputs, labels):
    return ((outputs > 0) == (labels > 0.5)).float().mean().item()


def main():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    train = DataLoader(table(10_000, seed=1), batch_size=100, shuffle=True)
    columns, labels = table(2_000, seed=2).tensors
    for epoch in range(int(os.environ.get("EPOCHS", "10"))):
        for batch in train:
            optimizer.zero_grad()
            loss(net(batch[0]), batch[1]).backward()
            optimizer.step()
        with torch.no_grad():
            print(f"epoch {epoch + 1}: accuracy {accuracy(net(columns), labels):.4f}")


if __name__ == "__main__":
    main()
