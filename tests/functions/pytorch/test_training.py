"""Real PyTorch groups train: the mathematics, the groups' life, checkpoints that PyTorch's users can read."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.functions.hosting import PYTORCH_PYTHON, Gang, eventually
from tests.functions.messages import epoch as message
from tests.functions.messages import model_file

pytestmark = pytest.mark.pytorch

MLP = """
    from torch import nn

    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    loss = nn.CrossEntropyLoss()
"""


def epoch(folder: Path, after: dict | None = None, text: str = MLP, **changes: Any) -> dict:
    """The next epoch's message, of a model file with this text."""
    optimizer = {"name": "SGD", "learning_rate": 0.1, "momentum": 0.9}
    changes = {"model": model_file(folder / "model.py", text), "optimizer": optimizer, **changes}
    return message(folder, after, **changes)


def test_one_worker_trains_and_goes_on_in_the_same_process(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(1, 0, **epoch(tmp_path))
    pid = gang.worker.health()["child_pid"]
    second = gang.epoch(1, 0, **epoch(tmp_path, first))
    assert gang.worker.health()["child_pid"] == pid
    assert second["loss"] < first["loss"] < math.log(10)
    assert 0.8 < second["accuracy"] <= 1


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_does_not_change_the_mathematics(
    gang: Gang, tmp_path: Path, workers: int
) -> None:
    losses = []
    for count in (1, workers):
        gang.fresh_group()
        first = gang.epoch(count, 0, **epoch(tmp_path))
        second = gang.epoch(count, 0, **epoch(tmp_path, first))
        losses.append([first["loss"], second["loss"], second["train_loss"], second["accuracy"]])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
