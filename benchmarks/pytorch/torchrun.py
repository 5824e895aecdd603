"""A training under torchrun, for `benchmarks.pytorch.changes`: appends a line for each step of rank 0.

    torchrun ... torchrun.py HIDDEN HIDDEN FILE

A line has seconds since 1970 and the processes' ids.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(first: int, second: int, file: str) -> None:
    """Train without end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = nn.Sequential(nn.Linear(784, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 10))
    net = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0001)
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    inputs, labels = torch.rand(32, 784), torch.randint(10, (32,))
    while True:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            with Path(file).open("a", encoding="utf-8") as steps:
                steps.write(f"{time.time()} {' '.join(str(int(pid)) for pid in pids)}\n")


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
