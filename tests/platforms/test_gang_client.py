"""What the client of a gang sends when a member is of no use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Allocation, PodId, Role
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import EpochError, EpochOrder
from coach.platforms.gang_client import GangClient
from tests.core.lifecycle.faulty_cluster import spec
from tests.platforms.orders import whole_epoch

pytestmark = pytest.mark.processes


class Answering:
    """Functions that answer as `answer` says."""

    def __init__(self, answer: Callable[[Mapping[str, Any]], tuple[int, Any]]) -> None:
        self._answer = answer

    async def post(self, address: str, body: Mapping[str, Any], seconds: float) -> tuple[int, bytes]:
        status, said = self._answer(json.loads(json.dumps(body)))
        return status, json.dumps(said).encode()

    async def close(self) -> None:
        """There is nothing to close."""


def test_a_member_that_hangs_in_the_group_before_is_ended_with_it(tmp_path: Path) -> None:
    """A scheduler that was stopped as its workers ended would else refuse every group of the job."""
    pods = tuple(PodId("job", role, 0) for role in Role)
    order = whole_epoch(pods, (tmp_path / "job.2.ckpt").as_uri(), token="job.2", group="job.g2")
    stopped: list[str] = []

    def answer(body: Mapping[str, Any]) -> tuple[int, Any]:
        if body["op"] == "stop":
            stopped.append(body["group"])
            return 200, {"state": "stopped"}
        return 409, {"error": {"reason": "Busy", "message": "epoch job.1 of group job.g1 is training"}}

    async def main() -> None:
        addresses = {pod: f"127.0.0.1:{9000 + number}" for number, pod in enumerate(pods)}
        epoch = EpochOrder(order, TrainingJob.from_json(spec()), addresses, time.time() + 60.0)
        await GangClient(Answering(answer), epoch, time.time).run(lambda _progress: None)

    with pytest.raises(EpochError) as caught:
        asyncio.run(main())
    assert caught.value.reason is Reason.BUSY
    assert sorted(set(stopped)) == ["job.g1", "job.g2"]


def test_workers_get_the_network_the_optimizer_and_its_schedule_as_their_framework_reads_them(
    tmp_path: Path,
) -> None:
    schedule = {"name": "MultiStepLR", "milestones": [2000, 4000], "gamma": 0.1}
    document = spec(
        framework="pytorch",
        model={"file": "file:///m.py:LeNet", "args": {"width": 3}},
        data={"format": "custom", "readers": 2},
        microBatch=8,
        evaluationBatch=9,
        clip={"norm": 1.0},
        epoch={"fraction": 0.25},
        optimizer={"name": "AdamW", "lr": 0.001, "betas": [0.9, 0.999], "schedule": schedule},
        servers={"max": 0},
        deterministic=True,
        autocast="bfloat16",
        resources={"worker": {"cpu": 1, "memory": "1Gi", "gpu": 1}},
    )
    pods = PodId("job", Role.SCHEDULER, 0), PodId("job", Role.WORKER, 0)
    order = whole_epoch(pods, (tmp_path / "1").as_uri(), allocation=Allocation(1, 0))
    started: dict[str, Any] = {}

    def answer(body: Mapping[str, Any]) -> tuple[int, Any]:
        started.update({body["role"]: body} if body["op"] == "start" else {})
        return 400, {"error": {"reason": "BadRequest", "message": "enough"}}

    async def main() -> None:
        addresses = {pod: f"127.0.0.1:{9000 + number}" for number, pod in enumerate(pods)}
        epoch = EpochOrder(order, TrainingJob.from_json(document), addresses, time.time() + 60.0)
        await GangClient(Answering(answer), epoch, time.time).run(lambda _progress: None)

    with pytest.raises(EpochError):
        asyncio.run(main())
    worker = started["worker"]
    assert worker["servers"] == 0
    assert (worker["deterministic"], worker["autocast"], worker["gpu"]) == (True, "bfloat16", True)
    of_file = {"uri": "file:///m.py", "sha256": None, "net": "LeNet", "files": {}, "args": {"width": 3}}
    assert worker["model"] == of_file
    assert (worker["readers"], worker["micro_batch"], worker["evaluation_batch"]) == (2, 8, 9)
    assert worker["clip"] == {"norm": 1.0, "value": None}
    assert (worker["fraction"], worker["epoch_samples"]) == (0.25, None), "its samples are not known yet"
    assert worker["optimizer"] == {
        "name": "AdamW",
        "learning_rate": 0.001,
        "betas": [0.9, 0.999],
        "schedule": schedule | {"interval": "step"},
    }
