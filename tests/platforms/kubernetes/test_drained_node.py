"""A node is drained while an elastic group trains on it: real functions and a real API server. The test is kubelet."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import textwrap
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from coach.core.cluster import Allocation, PodId, Role
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import EpochOrder, GangSize
from coach.platforms.kubernetes import platform as module
from coach.platforms.kubernetes.platform import KubernetesPlatform
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api
from tests.functions.hosting import ROOT, Template, process
from tests.functions.mxnet.test_elastic import MLP
from tests.functions.pytorch.test_elastic import SLOW
from tests.platforms.kubernetes.test_platform import PODS, Heard, Kubelets, pod_of, training_job
from tests.platforms.orders import whole_epoch

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

FRAMEWORKS = [
    pytest.param("mxnet", marks=pytest.mark.mxnet),
    pytest.param("pytorch", marks=[pytest.mark.pytorch, pytest.mark.full]),
]
SCHEDULER, WORKER = PodId("job", Role.SCHEDULER, 0), PodId("job", Role.WORKER, 0)
SERVERS = PodId("job", Role.SERVER, 0), PodId("job", Role.SERVER, 1)
#: Node and address of each pod.
PLACES = {
    SCHEDULER: ("n1", "127.0.67.1"),
    WORKER: ("n1", "127.0.67.2"),
    SERVERS[0]: ("n2", "127.0.67.3"),
    SERVERS[1]: ("n1", "127.0.67.4"),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Its name, and the environment of its functions: their zygotes come from one process."""
    name = str(request.param)
    environment = {"COACH_FRAMEWORK": name}
    template = Template(tmp_path / "t.sock", **environment)
    yield name, environment | {"COACH_ZYGOTE_TEMPLATE": str(template.path)}
    template.close()


def job(framework: str, folder: Path) -> TrainingJob:
    """Two servers; it is slow until the file `go` is there."""
    model = folder / "slow.py"
    model.write_text(textwrap.dedent(MLP if framework == "mxnet" else SLOW))
    mine = {"framework": framework, **({"parameterServer": "elastic"} if framework == "mxnet" else {"image": "t:1"})}
    return training_job(
        model={"file": model.as_uri()},
        data={"uri": (ROOT / ".data/mnist-digits").as_uri(), "format": "digits-json", "size": 1440},
        batchSize=32,
        seed=3,
        optimizer={"name": "adam", "learningRate": 0.002} if framework == "mxnet" else {"name": "Adam", "lr": 0.002},
        servers={"min": 1, "max": 2},
        **mine,
    )


class Cluster(Kubelets):
    """Kubelets whose pods are processes of this machine."""

    def __init__(self, server: Any, environment: dict[str, str]) -> None:
        super().__init__(server)
        self._environment = environment
        self.processes: dict[PodId, Popen[bytes]] = {}

    async def start(self, pod: PodId) -> None:
        """What a kubelet does with a pod that is bound to its node, until it is deleted."""
        node, address = PLACES[pod]
        arguments = ["-m", "training.serving.serve", pod.role.value, "--host", address]
        running = self.processes[pod] = process(arguments, self._environment | await self._key(pod))
        while True:
            with contextlib.suppress(OSError):
                (await asyncio.open_connection(address, 8080))[1].close()
                break
            await asyncio.sleep(0.05)
        await self.run(pod.name, node, address)
        found = await self.there(pod.name)
        while "deletionTimestamp" not in found["metadata"]:
            await asyncio.sleep(0.05)
            found = await self._ask("GET", f"{PODS}/{pod.name}")
            if found.get("kind") == "Status":  # deleted by force
                running.kill()
                break
        running.terminate()
        await asyncio.to_thread(running.wait)
        await self._ask("DELETE", f"{PODS}/{pod.name}", {"gracePeriodSeconds": 0})

    async def _key(self, pod: PodId) -> dict[str, str]:
        """What the pod's environment has from its Secret."""
        found = await self.there(pod.name)
        (one,) = [one for one in found["spec"]["containers"][0]["env"] if "valueFrom" in one]
        secret = await self._ask(
            "GET", f"/api/v1/namespaces/default/secrets/{one['valueFrom']['secretKeyRef']['name']}"
        )
        return {one["name"]: base64.b64decode(secret["data"]["key"]).decode()}

    async def evict(self, pod: PodId) -> None:
        """As `kubectl drain` does; the API server of this test has no controller that would say so in the pod."""
        target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}
        await self.status(pod.name, conditions=[{"type": "Ready", "status": "True"}, target])
        await self._ask("DELETE", f"{PODS}/{pod.name}")


