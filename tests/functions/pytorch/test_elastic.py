"""Elastic groups of real processes: workers join, leave, die and hang inside an epoch, and the others train on."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.functions.hosting import Gang, HostedFunction, eventually
from tests.functions.pytorch.test_training import MLP, epoch

pytestmark = pytest.mark.pytorch

#: Takes long enough by sleeping that a test can act within an epoch; nothing in it is random.
SLOW = """
    import time
    from torch import nn

    class Slow(nn.Sequential):
        def forward(self, x):
            if self.training:
                time.sleep(0.02)
            return super().forward(x)

    def net():
        return Slow(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

    loss = nn.CrossEntropyLoss()
"""
SAMPLES = 32 * 100


class Elastic:
    """An elastic group, driven as Coach's handler would drive it."""

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.message: dict[str, Any] = {}

    @property
    def scheduler(self) -> HostedFunction:
        return self.gang.functions["scheduler", 0]

    def worker(self, rank: int) -> HostedFunction:
        return self.gang.functions["worker", rank]

    def start(self, ranks: list[int], message: dict) -> None:
        self.message = {"elastic": True, **message}
        self._start("scheduler", 0, len(ranks))
        for rank in ranks:
            self.join(rank, len(ranks))

    def _start(self, role: str, rank: int, workers: int) -> None:
        function = self.gang.functions[role, rank]
        root = f"{self.gang.functions['scheduler', 0].address}:{self.gang.port}"
        common = {"role": role, "rank": rank, "workers": workers, "servers": 0, "root": root}
        function.start(**common, host=function.address, **{"group": self.gang.group, **self.message})

    def join(self, rank: int, workers: int = 1) -> None:
        """Start a worker: it connects to the group by itself."""
        self._start("worker", rank, workers)

    def resize(self, *ranks: int) -> None:
        answer = self.scheduler.post(op="resize", group=self.gang.group, members=list(ranks))
        assert answer == (200, {"group": self.gang.group, "members": list(ranks)}), answer

    def status(self, function: HostedFunction) -> dict:
        return function.post(op="status", epoch=self.message["epoch"])[1]

    def until_trained(self, rank: int, samples: int = 320) -> None:
        eventually(lambda: self.status(self.worker(rank))["progress"].get("samples", 0) >= samples, 30)

    def view(self) -> dict:
        return self.status(self.scheduler)["progress"]

    def until_members(self, *ranks: int, seconds: float = 20) -> dict:
        eventually(lambda: sorted(self.view().get("members", [])) == sorted(ranks), seconds)
        return self.view()

    def done(self, *ranks: int) -> list[dict]:
        """The reports of these workers."""
        answers = [self.worker(rank).wait(self.message["epoch"]) for rank in ranks]
        assert all(answer["state"] == "done" for answer in answers), [answers, self.status(self.scheduler)]
        return [answer["report"] for answer in answers]

    def pids(self, *ranks: int) -> list[int]:
        return [self.worker(rank).health()["child_pid"] for rank in ranks]


@pytest.fixture
def group(gang: Gang) -> Elastic:
    return Elastic(gang)


@pytest.fixture(scope="module")
def undisturbed(warm_pytorch_gang: Gang, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """The report of one worker that trains the same in peace."""
    warm_pytorch_gang.fresh_group()
    message = epoch(tmp_path_factory.mktemp("plain"), text=MLP, samples=SAMPLES)
    yield warm_pytorch_gang.epoch(1, 0, **message)
    warm_pytorch_gang.stop()


def assert_as_undisturbed(reports: list[dict], undisturbed: dict) -> None:
    for report in reports:
        assert report["samples"] == SAMPLES and report["position"] == SAMPLES
        assert report["loss"] == pytest.approx(undisturbed["loss"], rel=1e-4)
        assert report["train_loss"] == pytest.approx(undisturbed["train_loss"], rel=1e-4)
        assert report["accuracy"] == pytest.approx(undisturbed["accuracy"], abs=0.002)


def test_a_group_that_nothing_happens_to_trains_epochs_like_a_fixed_one(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0, 1, 2], epoch(tmp_path, text=SLOW, samples=SAMPLES // 2))
    (first, *_) = group.done(0, 1, 2)
    pids = group.pids(0, 1, 2)
    group.start([0, 1, 2], epoch(tmp_path, first, text=SLOW, samples=SAMPLES // 2))
    reports = group.done(0, 1, 2)
    assert pids == group.pids(0, 1, 2)
    assert reports[0]["loss"] == pytest.approx(undisturbed["loss"], rel=1e-4)
    assert Path(reports[0]["weights_uri"].removeprefix("file://")).exists()
    answer = group.scheduler.wait(group.message["epoch"], seconds=5)
    assert answer["state"] == "done" and answer["progress"]["members"] == [0, 1, 2]


def test_survivors_of_a_kill_go_on_in_the_same_processes(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0, 1, 2], epoch(tmp_path, text=SLOW, samples=SAMPLES))
    group.until_trained(0)
    pids = group.pids(0, 1, 2)
    os.kill(pids[1], signal.SIGKILL)
    reports = group.done(0, 2)
    assert group.pids(0, 2) == [pids[0], pids[2]]
    assert_as_undisturbed(reports, undisturbed)
    view = group.view()
    assert view["members"] == [0, 2] and view["lost"][0]["worker"] == 1
