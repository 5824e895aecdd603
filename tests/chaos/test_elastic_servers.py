"""Faults of a job with elastic parameter servers; `make chaos N=100 SEED=1 SERVERS=elastic` is the long run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import PodId, Role
from coach.core.jobs.job import Job
from coach.core.spec.training import Framework, ParameterServer
from tests.chaos.draw import Fault, Instant, Victim
from tests.chaos.stage import MODELS, Outcome, Stage, losses

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions", "one_template"), pytest.mark.timeout(600)]

KILLED = "killed"


async def _kill_a_server_after_a_copy(stage: Stage) -> int:
    """The position of the copy."""

    async def ask(role: Role, index: int, **body: Any) -> dict[str, Any]:
        address = stage._addresses[PodId(KILLED, role, index)]
        answer: dict[str, Any] = json.loads((await stage.platform._calls.post(address, body, 60))[1])
        return answer

    copied = 0
    while not copied:
        await asyncio.sleep(0.05)
        order = stage.handler.jobs[KILLED].attempts.running if KILLED in stage.handler.jobs else None
        if order is not None:
            copied = (await ask(Role.SCHEDULER, 0, op="status", epoch=order.token))["progress"].get("copied", 0)
    os.kill((await ask(Role.SERVER, 1, op="health"))["child_pid"], signal.SIGKILL)
    return copied


@pytest.mark.full
def test_workers_and_servers_survive_each_other_at_any_instant(tmp_path: Path) -> None:
    faults = [
        Fault(Victim.WORKER, "SIGKILL", Instant.TRAINING, "worker", 3, 0.4),
        Fault(Victim.SERVER, "SIGKILL", Instant.TRAINING, "server", 2, 0.4),
    ]
    slow = tmp_path / "slow.py"
    slow.write_text(MODELS[Framework.MXNET].read_text().replace("PAUSE = 0.004", "PAUSE = 0.15"))

    async def main() -> tuple[list[Outcome], Job, list[str], int, str]:
        async with Stage.open(servers_are=ParameterServer.ELASTIC) as stage:
            outcomes = [await stage.run_with(f"run-{number}", fault) for number, fault in enumerate(faults)]
            kill = asyncio.create_task(_kill_a_server_after_a_copy(stage))
            target = {"loss": 2.3, "epochsInARow": 1}  # it has that after its first epoch
            job = await stage.run(KILLED, probing=False, model={"file": slow.as_uri()}, target=target)
            copied = await kill
            logs = (path for path in (stage.folder / "logs" / KILLED).rglob("*") if path.is_file())
            return outcomes, job, losses(job, 0, stage.calm), copied, "".join(path.read_text() for path in logs)

    outcomes, job, lost, copied, logs = asyncio.run(main())
    assert [(outcome.lost, bool(outcome.struck)) for outcome in outcomes] == [([], True)] * len(faults)
    repeated = [outcome.attempts - outcome.epochs for outcome in outcomes]
    assert repeated == [0, 0], "a lost worker or server costs no attempt"
    assert not lost and job.epochs[0].report.workers_lost == 1
    (again,) = re.findall(r"a server died: (\d+) samples are trained again, of (\d+)", logs) or [("0", "0")]
    assert int(again[0]) <= max(0, int(again[1]) - copied), "the steps since the copy, and not the epoch's"