@asynccontextmanager
async def running(cluster: Cluster, heard: Heard, spec: TrainingJob) -> AsyncIterator[KubernetesPlatform]:
    """The platform with all of the job's pods ready."""
    for name in ("n1", "n2"):
        await cluster.node(name)
    platform = KubernetesPlatform(Api.connect, Settings("c:9", handler="h"), lambda _: Path(os.devnull), time.time)
    await platform.open(heard)
    kubelets = []
    try:
        await platform.gang(GangSize("job", Allocation(1, 1), Allocation(1, 2)), spec)
        kubelets = [asyncio.create_task(cluster.start(pod)) for pod in PLACES]
        await asyncio.gather(*(platform.deploy(pod_of(spec, pod), spec) for pod in PLACES))
        yield platform
    finally:
        await platform.close()
        await asyncio.gather(*kubelets)


async def epoch(
    platform: KubernetesPlatform, spec: TrainingJob, folder: Path, number: int, disturb: Any
) -> EpochReport:
    """The report of an epoch from the initial weights, which `disturb` disturbs once it has trained a while."""
    (folder / "go").unlink(missing_ok=True)
    trained = asyncio.Event()
    pods = [pod for pod in PLACES if pod in platform._ready]
    action = whole_epoch(
        pods,
        (folder / f"{number}.ckpt").as_uri(),
        at=time.time(),
        deadline=300.0,
        allocation=Allocation(1, 2),
        token=f"job.{number}",
        group=f"job.g{number}",
        epoch_samples=32 * 200,
    )
    addresses = {pod: f"{PLACES[pod][1]}:8080" for pod in pods}
    order = EpochOrder(action, spec, addresses, action.at + action.deadline)
    task = asyncio.create_task(platform.run_epoch(order, lambda each: trained.set() if each.samples > 99 else None))
    begun = asyncio.create_task(trained.wait())
    await asyncio.wait({begun, task}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        await disturb()
    (folder / "go").touch()
    return (await task)[0]


def weights(checkpoint: Path) -> dict[str, bytes]:
    """The arrays of a checkpoint by name, of weights and of the optimizer's state."""
    with zipfile.ZipFile(checkpoint) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy") or "/data/" in name]
        assert names
        return {name.partition("/")[2]: archive.read(name) for name in names}


@pytest.mark.parametrize("notice", ["eviction", pytest.param("taint", marks=pytest.mark.full)])
def test_a_server_hands_over_what_it_holds_before_its_node_is_gone(
    server: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    framework: tuple[str, dict[str, str]],
    notice: str,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    # The API server's proxy reaches no loopback address.
    monkeypatch.setattr(module, "PodProxy", lambda *_: module.Direct())
    spec, steps = job(framework[0], tmp_path), tmp_path / "steps"

    async def main() -> None:
        cluster, heard = Cluster(server, framework[1]), Heard()

        async def disturb() -> None:
            if notice == "eviction":
                await cluster.evict(SERVERS[0])
            else:
                await cluster.node("n2", taints=[{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}])
            await heard.until(lambda: heard.lost)
            await cluster.gone(SERVERS[0].name)

        async def nothing() -> None:
            assert not heard.lost

        async with running(cluster, heard, spec) as platform:
            reports, trained = [], []
            for number, happens in enumerate((nothing, disturb), 1):
                steps.unlink(missing_ok=True)
                reports.append(await epoch(platform, spec, tmp_path, number, happens))
                trained.append(len(steps.read_bytes()))
            assert [(pod, reason) for pod, reason, _ in heard.lost] == [(SERVERS[0], Reason.DISRUPTED)]
        plain, drained = reports
        assert (plain.workers_lost, drained.workers_lost) == (0, 1), "the speed of that epoch is not that of 1x2"
        assert trained[0] == trained[1], "no mini-batch was trained twice"
        assert (drained.samples, drained.loss) == (plain.samples, plain.loss)
        assert weights(tmp_path / "1.ckpt") == weights(tmp_path / "2.ckpt")
        statuses = [one.returncode for one in cluster.processes.values()]
        assert cluster.processes[SERVERS[0]].returncode in (0, -signal.SIGKILL), statuses

    asyncio.run(main())
