"""The local platform: pods are warm function processes on this machine, each with a loopback address of its own.

Groups meet at these addresses. The functions themselves are asked at Unix sockets that their user alone can reach.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from coach.core.cluster import Node, Pod, PodId, Taken
from coach.core.errors import CoachError, PermanentError
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Framework
from coach.platforms.base import (
    Cluster,
    Deployed,
    EpochError,
    EpochOrder,
    GangSize,
    PlatformEvents,
    PodError,
    Progress,
)
from coach.platforms.function_calls import AtSockets
from coach.platforms.gang_client import GangClient
from coach.platforms.local import devices
from coach.platforms.local.cluster import cores_of
from coach.platforms.local.devices.pool import DevicePool
from coach.platforms.local.environment import Functions
from coach.platforms.local.programs import Programs, not_there
from coach.platforms.local.runtime import FunctionProcess, Runtime

PORT = 8080
#: Seconds a function may take until it answers.
READY_SECONDS = 50.0
#: Seconds between two looks at what others have of this machine's GPUs, and whether these work.
LOOK_SECONDS = 2.0
#: Seconds between two looks at what the GPUs of jobs do.
SAMPLE_SECONDS = 5.0


class LocalPlatform:
    """See `coach.platforms.base.Platform`. `logs(job)` is the folder for a job's function logs.

    `functions` are of the framework that is made ready at once, others follow when a job needs them; programs need
    none.
    """

    #: The kernel ends functions with a pipe of ours.
    linger_seconds = 0.5
    programs_outlive = False
    places_pods = False
    checkpoints: str | None = None

    def __init__(
        self,
        nodes: tuple[Node, ...],
        functions: Functions | None,
        logs: Callable[[str], Path],
        now: Callable[[], float],
    ) -> None:
        self._nodes = nodes
        self._functions = functions
        self._runtimes: dict[Framework, asyncio.Task[Runtime]] = {}
        self._logs = logs
        self.now = now
        self._cores = cores_of(nodes)
        self._processes: dict[PodId, FunctionProcess] = {}
        self._watchers: dict[PodId, asyncio.Task[None]] = {}
        self._epochs: dict[str, GangClient] = {}
        self._given_up: dict[PodId, str] = {}
        self._addresses = _addresses(nodes)
        self._key = secrets.token_hex()  #: from which each group has its own
        self._devices = DevicePool(nodes)
        self._looking: list[asyncio.Task[None]] = []
        self._taken: tuple[Taken, ...] = ()
        self._programs = Programs(logs, now, self._devices)
        self._program_nodes: dict[PodId, str] = {}

    def refusal(self, spec: TrainingJob) -> str:
        """A program's command has to be on this machine."""
        return not_there(spec.spec)

    async def open(self, events: PlatformEvents) -> Cluster:
        """Start the process that functions are forked from. Raises PermanentError without framework."""
        self._events = self._programs.events = events
        self._calls = AtSockets()
        try:
            if self._functions:
                await self._runtime(self._functions.framework)
        except BaseException:
            await self.close()
            raise
        if self._devices.any:
            self._taken = await asyncio.to_thread(self._devices.taken)
            self._looking = [asyncio.create_task(self._look()), asyncio.create_task(self._sample())]
        return Cluster(self._nodes, taken=self._taken)

    async def _look(self) -> None:
        """Report what others have of the GPUs, and the pods whose GPU no longer works."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            lost = await asyncio.to_thread(self._devices.lost)
            self._devices.give_back(lost)  # its supervisor keeps the lease until it has ended
            ending = [asyncio.create_task(self._programs.lose(pod.job, why)) for pod, why in lost.items()]
            for pod, why in lost.items():
                if self._program_nodes.pop(pod, None) is not None:
                    self._events.pod_lost(pod, Reason.DEVICE_LOST, why)
                else:
                    await self._give_up(pod, why)
            await asyncio.gather(*ending)
            await self._see_taken()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._devices.note(await asyncio.to_thread(self._devices.look))

    async def _see_taken(self) -> None:
        taken = await asyncio.to_thread(self._devices.taken)
        if taken != self._taken:
            self._taken = taken
            self._events.nodes_changed(Cluster(self._nodes, taken=taken))

    async def close(self) -> None:
        """End every function and every program."""
        for looking in self._looking:
            looking.cancel()
        await self._programs.close()
        await self.release(list(self._processes))
        self._devices.give_back()
        for opening in self._runtimes.values():
            opening.cancel()  # no effect on one that is open
        for opened in await asyncio.gather(*self._runtimes.values(), return_exceptions=True):
            if isinstance(opened, Runtime):
                await opened.close()
        await self._calls.close()

    def leave(self, jobs: Collection[str]) -> Collection[str]:
        """Nothing here outlives its handler."""
        return ()

    async def _runtime(self, framework: Framework) -> Runtime:
        """The functions of a framework, made ready when they are first needed. Raises PermanentError."""
        opening = self._runtimes.get(framework)
        if opening is None or (opening.done() and opening.exception()):
            opening = self._runtimes[framework] = asyncio.create_task(self._open_runtime(framework))
        return await asyncio.shield(opening)

    async def _open_runtime(self, framework: Framework) -> Runtime:
        functions = self._functions
        if functions is None or framework is not functions.framework:
            functions = await asyncio.to_thread(Functions.ready, lambda _: None, framework)
        runtime = Runtime(functions)
        await runtime.open()
        return runtime

    async def gang(self, size: GangSize, spec: TrainingJob) -> None:
        """Nothing to do: the handler has planned the whole gang."""

    async def forget(self, job: str) -> None:
        """Nothing is kept of a job that holds nothing."""

    async def deploy(self, pod: Pod, spec: TrainingJob) -> Deployed:
        """Have the function forked; returns once it answers.

        Of a program nothing starts here, but with the order of its first epoch, which its money covers.
        """
        if spec.spec.program is not None:
            if spec.spec.image is not None:
                raise PodError(
                    Reason.POD_REFUSED,
                    f"image: a program on this machine runs without one ({spec.spec.image} is for a cluster); "
                    "leave `image` out, or: coach run --platform kubernetes",
                )
            await self._take_devices(pod, spec)
            self._program_nodes[pod.id] = pod.node
            return Deployed("", pod.node, self._devices.words(pod.id))
        logs = self._logs(pod.id.job)
        logs.mkdir(0o700, parents=True, exist_ok=True)
        address = f"{next(self._addresses[pod.node])}:{PORT}"
        try:
            runtime = await self._runtime(spec.spec.framework)
        except PermanentError as error:
            raise PodError(Reason.POD_REFUSED, str(error)) from error
        await self._take_devices(pod, spec)
        seen = self._devices.of(pod.id) if pod.requests.gpu else None
        function = None
        try:
            function = await runtime.launch(
                pod.id.role.value,
                pod.id.name,
                address,
                log_path=logs / f"{pod.id.name}.log",
                cpus=self._cores.get(pod.node),
                network=self._namespace(pod.node),
                env=self._devices.environment(seen, {}),
            )
            self._processes[pod.id] = function
            await function.wait_ready(READY_SECONDS)
        except CoachError as error:
            self._processes.pop(pod.id, None)
            if function:
                function.kill()
                await function.wait()
            self._devices.give_back([pod.id])
            raise PodError(Reason.FUNCTION_LOST, f"{pod.id.name} did not start: {error}") from error
        self._calls.add(address, function.socket)
        self._watchers[pod.id] = asyncio.create_task(self._watch(pod.id, function))
        return Deployed(address, pod.node, self._devices.words(pod.id))

    async def _take_devices(self, pod: Pod, spec: TrainingJob) -> None:
        program = spec.spec.program
        if pod.requests.gpu and program is not None and (names := devices.limits(program.env)):
            raise PodError(
                Reason.POD_REFUSED,
                f"program.env: {names[0]} {program.env[names[0]]!r}, but Coach gives this job its GPUs; leave it out "
                "there, and set it for coach itself to limit which",
            )
        try:
            self._devices.take(pod)
        except PodError as error:
            if error.reason is Reason.DEVICES_TAKEN:
                await self._see_taken()
            raise

    def _namespace(self, node: str) -> str | None:
        """The path of the network namespace of a node's functions; None: the handler's."""
        return None

    async def release(self, pods: Sequence[PodId]) -> None:
        """Kill functions; everything in them goes with them. Programs get the time that they need to end."""
        await asyncio.gather(*(client.leave(pods) for client in self._epochs.values()))
        of_programs = {pod.job for pod in pods if self._program_nodes.pop(pod, None) is not None}
        kept = {job: [pod for pod in self._program_nodes if pod.job == job] for job in of_programs}
        await asyncio.gather(*(self._programs.release(job, kept[job]) for job in of_programs))
        self._devices.give_back(pods)
        ending = []
        for pod in pods:
            watcher = self._watchers.pop(pod, None)
            if watcher:
                watcher.cancel()
            function = self._processes.pop(pod, None)
            if function:
                function.kill()
                ending.append(function)
        await asyncio.gather(*(self._ended(function) for function in ending))

    async def run_epoch(self, order: EpochOrder, progress: Callable[[Progress], None]) -> tuple[EpochReport, int]:
        """See `coach.platforms.gang_client`, and of programs `coach.platforms.local.programs`."""
        report, invocations = await self._run_epoch(order, progress)
        return replace(report, device_use=self._devices.used(order.action.pods)), invocations

    async def _run_epoch(self, order: EpochOrder, progress: Callable[[Progress], None]) -> tuple[EpochReport, int]:
        if order.spec.spec.program is not None:
            return await self._programs.run_epoch(order, self._cores_of), 0
        client = GangClient(self._calls, order, self.now, self._key)
        self._epochs[order.action.token] = client
        why = "it did not answer"
        try:
            return await client.run(progress)
        except EpochError as error:
            why = str(error)
            raise
        finally:
            # What does not answer now will not answer the next attempt either.
            await asyncio.gather(*(self._give_up(pod, why) for pod in client.silent))
            del self._epochs[order.action.token]

    def _cores_of(self, pod: PodId) -> Sequence[int] | None:
        return self._cores.get(self._program_nodes[pod])

    async def extend_epoch(self, token: str, due: float) -> None:
        """Let the running epoch of a program go on until `due`."""
        self._programs.extend_epoch(token, due)

    async def kill_program(self, job: str) -> None:
        """End a job's program now."""
        await self._programs.kill_program(job)

    async def stop_epoch(self, token: str, reason: Reason) -> None:
        """End the running epoch."""
        if token in self._epochs:
            await self._epochs[token].end(reason)
        await self._programs.stop_epoch(token, reason)

    async def _give_up(self, pod: PodId, why: str) -> None:
        """End a function that is of no use any more; it counts as lost when this returns."""
        function, watcher = self._processes.get(pod), self._watchers.get(pod)
        if function and watcher:
            self._given_up[pod] = why
            function.kill()
            await asyncio.wait({watcher})

    async def _ended(self, function: FunctionProcess) -> None:
        await function.wait()
        await self._calls.remove(function.address)

    async def _watch(self, pod: PodId, function: FunctionProcess) -> None:
        await self._ended(function)
        self._processes.pop(pod, None)
        self._watchers.pop(pod, None)
        self._devices.give_back([pod])
        why = self._given_up.pop(pod, f"{pod.name} ended by itself, or was killed")
        self._events.pod_lost(pod, Reason.FUNCTION_LOST, why)


def _addresses(nodes: Sequence[Node]) -> dict[str, Iterator[str]]:
    """Loopback addresses for each node's pods: a block of its own for this process, a part of it for each node.

    A block is 127.b.0.0/16 with b from 64 to 191; two handlers with one b would meet only where both use the same
    pod number, and then the later function says that its address is taken.
    """
    block = 64 + os.getpid() % 128
    share = 65_000 // len(nodes)

    def turn(first: int) -> Iterator[str]:
        numbers = [n for n in range(first, first + share) if n % 256 not in (0, 255)]
        return itertools.cycle(f"127.{block}.{n // 256}.{n % 256}" for n in numbers)

    return {node.name: turn(256 + index * share) for index, node in enumerate(nodes)}
