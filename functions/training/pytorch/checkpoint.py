"""PyTorch's checkpoints: one file of torch.save, in the layout of PyTorch's own tutorial on checkpoints.

    state = torch.load("checkpoint.pt", weights_only=True)
    net.load_state_dict(state["model_state_dict"])
"""

import zipfile
from typing import Any, BinaryIO

import torch

from training.checkpoint import FORMAT, Checkpoint

VERSION = 1


def write_checkpoint(file: BinaryIO, state: Checkpoint) -> None:
    """See training.backend.Framework."""
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "epoch": state.epoch,
        "position": state.position,
        "seed": state.seed,
        "model_state_dict": state.arrays,
        **state.settings,
    }
    torch.save(whole, file)


def read_checkpoint(file: BinaryIO) -> Checkpoint:
    """See training.backend.Framework. Each member is held to its checksum, which torch.load does not do."""
    with zipfile.ZipFile(file) as archive:
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"its content is not what was written: {broken}")
    file.seek(0)
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or (state.get("format"), state.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"no {FORMAT} of version {VERSION}")
    settings = {key: state[key] for key in ("optimizer_state_dict", "scheduler_state_dict")}
    return Checkpoint(state["model_state_dict"], settings, state["position"], state["epoch"], state["seed"])
