"""Workers that compute on a GPU: the same numbers as on the CPU, in groups that change. Needs a GPU of NVIDIA's."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from coach.platforms.local.cluster import machine
from tests.functions.hosting import Gang
from tests.functions.pytorch.test_elastic import Elastic, slow
from tests.functions.pytorch.test_training import MLP, NORMALISED, epoch, in_torch

pytestmark = [
    pytest.mark.pytorch,
    pytest.mark.skipif(machine().gpu < 1, reason="this machine has no GPU"),
]

#: Fails where a batch is on the CPU.
ON_A_GPU = MLP.replace(
    "    def net():",
    """    class Checked(nn.Flatten):
        def forward(self, x):
            assert x.is_cuda, x.device
            return super().forward(x)

    def net():""",
).replace("nn.Flatten()", "Checked()")


def two_epochs(gang: Gang, folder: Path, workers: int, **message: Any) -> list[float]:
    """Losses of a fresh group's two epochs."""
    gang.fresh_group()
    first = gang.epoch(workers, 0, **epoch(folder, **message))
    second = gang.epoch(workers, 0, **epoch(folder, first, **message))
    return [first["loss"], second["loss"], second["train_loss"]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gpu_gives_the_losses_of_the_cpu(gang: Gang, tmp_path: Path, workers: int) -> None:
    on_cpu = two_epochs(gang, tmp_path, workers)
    on_gpu = two_epochs(gang, tmp_path, workers, text=ON_A_GPU, gpu=True)
    assert on_gpu == pytest.approx(on_cpu, rel=1e-3)


def test_deterministic_epochs_on_a_gpu_repeat_to_the_last_bit(gang: Gang, tmp_path: Path) -> None:
    runs = [two_epochs(gang, tmp_path, 2, text=NORMALISED, gpu=True, deterministic=True) for _ in range(2)]
    assert runs[0] == runs[1]


def test_forward_passes_on_a_gpu_may_be_in_bfloat16(gang: Gang, tmp_path: Path) -> None:
    plain = two_epochs(gang, tmp_path, 1, gpu=True)
    short = two_epochs(gang, tmp_path, 1, gpu=True, autocast="bfloat16")
    assert short != plain and short == pytest.approx(plain, rel=0.05)


def test_a_checkpoint_of_a_gpu_is_read_without_one(gang: Gang, tmp_path: Path) -> None:
    optimizer = {"name": "Adam", "learning_rate": 0.003}
    first = gang.epoch(1, 0, **epoch(tmp_path, gpu=True, optimizer=optimizer))
    weights = first["weights_uri"].removeprefix("file://")
    devices = in_torch(f"""
        import json, torch
        saved = torch.load({weights!r}, weights_only=True)
        tensors = [*saved["model_state_dict"].values(), *saved["optimizer_tensors"].values()]
        print(json.dumps(sorted({{str(each.device) for each in tensors}})))
    """)
    assert devices == ["cpu"]
    gang.fresh_group()
    second = gang.epoch(1, 0, **epoch(tmp_path, first, optimizer=optimizer))
    assert second["loss"] < first["loss"]


def test_workers_on_a_gpu_join_and_die_within_an_epoch(gang: Gang, tmp_path: Path) -> None:
    """With Adam: a newcomer gets the optimizer's state on its own device."""
    changes = {"gpu": True, "optimizer": {"name": "Adam", "learning_rate": 0.001}}
    group = Elastic(gang)
    group.start([0], slow(tmp_path, **changes))
    group.until_trained(0)
    group.join(1)
    group.resize(0, 1)
    group.until_members(0, 1)
    (pid,) = group.pids(1)
    os.kill(pid, signal.SIGKILL)
    group.until_members(0)
    (changed,) = group.done(0)
    gang.fresh_group()
    group = Elastic(gang)
    (tmp_path / "plain").mkdir()
    group.start([0], slow(tmp_path / "plain", **changes))
    (alone,) = group.done(0)
    assert changed["loss"] == pytest.approx(alone["loss"], rel=0.01)


def test_nccl_connects_one_worker_is_aborted_and_connects_again() -> None:
    """What one GPU can show of it: NCCL takes no GPU twice."""
    found = in_torch("""
        import json, sys, torch
        import torch.distributed as dist
        sys.path.insert(0, "functions")
        from training.pytorch import nccl
        device, found = torch.device("cuda", 0), []
        for _ in range(2):
            group = nccl.NcclGroup(dist.HashStore(), 0, 1, device)
            group.connect()
            for in_rank_order in (False, True):
                (total,) = group.end(group.begin([torch.full((4,), 2.5, device=device)], in_rank_order=in_rank_order))
                found.append(total.tolist())
            group.abort()
            try:
                group.end([])
            except RuntimeError as error:
                found.append(str(error))
        print(json.dumps([bool(nccl.gpu(device)), *found]))
    """)
    assert found == [True, *[[2.5] * 4, [2.5] * 4, "the view was closed"] * 2]
