"""An elastic group gives a worker to a job that waits, in the middle of its epoch: real processes, one machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Allocation, Role
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.spec.job import TrainingJob
from tests.platforms.local.test_platform import ended, handler_on, submit
from tests.platforms.local.test_platform import job as small_job

pytestmark = pytest.mark.timeout(300)

#: A sample takes 30 ms, asleep, until the file `go` is there: two workers are twice as fast as one.
SLOW = """
import time
from pathlib import Path
import numpy as np

GO = Path("FOLDER/go")

def data(split):
    labels = np.arange(1440 if split == "train" else 64) % 10
    return as_array(np.eye(10, dtype="float32")[labels]), as_array(labels)

class Slow(Base):
    def forward(self, x):
        time.sleep(0.0 if GO.exists() else 0.03 * len(x))
        return super().forward(x)
"""
MODELS = {
    "mxnet": f"""
from mxnet import gluon
Base, as_array = gluon.nn.Sequential, lambda one: one
{SLOW}
def net():
    layers = Slow()
    layers.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
    return layers

def loss():
    return gluon.loss.SoftmaxCrossEntropyLoss()
""",
    "pytorch": f"""
import torch
from torch import nn
Base, as_array = nn.Sequential, torch.from_numpy
{SLOW}
def net():
    return Slow(nn.Flatten(), nn.Linear(10, 10))

loss = nn.CrossEntropyLoss()
""",
}


def job(name: str, framework: str, servers: int, folder: Path, workers: int, epochs: int) -> TrainingJob:
    """Two of them have no room on two cores with two workers and one."""
    model = folder / "slow.py"
    model.write_text(MODELS[framework].replace("FOLDER", str(folder)))
    own: dict[str, Any] = {"parameterServer": "elastic", "optimizer": {"name": "sgd", "learningRate": 0.1}}
    if framework == "pytorch":
        own = {"framework": "pytorch", "optimizer": {"name": "SGD", "lr": 0.1}}
    worker = {"cpu": "900m", "memory": "900Mi"}
    pods = {
        "scheduler": {"cpu": "10m", "memory": "300Mi"},
        "server": {"cpu": "50m", "memory": "300Mi"},
        "worker": worker,
    }
    return small_job(
        name,
        folder,
        model={"file": model.as_uri()},
        data={"format": "custom"},
        target={"loss": 0.01},
        stopEarly=False,
        maxEpochs=epochs,
        budget={"amount": 0.5, "currency": "USD"},
        workers={"min": 1, "max": workers},
        servers={"min": servers, "max": servers},
        miniEpoch={"minSeconds": 0.5, "maxSeconds": 2},
        resources=pods,
        **own,
    )


@pytest.mark.parametrize(
    ("framework", "servers"),
    [
        pytest.param("mxnet", 1, marks=pytest.mark.mxnet),
        pytest.param("pytorch", 1, marks=[pytest.mark.pytorch, pytest.mark.full]),
        pytest.param("pytorch", 0, marks=[pytest.mark.pytorch, pytest.mark.full]),
    ],
)
def test_a_job_that_waits_gets_a_worker_before_the_epoch_ends(tmp_path: Path, framework: str, servers: int) -> None:
    records: list[Any] = []

    async def main() -> Any:
        async with handler_on(tmp_path, "1x2") as handler:

            def watch(event: ev.Event, actions: list[act.Action]) -> None:
                records.extend([event, *actions])
                for action in actions:
                    if isinstance(action, act.RunEpoch) and action.job == "late":
                        (tmp_path / "go").touch()
                    elif isinstance(action, act.RunEpoch) and action.allocation.workers == 2:
                        comes = action.kind is EpochKind.FULL and "late" not in handler.jobs
                        asyncio.get_running_loop().call_later(1.0, arrive) if comes else None

            def arrive() -> None:
                if "late" not in handler.jobs:
                    submit(handler, job("late", framework, servers, tmp_path, 1, 1), tmp_path)

            handler.observers.append(watch)
            submit(handler, job("long", framework, servers, tmp_path, 2, 3), tmp_path)
            await handler.wait(ended(handler, "long"))
            assert "late" in handler.jobs, handler.jobs["long"].message
            await handler.wait(ended(handler, "late"))
            return handler.jobs["long"]

    job_after = asyncio.run(main())
    began = next(i for i, one in enumerate(records) if isinstance(one, act.RunEpoch) and one.job == "late")
    given, released = (
        next(i for i, one in enumerate(records) if isinstance(one, kind) and one.job == "long")
        for kind in (act.ReleasePods, ev.PodsReleased)
    )
    running = next(one for one in reversed(records[:given]) if isinstance(one, act.RunEpoch))
    finished = next(
        i for i, one in enumerate(records) if isinstance(one, ev.EpochFinished) and one.token == running.token
    )
    assert [pod.role for pod in records[given].pods] == [Role.WORKER]
    assert given < released < began < finished, "it trains while the other's epoch goes on"
    said = next(one.message for one in records[given:] if isinstance(one, act.SetStatus))
    assert said.startswith(f"with {Allocation(1, servers)}, ") and "for late" in said, said
    assert not [one for one in records if isinstance(one, ev.EpochFailed | ev.PodLost)]
    epoch = next(one for one in job_after.epochs if one.token == running.token)
    assert (epoch.allocation, epoch.report.workers_lost) == (Allocation(1, servers), 1)
    assert epoch.report.samples >= epoch.report.data_size, "a whole epoch"
    assert job_after.progress.position == sum(one.report.samples for one in job_after.epochs)
    assert job_after.money.ledger.spent == sum(one.cost for one in job_after.epochs) <= job_after.money.ledger.budget
