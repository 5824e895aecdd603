"""What a job's GPUs do is looked at, kept with each epoch, and said wherever its state is said."""

from __future__ import annotations

import asyncio
import csv
import io
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from coach.core.cluster import Node, Pod, PodId, Resources, Role
from coach.core.jobs.epoch import DeviceUse
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.platforms.local import platform
from coach.platforms.local.devices.pool import DevicePool
from coach.report.row_types import EpochRow, as_csv
from coach.report.status import device_use, epoch_rows
from coach.report.why import device_use_words, why
from coach.service.metrics import _Jobs
from tests.gpus import gpus, new_uuid
from tests.platforms.local.test_platform import ended, handler_on, submit

PROGRAM = """
import os, time
from pathlib import Path
for epoch in range(1000):
    time.sleep(0.5)
    over = Path(os.environ["COACH_CHECKPOINTS"], "end").exists()
    print(f"epoch {epoch}: loss: {0.1 if over else 0.99**epoch}", flush=True)
"""


def program(name: str, folder: Path) -> TrainingJob:
    """A job of PROGRAM with a GPU."""
    spec = {
        "program": {"command": [sys.executable, "-c", PROGRAM], "directory": folder.as_uri()},
        "target": {"loss": 0.2, "epochsInARow": 1},
        "budget": {"unlimited": True},
        "resources": {"worker": {"cpu": "100m", "memory": "128Mi", "gpu": 1}},
    }
    kind = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob"}
    return TrainingJob.from_json({**kind, "metadata": {"name": name}, "spec": spec})


def test_of_several_looks_means_are_kept_and_the_most_memory() -> None:
    one, other = DeviceUse(1, 0.2, 1.0, 5.0, 100.0), DeviceUse(3, 0.6, 0.0, 4.0, None)
    assert DeviceUse.of([one, other]) == DeviceUse(4, pytest.approx(0.5), 0.25, 5.0, 100.0)
    assert DeviceUse.of([]) is None and DeviceUse.of([DeviceUse(2)]) == DeviceUse(2)


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_each_epoch_says_what_its_gpus_did_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "SAMPLE_SECONDS", 0.05)
    with gpus(tmp_path, ["NVIDIA_H100"] * 2, monkeypatch) as box:
        box.busy = {box.uuids[0]: 34, box.uuids[1]: 99}
        box.write()
        lines: list[str] = []

        async def main() -> Job:
            async with handler_on(tmp_path, "") as handler:
                submit(handler, program("a", tmp_path), tmp_path)
                await handler.wait(lambda: "a" in handler.jobs and bool(handler.jobs["a"].epochs))
                box.used = {box.uuids[0]: 20480}
                box.write()

                def looked() -> bool:
                    use = device_use(handler.jobs["a"])
                    return use is not None and use.memory == 20.0

                await handler.wait(looked)
                job = handler.jobs["a"]
                lines.extend(why(job, handler.jobs, [], handler.now()).lines)
                series = {
                    (one.name, *one.labels.values()): one.value for kind in _Jobs._live([job]) for one in kind.samples
                }
                assert series["coach_job_gpu_busy", "a"] == pytest.approx(0.34)
                assert series["coach_job_gpu_watts", "a"] == 300 and series["coach_job_gpu_memory", "a"] == 20
                (tmp_path / "checkpoints" / "a" / "end").touch()
                await handler.wait(ended(handler, "a"))
                return job

        job = asyncio.run(main())
    use = device_use(job)
    assert use is not None and (use.idle, use.memory, use.watts) == (0.0, 20.0, 300.0)
    assert use.busy == pytest.approx(0.34)
    assert "Its GPUs compute 34 % of the time: more workers will not help before the data comes faster" in lines
    assert device_use_words(job).startswith("34 % of the time computing, idle at 0.0 % of ")
    rows = list(csv.DictReader(io.StringIO(as_csv(EpochRow, epoch_rows(job)))))
    assert {round(float(row["gpu_busy"]), 6) for row in rows if row["gpu_busy"]} == {0.34}
    assert any(asdict(row)["gpu_memory"] == 20.0 for row in epoch_rows(job))


def test_of_a_mig_instance_the_memory_alone_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpus(tmp_path, ["NVIDIA_H100"], monkeypatch) as box:
        box.states[box.uuids[0]], box.instances = "cut", {new_uuid("MIG"): box.uuids[0]}
        box.write()

        async def main() -> None:
            pool, pod = DevicePool([Node("node", Resources(1.0, 1.0, 1.0))]), PodId("a", Role.WORKER, 0)
            pool.take(Pod(pod, "node", Resources(0.0, 0.0, 1.0)))
            assert pool.used([pod]) is None  # nobody has looked yet
            pool.note(pool.look())
            seen = pool.look()
            use = pool.used([pod])
            assert use is not None and (use.samples, use.busy, use.idle, use.memory) == (1, None, None, 0.0)
            pool.give_back()
            pool.note(seen)  # it came too late
            assert pool.used([pod]) is None

        asyncio.run(main())
