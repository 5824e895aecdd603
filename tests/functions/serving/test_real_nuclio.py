"""The three functions, unchanged, under the real Nuclio processor: a group trains, stays formed, and changes its size.

Runs where COACH_NUCLIO_PROCESSOR and COACH_NUCLIO_WRAPPER name Nuclio's own binary and Python wrapper (and
COACH_NUCLIO_PYTHONPATH a folder with msgpack, which the wrapper needs). The last run
is noted in docs/project/worker-protocol.md.
"""

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coach.core.cluster import Allocation, PodId, Role
from coach.core.spec.job import TrainingJob
from coach.platforms.base import EpochOrder
from coach.platforms.function_calls import Direct
from coach.platforms.gang_client import GangClient
from tests.core.lifecycle.faulty_cluster import spec
from tests.functions.serving.asking import KEY, NUCLIO, in_nuclio
from tests.platforms.orders import whole_epoch

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not all(name in os.environ for name in NUCLIO[:2]),
        reason="the real Nuclio processor is not named by COACH_NUCLIO_PROCESSOR and COACH_NUCLIO_WRAPPER",
    ),
]

ROOT = Path(__file__).parents[3]
BLOCK = f"127.{200 + os.getpid() % 50}"


@contextlib.contextmanager
def processor(role: Role, index: int, folder: Path):
    """One function under Nuclio's processor; its address."""
    host = f"{BLOCK}.{list(Role).index(role) + 1}.{index + 1}"
    with in_nuclio(folder, role.value, host, (8080, 8082)) as running:
        running.wait_ready()
        yield running.address


@pytest.mark.parametrize("servers", ["ps-lite", "elastic"])
def test_a_group_trains_stays_formed_and_grows_under_the_real_processor(servers, tmp_path):
    job = TrainingJob.from_json(
        spec(
            "real",
            parameterServer=servers,
            model={"file": (ROOT / "functions/models/mlp.py").as_uri()},
            optimizer={"name": "sgd", "learningRate": 0.1},
        )
    )
    pods = [PodId("real", Role.SCHEDULER, 0), PodId("real", Role.SERVER, 0)]
    pods += [PodId("real", Role.WORKER, 0), PodId("real", Role.WORKER, 1)]
    first = whole_epoch(pods[:3], (tmp_path / "real.1.ckpt").as_uri())

    async def run(order, addresses):
        calls, due = Direct(), time.time() + 60
        try:
            client = GangClient(calls, EpochOrder(replace(order, at=time.time()), job, addresses, due), time.time, KEY)
            return (await client.run(lambda progress: None))[0]
        finally:
            await calls.close()

    def after(order, report, token, **changes):
        return replace(
            order,
            token=token,
            position=order.position + report.samples,
            weights_in=order.weights_out,
            weights_out=(tmp_path / f"{token}.ckpt").as_uri(),
            **changes,
        )

    with contextlib.ExitStack() as stack:
        addresses = {pod: stack.enter_context(processor(pod.role, pod.index, tmp_path / pod.name)) for pod in pods}
        one = asyncio.run(run(first, addresses))
        second = after(first, one, "real.2")
        two = asyncio.run(run(second, addresses))
        # Elastic servers' group stays what it is when a worker comes.
        group = {"ps-lite": "real.g2", "elastic": second.group}[servers]
        third = after(second, two, "real.3", group=group, allocation=Allocation(2, 1), pods=tuple(pods))
        three = asyncio.run(run(third, addresses))
    assert two.form_seconds < one.form_seconds
    assert servers == "elastic" or two.form_seconds < three.form_seconds
    assert one.loss > two.loss > three.loss
