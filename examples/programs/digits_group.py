"""A convolutional network for handwritten digits, trained by a group of workers from its newest checkpoint."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

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


net = nn.Sequential(
    nn.Conv2d(1, 16, 5, stride=2),
    nn.ReLU(),
    nn.Conv2d(16, 32, 5, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=0.002)
images = Digits(".data/mnist-digits", train=True)
test = DataLoader(Digits(".data/mnist-digits", train=False), batch_size=256)

checkpoint = Path(os.environ["COACH_CHECKPOINTS"], "digits.pt")
done = 0
if checkpoint.exists():
    done, weights, state = torch.load(checkpoint)
    net.load_state_dict(weights)
    optimizer.load_state_dict(state)

dist.init_process_group("gloo")
model = DistributedDataParallel(net)
sampler = DistributedSampler(images)
train = DataLoader(images, batch_size=64 // dist.get_world_size(), sampler=sampler)

while done < EPOCHS:
    sampler.set_epoch(done)
    for batch, labels in train:
        optimizer.zero_grad()
        criterion(model(batch), labels).backward()
        optimizer.step()
    done += 1
    if dist.get_rank() == 0:
        with torch.no_grad():
            right = sum(int((net(batch).argmax(1) == labels).sum()) for batch, labels in test)
        torch.save((done, net.state_dict(), optimizer.state_dict()), checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)
        print(f"epoch {done}: accuracy {right / len(test.dataset):.4f}")
