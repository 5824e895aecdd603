"""What the client of a gang sends when a member is of no use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Allocation, PodId, Role
from coach.core.jobs.actions import StallTimeouts
from coach.core.jobs.epoch import EpochReport
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
        self.followed = 0

    async def post(self, address: str, body: Mapping[str, Any], seconds: float, key: str = "") -> tuple[int, bytes]:
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
        await GangClient(Answering(answer), epoch, time.time, "key").run(lambda _progress: None)

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
        await GangClient(Answering(answer), epoch, time.time, "key").run(lambda _progress: None)

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


class Skipping(selectors.SelectSelector):
    """Waits for nothing: the loop's clock goes on instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0.0)


def skipping() -> tuple[asyncio.AbstractEventLoop, Skipping]:
    clock = Skipping()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now  # type: ignore[method-assign]
    return loop, clock


@pytest.mark.parametrize(("others", "fewest", "most"), [(0, 190, 220), (150, 190, 220), (4000, 10, 40)])
def test_with_many_functions_each_is_asked_more_rarely_and_its_end_is_seen_all_the_same(
    others: int, fewest: int, most: int, tmp_path: Path
) -> None:
    """An epoch of 100 s of a worker that is as far as time is."""
    pods = PodId("job", Role.SCHEDULER, 0), PodId("job", Role.WORKER, 0)
    order = whole_epoch(pods, (tmp_path / "1").as_uri(), allocation=Allocation(1, 0), at=0.0, deadline=1000.0)
    loop, clock = skipping()
    asked: list[float] = []

    def answer(body: Mapping[str, Any]) -> tuple[int, Any]:
        if body["op"] == "start" or body["wait"] == 0.0:
            return 200, {"state": "training", "version": 0}
        asked.append(clock.now)
        report = {"samples": 1000, "data_size": 1000, "loss": 1.0, "train_seconds": 100.0}
        progress = {"samples": round(10 * clock.now), "total": 1000}
        state = "done" if clock.now >= 100.0 else "training"
        return 200, {"state": state, "version": len(asked), "progress": progress, "report": report}

    async def main() -> None:
        calls = Answering(answer)
        calls.followed = others
        addresses = {pod: f"127.0.0.1:{9000 + number}" for number, pod in enumerate(pods)}
        document = spec(framework="pytorch", servers={"max": 0})
        epoch = EpochOrder(order, TrainingJob.from_json(document), addresses, 1000.0)
        await GangClient(calls, epoch, loop.time, "key").run(lambda _progress: None)
        assert calls.followed == others

    with contextlib.closing(loop):
        loop.run_until_complete(main())
    assert fewest <= len(asked) <= most
    assert asked[-2] < 100.0 <= asked[-1] < 101.0


@pytest.mark.parametrize("hanging", [PodId("job", Role.WORKER, 0), PodId("job", Role.SERVER, 1)])
def test_an_elastic_group_goes_on_without_the_one_that_does_not_start_and_not_without_those_that_wait_for_it(
    hanging: PodId, tmp_path: Path
) -> None:
    pods = (
        PodId("job", Role.SCHEDULER, 0),
        *(PodId("job", role, n) for role in (Role.SERVER, Role.WORKER) for n in (0, 1)),
    )
    limits = StallTimeouts(300.0, 30.0, 60.0, 60.0)
    order = whole_epoch(
        pods, (tmp_path / "1").as_uri(), allocation=Allocation(2, 2), at=0.0, deadline=1000.0, stall_timeouts=limits
    )
    loop, clock = skipping()
    resized: list[Mapping[str, Any]] = []
    members: dict[str, PodId] = {f"127.0.0.1:{9000 + number}": pod for number, pod in enumerate(pods)}

    class Group(Answering):
        async def post(self, address: str, body: Mapping[str, Any], seconds: float, key: str = "") -> tuple[int, bytes]:
            if body["op"] == "resize":
                resized.append({"at": clock.now, **body})
            state = "starting" if members[address] == hanging else "done" if resized else "forming"
            report = {"samples": 10, "data_size": 10, "loss": 1.0, "train_seconds": 1.0}
            said = {"state": state, "version": 1 + len(resized), "report": report}
            await asyncio.sleep(body.get("wait", 0.0) if not resized else 0.0)  # nothing changes
            return 200, json.dumps(said).encode()

    async def main() -> tuple[EpochReport, int]:
        document = spec(parameterServer="elastic", servers={"max": 2})
        addresses = {pod: address for address, pod in members.items()}
        epoch = EpochOrder(order, TrainingJob.from_json(document), addresses, 1000.0)
        return await GangClient(Group(lambda _: (200, {})), epoch, loop.time, "key").run(lambda _progress: None)

    with contextlib.closing(loop):
        report, _ = loop.run_until_complete(main())
    assert report.workers_lost == 1
    left = {"members": [0, 1], "server_members": [0, 1]}
    left["members" if hanging.role is Role.WORKER else "server_members"].remove(hanging.index)
    assert {name: resized[0][name] for name in left} == left
    assert limits.forming < resized[0]["at"] < limits.forming + 5.0
