"""PyTorch jobs on elastic parameter servers: the numbers are PyTorch's own, whatever happens to the group."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.functions.hosting import Elastic, Gang
from tests.functions.pytorch.test_elastic import OPTIMIZER, slow
from tests.functions.pytorch.test_training import MLP, NORMALISED, epoch

pytestmark = pytest.mark.pytorch

#: Biases do not decay and have a rate of their own; a layer is frozen.
GROUPS = (
    NORMALISED.replace("nn.Linear(784, 32)", "nn.Linear(784, 32, bias=False)")  # its gradient would be noise
    + """
    import torch

    def optimizer(net):
        net[4].bias.requires_grad = False
        of = {kind: [p for name, p in net.named_parameters() if name.endswith(kind)] for kind in ("weight", "bias")}
        plain = {"params": of["bias"], "weight_decay": 0.0, "lr": 0.002}
        return torch.optim.AdamW([plain, {"params": of["weight"]}], lr=0.01, weight_decay=0.1, betas=(0.8, 0.99))

    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.5)
"""
)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"name": "SGD", "learning_rate": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}},
        {"optimizer": {"name": "SGD", "learning_rate": 0.1}, "clip": {"norm": 0.3, "value": 0.05}},
        {"text": GROUPS, "optimizer": None},
    ],
    ids=["nesterov", "clipped", "groups"],
)
def test_an_epoch_by_servers_is_one_by_all_reduce_and_its_checkpoint_goes_on_in_both(
    gang: Gang, tmp_path: Path, changes: dict
) -> None:
    found = []
    for servers in ((0, 0, 0), (2, 0, 1)):
        reports: list[Any] = [None]
        for count in servers:
            gang.stop()
            gang.fresh_group()
            reports.append(gang.epoch(1, count, **epoch(tmp_path, reports[-1], samples=320, **changes)))
        found.append([each[key] for each in reports[1:] for key in ("loss", "train_loss")])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_servers_that_come_and_go_inside_an_epoch_change_no_bit(gang: Gang, tmp_path: Path) -> None:
    group, ends = Elastic(gang), []
    for changes in (False, True):
        gang.fresh_group()
        group.start([0], slow(tmp_path, samples=32 * 150), 1)
        if changes:
            group.until_trained(0)
            group.serve(1)
            for servers in ([0, 1], [1]):
                group.resize(0, servers=servers)
                group.until_servers(*servers)
        (report,) = group.done(0)
        ends.append((report["loss"], report["train_loss"]))
        gang.stop()
    assert ends[0] == ends[1]


@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_member_that_dies_is_done_without(gang: Gang, tmp_path: Path, role: str) -> None:
    samples = 32 * 150
    plain = gang.epoch(1, 0, **epoch(tmp_path, text=MLP, samples=samples, optimizer=OPTIMIZER))
    gang.fresh_group()
    group = Elastic(gang)
    group.start([0, 1], slow(tmp_path, samples=samples), 2)
    group.until_trained(0)
    pids, again = group.pids(0), 0
    if role == "server":
        again = group.kill_server(1, left=0)
    else:
        os.kill(gang.functions[role, 1].health()["child_pid"], signal.SIGKILL)
        group.until_members(0)
        group.join(2, servers=2)
        group.resize(0, 2, servers=[0, 1])
        group.until_members(0, 2)
    report = group.done(0)[0]
    assert group.pids(0) == pids and report["samples"] == samples and report["repeated"] <= again
    assert report["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    assert report["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-4)


UNUSED = MLP.replace("nn.Sequential(", "Unused(").replace(
    "    def net",
    """    class Unused(nn.Sequential):
        def __init__(self, *layers):
            super().__init__(*layers)
            self.register_parameter("spare", nn.Parameter(nn.Linear(2, 2).weight.detach()))

    def net""",
    1,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": {"name": "Rprop", "learning_rate": 0.1}}, "Rprop does not run on parameter servers; use SGD"),
        ({"optimizer": {"name": "Adam", "learning_rate": 0.1, "amsgrad": True}}, "amsgrad of Adam is not on parameter"),
        ({"text": UNUSED}, "the loss does not depend on spare"),
    ],
    ids=["optimizer", "amsgrad", "unused"],
)
def test_what_servers_cannot_train_is_refused(gang: Gang, tmp_path: Path, changes: dict, words: str) -> None:
    start = epoch(tmp_path, **changes)
    gang.start(1, 1, **start)
    answer = gang.worker.wait(start["epoch"])
    assert answer["error"]["reason"] == "ModelInvalid" and words in answer["error"]["message"], answer
