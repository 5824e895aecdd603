"""Handwritten digits with Accelerate: alone, or one of several processes."""

import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digits(folder):
    """Two data sets: 28x28 images to train on, and to test with."""
    parts = ([], []), ([], [])
    for digit in range(10):
        pixels = json.loads((Path(folder) / f"{digit}.json").read_text())["data"]
        images = torch.tensor(pixels).reshape(-1, 784)
        cut = len(images) * 4 // 5
        for (inputs, labels), some in zip(parts, (images[:cut], images[cut:])):
            inputs.append(some)
            labels.append(torch.full((len(some),), digit))
    return [TensorDataset(torch.cat(inputs), torch.cat(labels)) for inputs, labels in parts]


accelerator = Accelerator()
net = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=0.002)
train, test = digits(".data/mnist-digits")
train, test = DataLoader(train, batch_size=64, shuffle=True), DataLoader(test, batch_size=256)
net, optimizer, train, test = accelerator.prepare(net, optimizer, train, test)

for epoch in range(20):
    net.train()
    for images, labels in train:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(net(images), labels))
        optimizer.step()
    net.eval()
    losses = []
    for images, labels in test:
        with torch.no_grad():
            scores, labels = accelerator.gather_for_metrics((net(images), labels))
        losses.append(nn.functional.cross_entropy(scores, labels, reduction="sum").item())
    accelerator.print(f"epoch {epoch}: val_loss {sum(losses) / len(test.dataset):.4f}")
