"""Real functions under `--placement default | thesis`: pods wait for nodes one by one, whatever their jobs."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from coach.core.cluster import Pod, PodId, Resources, Role
from coach.core.jobs.reasons import Reason
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.platforms.local.cluster import parse_nodes
from coach.platforms.local.environment import Functions
from coach.plugins import policy
from coach_research.platforms.kube_scheduler import Default, parse_placement
from coach_research.platforms.pod_by_pod import PodByPodPlatform
from tests.platforms.local.test_platform import ended, job, submit

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("one_template"), pytest.mark.timeout(180)]

#: With it the stock order leaves each of the three jobs a pod short.
SEED = 1
ONE = {role: {"cpu": "1", "memory": "256Mi"} for role in ("scheduler", "server", "worker")}


class Said:
    """Collects what the platform reports by itself."""

    def __init__(self) -> None:
        self.pending: list[PodId] = []
        self.lost: list[PodId] = []

    def pod_pending(self, pod: PodId, reason: Reason, message: str) -> None:
        assert reason is Reason.WAITING_CAPACITY and message == f"{pod.name} fits on no node now"
        self.pending.append(pod)

    def pod_lost(self, pod: PodId, _reason: Reason, _message: str) -> None:
        self.lost.append(pod)


def platform_of(folder: Path, nodes: str, kind: Default, seed: int = 0) -> PodByPodPlatform:
    now = asyncio.get_running_loop().time
    return PodByPodPlatform(
        parse_nodes(nodes), Functions.find(), lambda name: folder / "logs" / name, now, kind=kind, seed=seed
    )


def test_a_pod_waits_until_another_gives_its_room_back(tmp_path: Path) -> None:
    """Two nodes of a core, four pods: two wait, one of these in vain; a host that dies makes room too."""

    async def scenario() -> None:
        platform, said = platform_of(tmp_path, "2x1", Default()), Said()
        await platform.open(said)
        spec = job("a", tmp_path)
        pods = [Pod(PodId("a", Role.WORKER, n), "", Resources(1.0, 0.25)) for n in range(4)]
        try:
            tasks = {pod.id: asyncio.create_task(platform.deploy(pod, spec)) for pod in pods}
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 2:
                done, _ = await asyncio.wait(tasks.values(), timeout=0.1)
            assert {task.result().node for task in done} == {"node-0", "node-1"}
            assert len(said.pending) == 2
            gave_up, goes_on = said.pending
            tasks[gave_up].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await tasks[gave_up]
            first, second = (pod for pod in tasks if tasks[pod] in done)
            await platform.release([first])
            assert (await tasks[goes_on]).node == tasks[first].result().node
            again = asyncio.create_task(platform.deploy(next(pod for pod in pods if pod.id == gave_up), spec))
            platform._processes[second].kill()
            assert (await again).node == tasks[second].result().node
            assert said.lost == [second]
        finally:
            await platform.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("placement", "stands_still"),
    [("default", True), pytest.param("thesis", False, marks=pytest.mark.full)],
)
def test_three_jobs_where_two_have_room(tmp_path: Path, placement: str, stands_still: bool) -> None:
    """Each job gets two of its three pods. The thesis's rules go by the age of the jobs here, and finish."""

    async def scenario() -> None:
        kind = parse_placement(placement)
        assert kind is not None
        async with contextlib.AsyncExitStack() as stack:
            journal = stack.enter_context(contextlib.closing(Journal.write(tmp_path / "journal.db")))
            handler = Handler(platform_of(tmp_path, "3x2", kind, SEED), journal, policy("coach"))
            await stack.enter_async_context(handler)
            for name in "abc":
                submit(
                    handler,
                    job(name, tmp_path, resources=ONE, policy={"name": "static", "workers": 1, "servers": 1}),
                    tmp_path,
                )
            done = ended(handler, *"abc")
            if not stands_still:
                await handler.wait(done)
                return

            def ready() -> list[int]:
                return [sum(held.ready for held in one.gang.pods.values()) for one in handler.jobs.values()]

            await handler.wait(lambda: ready() == [2, 2, 2])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await handler.wait(done)
            assert ready() == [2, 2, 2]
            for one in handler.jobs.values():
                assert len(one.gang.pods) == 3 and not one.epochs
                assert one.reason is Reason.WAITING_CAPACITY
                handler.cancel(one.name)
            await handler.wait(done)

    asyncio.run(scenario())
