"""What a job file says of a model file reaches its training: real groups under the real handler."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import PodId, Role
from coach.core.jobs import actions as act
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from tests.platforms.local.test_platform import descendants, ended, handler_on, job, submit
from tests.platforms.local.test_pytorch import process

pytestmark = [pytest.mark.pytorch, pytest.mark.timeout(180)]

#: Samples take time; F1 is no mean.
MODEL = """
import time

import torch
from torch import nn

class Points(torch.utils.data.Dataset):
    def __init__(self, count, seconds):
        generator = torch.Generator().manual_seed(count)
        self.x = torch.randn(count, 6, generator=generator)
        self.seconds = seconds

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        time.sleep(self.seconds)
        return self.x[number], int(self.x[number, 0] > 0.5)

def data(split, seconds=0.0):
    return Points(1600 if split == "train" else 200, seconds)

def net(width):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))

loss = nn.CrossEntropyLoss()

def metrics(outputs, batch):
    said, right = outputs.argmax(1) == 1, batch[1] == 1
    return {"tp": (said & right).float().mean(), "wrong": (said ^ right).float().mean()}

def final_metrics(means):
    return {"f1": 2 * means["tp"] / max(2 * means["tp"] + means["wrong"], 1e-9)}
"""


def train(folder: Path, meanwhile: Any = None, **changes: Any) -> tuple[Job, list[Any]]:
    """The job at its end, and its journal's events and actions; `meanwhile`: to await on the way."""
    spec = job("optioned", folder).to_json()
    (folder / "mine.py").write_text(MODEL)
    model = {"file": (folder / "mine.py").as_uri(), "args": {"width": 8, **changes.pop("args", {})}}
    spec["spec"] |= {"framework": "pytorch", "servers": {"min": 0, "max": 0}, "model": model}
    spec["spec"] |= {"data": {"format": "custom"}, "target": None, "objective": "best-loss"}
    spec["spec"] |= {"policy": {"name": "static", "workers": 1}, "optimizer": {"name": "Adam", "lr": 0.01}}
    for key, value in changes.items():
        spec["spec"][key] = spec["spec"][key] | value if key == "data" else value
    spec["spec"] = {key: value for key, value in spec["spec"].items() if value is not None}
    records: list[Any] = []

    async def main() -> Job:
        async with handler_on(folder) as handler:
            handler.observers.append(lambda event, actions: records.extend([event, *actions]))
            submit(handler, TrainingJob.from_json(spec), folder)
            if meanwhile is not None:
                await meanwhile(handler)
            await handler.wait(ended(handler, "optioned"))
            return handler.jobs["optioned"]

    return asyncio.run(main()), records


@pytest.mark.parametrize("workers", [1, 2])
def test_a_metric_by_name_is_the_target_of_a_model_file(tmp_path: Path, workers: int) -> None:
    trained, _ = train(
        tmp_path,
        target={"metric": "f1", "value": 0.95, "epochsInARow": 1},
        objective=None,
        workers={"min": workers, "max": workers},
        policy={"name": "static", "workers": workers},
        data={"readers": 2},
        microBatch=20,
        evaluationBatch=30,
        clip={"norm": 1.0},
    )
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    values = [epoch.report.value("f1") for epoch in trained.epochs]
    assert values[-1] >= 0.95 > values[0]
    assert trained.epochs[-1].report.metrics.keys() == {"f1"}


def test_a_target_that_the_model_file_does_not_measure_ends_the_job_at_once(tmp_path: Path) -> None:
    trained, _ = train(tmp_path, target={"metric": "auc", "value": 0.9}, objective=None)
    assert trained.reason is Reason.MODEL_INVALID
    assert "the metric auc is wanted, and the model file has loss, f1" in trained.message


@pytest.mark.parametrize("epoch", [{"samples": 300}, {"fraction": 0.2}])
def test_an_epoch_is_the_part_of_the_data_that_the_job_file_says(tmp_path: Path, epoch: dict) -> None:
    """Evaluated, stored, paid and counted by itself."""
    trained, records = train(tmp_path, epoch=epoch, batchSize=32, maxEpochs=7)
    assert trained.reason is Reason.LIMIT_REACHED, trained.message
    assert [each.report.samples for each in trained.epochs] == [320] * 7
    assert trained.progress.position == 7 * 320
    assert trained.epochs_trained == 7.0 and trained.epoch_samples == 320
    assert all(each.report.loss is not None and each.cost > 0 for each in trained.epochs)
    assert trained.epochs[-1].report.pass_samples == 1600
    orders = [each for each in records if isinstance(each, act.RunEpoch)]
    assert orders[-1].reservation < orders[0].reservation, "its speed was not known at first"


def test_an_epoch_of_a_time_has_as_many_samples_as_were_measured_in_it(tmp_path: Path) -> None:
    trained, records = train(tmp_path, epoch={"time": "1s"}, args={"seconds": 0.004}, maxEpochs=4)
    assert trained.reason is Reason.LIMIT_REACHED, trained.message
    sizes = {each.report.samples for each in trained.epochs[1:]}
    assert sizes == {trained.epoch_samples} and 64 <= trained.epoch_samples <= 320
    assert trained.epochs_trained == pytest.approx(4.0, abs=1.0)
    first = next(each for each in records if isinstance(each, act.RunEpoch))
    assert first.seconds == 1.0 and first.deadline < 400


def test_mini_epochs_and_other_numbers_of_workers_measure_epochs_of_a_time(tmp_path: Path) -> None:
    trained, _ = train(
        tmp_path,
        epoch={"time": "2s"},
        args={"seconds": 0.002},
        policy={"name": "coach"},
        workers={"min": 1, "max": 2},
        miniEpoch={"minSeconds": 0.5, "maxSeconds": 1.0},
        maxEpochs=3,
    )
    assert trained.reason is Reason.LIMIT_REACHED, trained.message
    probe, *others = trained.epochs
    assert probe.kind is EpochKind.PROBE and 0.1 < probe.fraction < 1.0
    assert {each.report.data_size for each in trained.epochs} == {trained.epoch_samples}
    assert [each.fraction for each in others if each.kind is EpochKind.FULL] == [1.0] * 3


def test_a_kill_costs_no_more_than_the_part_under_way(tmp_path: Path) -> None:
    """Of a pass of some 16 s; the readers of the worker that is killed end with it."""
    killed: list[int] = []

    async def kill(handler: Any) -> None:
        await handler.wait(lambda: "optioned" in handler.jobs and len(handler.jobs["optioned"].epochs) == 2)
        while handler.progress.get("optioned") is None or not handler.progress["optioned"].samples:
            await asyncio.sleep(0.01)
        worker = process(PodId("optioned", Role.WORKER, 0), handler.jobs["optioned"])
        assert worker is not None
        killed.extend([worker, *descendants(worker)])
        os.kill(worker, signal.SIGKILL)

    trained, _ = train(
        tmp_path,
        kill,
        epoch={"samples": 320},
        args={"seconds": 0.02},
        data={"readers": 2},
        batchSize=32,
        maxEpochs=5,
    )
    assert trained.reason is Reason.LIMIT_REACHED, trained.message
    assert len(killed) == 3, "the worker and two that read"
    assert [each.report.samples for each in trained.epochs if each.kind is EpochKind.FULL] == [320] * 5
    assert trained.attempts.count >= 6 and trained.progress.position == 5 * 320
    assert not any(Path(f"/proc/{pid}").exists() for pid in killed)
