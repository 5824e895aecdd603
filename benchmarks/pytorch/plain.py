"""Training without Coach, for `benchmarks.pytorch.speed`: one process, or DistributedDataParallel.

Run by the Python that has torch, with functions/ on its path: prints steps/s as JSON. The same batches as Coach's.

    python plain.py NET WORKERS STEPS BATCH DIGITS
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from training.data import formats
from training.data.dataset import Stream, share

FILE = Path(__file__).with_name("models.py")


def batches(module, net, digits, batch, rank, workers, steps):  # noqa: PLR0917
    """This worker's share of each batch."""
    if net == "Transformer":
        samples = module.data("train")
        stream = Stream(len(samples), 1)
        for step in range(steps):
            rows = stream.rows(step * batch, batch)[share(batch, rank, workers)]
            yield torch.utils.data.default_collate([samples[row] for row in rows.tolist()])
    else:
        samples = formats.load(digits, "digits-json").train
        stream = Stream(len(samples), 1)
        for step in range(steps):
            x, y = samples.rows(stream.rows(step * batch, batch)[share(batch, rank, workers)])
            yield torch.from_numpy(x), torch.from_numpy(y).long()


def train(rank, net, workers, steps, batch, digits, port):  # noqa: PLR0917
    """Time all steps but the first two; rank 0 prints them."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    spec = importlib.util.spec_from_file_location("models", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, net)()
    if workers > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        dist.init_process_group("gloo", rank=rank, world_size=workers)
        made = DistributedDataParallel(made)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.01)
    began = 0.0
    for step, one in enumerate(batches(module, net, digits, batch, rank, workers, steps + 2)):
        if step == 2:
            began = time.perf_counter()
        optimizer.zero_grad()
        module.loss(made, one).backward()
        optimizer.step()
    if rank == 0:
        print(json.dumps(steps / (time.perf_counter() - began)), flush=True)


def main():
    """See the module's description."""
    net, workers, steps, batch, digits = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    arguments = (net, workers, steps, batch, digits, str(20000 + os.getpid() % 10000))
    if workers == 1:
        train(0, *arguments)
    else:
        mp.spawn(train, arguments, nprocs=workers)


if __name__ == "__main__":
    main()
