"""PyTorch's checkpoints: one file of torch.save.

    state = torch.load("checkpoint.pt", weights_only=True)
    net.load_state_dict(state["model_state_dict"])

What is no tensor is JSON, in `settings`: torch 1.13 reads no floating-point numbers without unpickling anything.
"""

import json
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch

from training.checkpoint import FORMAT, Checkpoint

VERSION = 1


def write_checkpoint(file: BinaryIO, state: Checkpoint) -> None:
    """See training.backend.Framework."""
    optimizer = state.settings["optimizer_state_dict"]
    tensors, plain = split(optimizer["state"])
    tensors = {name: each.cpu() for name, each in tensors.items()}  # so that they are read where there is no GPU
    settings = {
        "format": FORMAT,
        "version": VERSION,
        "epoch": state.epoch,
        "position": state.position,
        "seed": state.seed,
        "param_groups": optimizer["param_groups"],
        "optimizer_state": plain,
        "scheduler_state_dict": state.settings["scheduler_state_dict"],
    }
    whole = {"model_state_dict": state.arrays, "optimizer_tensors": tensors, "settings": json.dumps(settings)}
    torch.save(whole, file)


def read_checkpoint(file: BinaryIO) -> Checkpoint:
    """See training.backend.Framework. Each member is held to its checksum, which torch.load does not do."""
    with zipfile.ZipFile(file) as archive:
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"its content is not what was written: {broken}")
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            raise ValueError("a TorchScript archive, which PyTorch before 2.6 runs")
    file.seek(0)
    whole: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    if "settings" not in whole:  # another program's state_dict, to begin with
        return Checkpoint(whole.get("model_state_dict", whole.get("state_dict", whole)), {}, 0, "", 0)
    settings = json.loads(whole["settings"])
    if (settings.get("format"), settings.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"no {FORMAT} of version {VERSION}")
    state = {**whole["optimizer_tensors"], **settings["optimizer_state"]}
    kept = {
        "optimizer_state_dict": {"state": joined(state), "param_groups": settings["param_groups"]},
        "scheduler_state_dict": settings["scheduler_state_dict"],
    }
    return Checkpoint(whole["model_state_dict"], kept, settings["position"], settings["epoch"], settings["seed"])


def split(state: Mapping[int, Mapping[str, Any]]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state by `<number of the parameter>/<name>`: tensors, and what is none."""
    flat = {f"{index}/{name}": value for index, values in state.items() for name, value in values.items()}
    tensors = {key: value for key, value in flat.items() if isinstance(value, torch.Tensor)}
    return tensors, {key: value for key, value in flat.items() if key not in tensors}


def joined(flat: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The inverse of split()."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in flat.items():
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = value
    return state
