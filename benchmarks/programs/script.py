"""A training loop as people write it: alone, or one of several processes with DistributedDataParallel.

It goes on from its newest checkpoint. With REGROUPS=1 its group is formed anew in the same process.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

REGROUPS = os.environ.get("REGROUPS") == "1"
if REGROUPS:
    import coach_program

EPOCHS = int(os.environ.get("EPOCHS", "10"))
#: Steps of an epoch, of all processes together, and samples of a step of each.
STEPS, BATCH, WIDTH = 240, 256, 256


def main():
    """Train to the last epoch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    checkpoint = Path(os.environ.get("COACH_CHECKPOINTS", "."), "net.pt")
    data = torch.randn(STEPS * BATCH, 64)
    labels = (data[:, :10]).argmax(1)
    loss_of = nn.CrossEntropyLoss()
    epoch, model = 0, None
    while epoch < EPOCHS:
        if coach_program.group_changed() if REGROUPS else model is None:
            if dist.is_initialized():
                dist.destroy_process_group()
            world = int(os.environ.get("WORLD_SIZE", "1"))
            rank = int(os.environ.get("RANK", "0"))
            if checkpoint.exists():
                epoch, weights, state = torch.load(checkpoint)
                net.load_state_dict(weights)
                optimizer.load_state_dict(state)
            model = net
            if world > 1:
                dist.init_process_group("gloo")
                model = nn.parallel.DistributedDataParallel(net)
        total = 0.0
        steps = range(rank, STEPS, world)
        for step in steps:
            rows = slice(step * BATCH, (step + 1) * BATCH)
            optimizer.zero_grad()
            loss = loss_of(model(data[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            total += loss.item()
        epoch += 1
        if rank == 0:
            torch.save((epoch, net.state_dict(), optimizer.state_dict()), checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
            print(f"epoch {epoch - 1}: loss: {total / len(steps):.4f}", flush=True)


if __name__ == "__main__":
    main()
