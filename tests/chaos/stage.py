"""Real functions under a real handler, one small job after another, and a hand that strikes at one of its processes.

A `Stage` is one handler in this process; each run is a job of its own on it. Runs whose victim is the handler
itself are in `tests.chaos.runs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from coach.core.cluster import Node, PodId, Resources
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Framework, ParameterServer
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.platforms.function_calls import Unanswered
from coach.platforms.local.environment import Functions
from coach.platforms.local.platform import LocalPlatform
from coach.plugins import policy
from tests.chaos import reference
from tests.chaos.draw import SIGNALS, Fault, Instant, Victim
from tests.chaos.processes import children, command, descendants, gone, listening

HERE = Path(__file__).parent
#: Seconds a run may take; a stopped process is noticed within some ten, and each attempt starts functions anew.
PATIENCE = 180.0
#: A node on which any number of such jobs finds room at once.
ROOMY = (Node("node-0", Resources(64.0, 512.0)),)
#: Batches that the reference trains: more than any run does.
BATCHES = 300
#: Test losses agree so well with a training in one process: sums of floats in another order differ in the last
#: digits, and training carries the difference on. Two workers' sums do not depend on the order at all.
TOLERANCE = 1e-3


#: Losses that both reach in six epochs.
TARGETS = {Framework.MXNET: 0.3, Framework.PYTORCH: 0.47}
#: Models and data. Debian's PyTorch comes without scikit-learn and its digits.
MODELS = {Framework.MXNET: HERE / "model.py", Framework.PYTORCH: HERE / "model_pytorch.py"}
DATA: dict[Framework, dict[str, Any]] = {
    Framework.MXNET: {"format": "digits8x8"},
    Framework.PYTORCH: {
        "format": "digits-json",
        "uri": str(HERE.parents[1] / ".data/mnist-digits"),
        "size": 1440,
    },
}


def job_file(
    name: str,
    framework: Framework = Framework.MXNET,
    servers_are: ParameterServer = ParameterServer.PS_LITE,
    *,
    probing: bool,
) -> dict[str, Any]:
    """A job of six epochs of a quarter of a second.

    With two workers and two servers (PyTorch: none) from the start, or one that measures its speed first.
    """
    role = {"cpu": "50m", "memory": "300Mi"}
    optimizer = dict(reference.OPTIMIZERS[framework.value])
    if framework is Framework.PYTORCH:
        optimizer["lr"] = optimizer.pop("learning_rate")
    else:
        optimizer["learningRate"] = optimizer.pop("learning_rate")
    servers = {"min": 1, "max": 2} if framework is Framework.MXNET else {"min": 0, "max": 0}
    spec = {
        "framework": framework.value,
        "parameterServer": servers_are.value,
        "model": {"file": MODELS[framework].as_uri()},
        "data": DATA[framework],
        "target": {"loss": TARGETS[framework], "epochsInARow": 2},
        "budget": {"amount": 0.05, "currency": "USD"},
        "workers": {"min": 1, "max": 2},
        "servers": servers,
        "resources": {"scheduler": role, "server": role, "worker": role},
        "optimizer": optimizer,
        "seed": reference.SEED,
        "batchSize": reference.BATCH,
        # By its part of the data, not by time: so that every run has the same epochs.
        "miniEpoch": {"minSeconds": 20, "maxSeconds": 40, "maxFraction": 0.2},
        "maxEpochs": 12,
    }
    if not probing:
        spec["policy"] = {"name": "static", "workers": 2, "servers": servers["max"]}
    content = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    return {**content, "spec": spec}


@cache
def reference_curve(framework: Framework) -> dict[int, float]:
    """Test loss by samples seen, of the same training without Coach and without groups."""
    command_line = [
        str(Functions.find(framework).python),
        str(HERE / "reference.py"),
        str(MODELS[framework]),
        str(BATCHES),
        json.dumps(DATA[framework]),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COACH_FRAMEWORK": framework.value,
    }
    done = subprocess.run(command_line, env=environment, capture_output=True, text=True, check=True)
    return {int(position): loss for position, loss in json.loads(done.stdout).items()}


def losses(job: Job, injected: int, calm: Sequence[float]) -> list[str]:
    """What of a finished job is not as if nothing had happened. `calm`: losses of one undisturbed."""
    found: list[str] = []

    def expect(holds: bool, what: str) -> None:
        if not holds:
            found.append(what)

    expect(job.state is State.SUCCEEDED, f"ended {job.state} {job.reason}: {job.message}")
    expect(
        job.attempts.count <= len(job.epochs) + injected, f"{job.attempts.count} attempts for {len(job.epochs)} epochs"
    )
    expect([e.number for e in job.epochs] == list(range(1, len(job.epochs) + 1)), "epochs twice or missing")
    position = 0
    for epoch in job.epochs:
        position += epoch.report.samples
        if epoch.report.loss is None:  # of mini-epochs only the first is evaluated
            continue
        wanted = reference_curve(job.spec.framework)[position]
        off = abs(epoch.report.loss - wanted) / wanted
        expect(off < TOLERANCE, f"epoch {epoch.number}: loss {epoch.report.loss} is {off:.1e} off the reference")
    expect(job.progress.position == position, f"position {job.progress.position}, samples {position}")
    # An elastic group that has lost a worker adds the same numbers in another order.
    whole = all(epoch.allocation == (2, 2) and epoch.kind is EpochKind.FULL for epoch in job.epochs)
    if whole and not job.spec.elastic:
        losses = [epoch.report.loss for epoch in job.epochs]
        expect(losses == list(calm), f"losses {losses}, undisturbed {list(calm)}")
    ledger = job.money.ledger
    expect(sum(job.money.charges.values()) == ledger.spent, f"spent {ledger.spent}, charges {job.money.charges}")
    counted = {epoch.token: epoch.cost for epoch in job.epochs}
    expect(all(job.money.charges.get(t) == cost for t, cost in counted.items()), "an epoch's cost is not its charge")
    expect(0 < ledger.spent <= (ledger.budget or 0), f"spent {ledger.spent} of {ledger.budget}")
    expect(ledger.reserved == 0 and not job.gang.pods, "something is still held")
    return found


@dataclass
class Outcome:
    """How a run ended. `struck`: the process that was hit, "" where the job ended before."""

    struck: str
    lost: list[str]
    attempts: int = 0
    epochs: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def running() -> set[int]:
    """The processes of functions that come from this one."""
    return {pid for pid in descendants(os.getpid()) if "training" in command(pid)}


class Stage:
    """See the module's description. Use as `async with Stage.open() as stage`."""

    def __init__(
        self,
        folder: Path,
        handler: Handler,
        platform: LocalPlatform,
        framework: Framework,
        servers_are: ParameterServer,
    ) -> None:
        self.framework, self.servers_are = framework, servers_are
        self.folder = folder
        self.handler = handler
        self.platform = platform
        self.calm: tuple[float, ...] = ()
        self._zygotes: dict[PodId, int] = {}
        self._functions: dict[PodId, int] = {}
        self._addresses: dict[PodId, str] = {}
        self._noting: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        framework: Framework = Framework.MXNET,
        servers_are: ParameterServer = ParameterServer.PS_LITE,
    ) -> AsyncIterator[Stage]:
        """A handler on a folder of its own; at the end nothing of it may be left, else AssertionError."""
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            folder, temporary = Path(name), Path(name) / "tmp"
            temporary.mkdir()
            before = running()  # the templates of other tests of this session
            tempfile.tempdir = str(temporary)
            try:
                async with cls._handler(folder, framework, servers_are) as stage:
                    calm = await stage.run("calm", probing=False)
                    stage.calm = tuple(epoch.report.loss for epoch in calm.epochs)
                    assert not (wrong := losses(calm, 0, stage.calm)), f"undisturbed, and yet {wrong}"
                    yield stage
            finally:
                tempfile.tempdir = None
            left = gone(lambda: [command(pid) for pid in running() - before], 5)
            left += [str(path) for path in temporary.iterdir()]
            assert not left, f"left behind: {left}"

    @classmethod
    @contextlib.asynccontextmanager
    async def _handler(cls, folder: Path, framework: Framework, servers_are: ParameterServer) -> AsyncIterator[Stage]:
        journal = Journal.write(folder / "journal.db")
        local = LocalPlatform(
            ROOMY,
            Functions.find(framework),
            lambda job: folder / "logs" / job,
            lambda: handler.now(),  # noqa: PLW0108
        )
        handler = Handler(local, journal, policy("coach"))
        try:
            async with handler:
                stage = cls(folder, handler, local, framework, servers_are)
                handler.observers.append(stage._note_pods)
                try:
                    yield stage
                finally:  # they take seconds at most; cancelled, they could leave connections open
                    await asyncio.gather(*stage._noting, return_exceptions=True)
        finally:
            journal.close()

    async def run(self, name: str, *, probing: bool, seconds: float = PATIENCE, **changes: Any) -> Job:
        """A job from its submission to its end; `changes` to its spec."""
        content = job_file(name, self.framework, self.servers_are, probing=probing)
        spec = TrainingJob.from_json({**content, "spec": {**content["spec"], **changes}})
        self.handler.submit(spec, (self.folder / "checkpoints" / name).as_uri())
        async with asyncio.timeout(seconds):
            await self.handler.wait(lambda: name in self.handler.jobs and self.handler.jobs[name].ended)
        return self.handler.jobs[name]

    async def run_with(self, name: str, fault: Fault) -> Outcome:
        """One run: the job, the fault, and what is wrong afterwards."""
        failures: list[str] = []

        def note(event: ev.Event, _: Sequence[act.Action]) -> None:
            if isinstance(event, ev.EpochFailed | ev.PodLost) and event.job == name:
                failures.append(f"{type(event).__name__} {event.reason.value}: {event.message}")

        self.handler.observers.append(note)
        hand = asyncio.create_task(self._strike(name, fault))
        await asyncio.sleep(0)  # it watches before there is anything to see
        began = time.monotonic()
        try:
            job = await self.run(name, probing=fault.probing)
            lost = losses(job, 1, self.calm)
        except TimeoutError:
            job = self.handler.jobs[name]
            lost = [f"not over after {PATIENCE:.0f} s: {job.phase} {job.reason}: {job.message}"]
            self.handler.cancel(name)
        finally:
            self.handler.observers.remove(note)
        seconds = time.monotonic() - began
        hand.cancel()
        await asyncio.wait({hand})
        struck = "" if hand.cancelled() else hand.result()
        lost += await self._left_behind(name)
        self._wake_template()
        return Outcome(struck, lost, job.attempts.count, len(job.epochs), failures, seconds)

    # -- striking -----------------------------------------------------------------------------------------

    def _note_pods(self, event: ev.Event, _: Sequence[act.Action]) -> None:
        if isinstance(event, ev.PodReady):
            self._addresses[event.pod] = event.address
            self._functions[event.pod] = self.platform._processes[event.pod].pid
            task = asyncio.create_task(self._note_zygote(event.pod, event.address))
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)

    async def _note_zygote(self, pod: PodId, address: str) -> None:
        with contextlib.suppress(Unanswered):
            _, answer = await self.platform._calls.post(address, {"op": "health"}, 60)
            self._zygotes[pod] = json.loads(answer)["zygote_pid"]

    async def _strike(self, name: str, fault: Fault) -> str:
        """Wait for the instant and send the signal; `role pid` of the process that was hit."""
        await self._instant(name, fault)
        while True:
            pid = self.process(name, fault)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, SIGNALS[fault.signal])
                    return f"{fault.victim} {pid}"
            await asyncio.sleep(0.002)

    async def _instant(self, name: str, fault: Fault) -> None:
        """Return at the drawn instant; how long each part takes is known from the undisturbed run."""

        def seen(holds: Callable[[ev.Event, act.Action | None], bool]) -> asyncio.Future[None]:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def observe(event: ev.Event, actions: Sequence[act.Action]) -> None:
                if not future.done() and event.job == name and any(holds(event, a) for a in (*actions, None)):
                    future.set_result(None)

            self.handler.observers.append(observe)
            future.add_done_callback(lambda _: self.handler.observers.remove(observe))
            return future

        train, evaluate = self.usual
        match fault.instant:
            case Instant.STARTING:
                await seen(lambda _, action: isinstance(action, act.DeployPods))
                await asyncio.sleep(fault.share * 0.5)
            case Instant.PROBING:
                await seen(
                    lambda _, action: (
                        isinstance(action, act.RunEpoch)
                        and action.kind is EpochKind.PROBE
                        and action.number >= fault.epoch
                    )
                )
                await asyncio.sleep(fault.share * 0.4)
            case Instant.FORMING:
                await seen(lambda _, action: isinstance(action, act.RunEpoch) and action.group.endswith(".g1"))
                await asyncio.sleep(fault.share * 0.25)
            case Instant.TRAINING:
                await seen(lambda _, action: isinstance(action, act.RunEpoch) and action.number >= fault.epoch)
                await asyncio.sleep(fault.share * train)
            case Instant.EVALUATING:
                await seen(lambda _, action: isinstance(action, act.RunEpoch) and action.number >= fault.epoch)
                await asyncio.sleep(train + fault.share * evaluate)
            case Instant.SETTLING:
                await seen(
                    lambda event, _: (
                        isinstance(event, ev.EpochFinished) and len(self.handler.jobs[name].epochs) >= fault.epoch
                    )
                )
                await asyncio.sleep(fault.share * 0.03)

    @property
    def usual(self) -> tuple[float, float]:
        """Seconds of training, and of evaluating with the checkpoint, of an epoch when nothing happens."""
        reports = [epoch.report for epoch in self.handler.jobs["calm"].epochs[1:]]
        train = sorted(report.train_seconds for report in reports)[len(reports) // 2]
        after = sorted(report.evaluate_seconds + report.checkpoint_seconds for report in reports)
        return train, after[len(reports) // 2]

    def process(self, name: str, fault: Fault) -> int | None:
        """The process of a job that a fault is meant for, where it is there now."""
        if fault.victim is Victim.TEMPLATE:
            return self._template
        pods = [pod for pod in self.handler.jobs[name].gang.pods if pod.role.value == fault.role]
        if not pods:
            return None
        pod = sorted(pods)[int(fault.share * 1000) % len(pods)]
        match fault.victim:
            case Victim.FUNCTION:
                function = self.platform._processes.get(pod)
                return function.pid if function and function.pid else None
            case Victim.ZYGOTE:
                return self._zygotes.get(pod)
            case _:
                forked = children(self._zygotes[pod]) if pod in self._zygotes else []
                return forked[0] if forked else None

    async def _left_behind(self, name: str) -> list[str]:
        """Processes and sockets of a job that has ended."""
        pods = [pod for pod in self._addresses if pod.job == name]
        hosts = [self._addresses.pop(pod).rpartition(":")[0] for pod in pods]
        pids = [of.pop(pod) for of in (self._zygotes, self._functions) for pod in pods if pod in of]

        def left() -> list[str]:
            return [command(pid) for pid in pids if command(pid)] + listening(hosts)

        return [f"left: {what}" for what in await asyncio.to_thread(gone, left, 10)]

    def _wake_template(self) -> None:
        """A stopped template would make every later run start slowly: it has been seen that this one did not mind."""
        if (template := self._template) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(template, signal.SIGCONT)

    @property
    def _template(self) -> int | None:
        """The template's process: the one that its keeper has started, not one of those that it has adopted."""
        keepers = self.platform._runtimes[self.framework].result()._keepers
        if not keepers:
            return None
        keeper = keepers[-1][0].pid
        return next((pid for pid in children(keeper) if os.getsid(pid) == os.getsid(keeper)), None)
