"""A convolutional network for handwritten digits, which asks Coach when to write a checkpoint and when to end."""

import json
import os
from pathlib import Path

import coach_program
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = int(os.environ.get("EPOCHS", "5"))


class Digits(Dataset):
    """28x28 images: folder/0.json has the pixels of all zeros one after the other, 9.json those of all nines."""

    def __init__(self, folder, train):
        self.samples = []
        for digit in range(10):
            pixels = json.loads((Path(folder) / f"{digit}.json").read_text())["data"]
            images = torch.tensor(pixels).reshape(-1, 1, 28, 28)
            cut = len(images) * 4 // 5
            self.samples += [(image, digit) for image in (images[:cut] if train else images[cut:])]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10))

    def forward(self, images):
        return self.head(self.features(images))


net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=0.002)
train = DataLoader(Digits(".data/mnist-digits", train=True), batch_size=64, shuffle=True)
test = DataLoader(Digits(".data/mnist-digits", train=False), batch_size=256)

checkpoint = Path(os.environ.get("COACH_CHECKPOINTS", "."), "digits.pt")
done = 0
if checkpoint.exists():
    done, weights, state = torch.load(checkpoint)
    net.load_state_dict(weights)
    optimizer.load_state_dict(state)

for epoch in range(done, EPOCHS):
    net.train()
    for images, labels in train:
        optimizer.zero_grad()
        criterion(net(images), labels).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        right = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in test)
    accuracy = right / len(test.dataset)
    print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}")
    coach_program.report(accuracy=accuracy, epoch=epoch + 1)
    stop = coach_program.should_stop()
    if stop or coach_program.checkpoint_now():
        torch.save((epoch + 1, net.state_dict(), optimizer.state_dict()), checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)
    if stop:
        break
