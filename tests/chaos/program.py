"""A program of one or two workers that goes on from its newest checkpoint. What it trains is a number of epochs.

With REGROUPS=1 it changes its workers in the same process.
"""

import os
import time
from pathlib import Path

#: Seconds of an epoch with one worker, and how many epochs there are until the target.
SECONDS, EPOCHS = 1.6, 14

if __name__ == "__main__":
    regroups = os.environ.get("REGROUPS") == "1"
    if regroups:
        import coach_program
    folder = Path(os.environ["COACH_CHECKPOINTS"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    checkpoint = folder / "epoch"
    epoch = int(checkpoint.read_text()) if checkpoint.exists() else 0
    if os.fork() == 0:  # a child, as of a DataLoader
        while True:
            time.sleep(3600)
    while epoch < 10 * EPOCHS:
        if regroups and coach_program.group_changed():
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            epoch = int(checkpoint.read_text()) if checkpoint.exists() else 0
        time.sleep(SECONDS / world)
        if rank == 0:
            new = folder / "epoch.new"
            new.write_text(str(epoch + 1))
            new.replace(checkpoint)
            print(f"epoch {epoch}: val loss: {1 / (epoch + 1):.6f}", flush=True)
        epoch += 1
