"""Handwritten digits with transformers' Trainer."""

import json
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


def digits(folder):
    """Two lists of samples: 28x28 images to train on, and to test with."""
    train, test = [], []
    for digit in range(10):
        pixels = json.loads((Path(folder) / f"{digit}.json").read_text())["data"]
        images = torch.tensor(pixels).reshape(-1, 784)
        samples = [{"images": image, "labels": digit} for image in images]
        train += samples[: len(samples) * 4 // 5]
        test += samples[len(samples) * 4 // 5 :]
    return train, test


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images, labels):
        scores = self.layers(images)
        return {"loss": nn.functional.cross_entropy(scores, labels), "scores": scores}


train, test = digits(".data/mnist-digits")
arguments = TrainingArguments(
    output_dir="out-transformers",
    num_train_epochs=20,
    per_device_train_batch_size=64,
    per_device_eval_batch_size=256,
    learning_rate=0.002,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
    logging_steps=50,
)
Trainer(Net(), arguments, train_dataset=train, eval_dataset=test).train()
