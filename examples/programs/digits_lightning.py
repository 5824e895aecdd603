"""Handwritten digits with Lightning, which writes its metrics to logs/digits/version_0/metrics.csv."""

import json
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
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


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        scores = self.layers(images)
        self.log("val_loss", nn.functional.cross_entropy(scores, labels))
        self.log("val_accuracy", (scores.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.002)


train, test = digits(".data/mnist-digits")
logger = CSVLogger("logs", name="digits", flush_logs_every_n_steps=1)
trainer = lightning.Trainer(max_epochs=20, logger=logger, enable_progress_bar=False)
trainer.fit(Net(), DataLoader(train, batch_size=64, shuffle=True), DataLoader(test, batch_size=256))
