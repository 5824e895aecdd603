"""The Kubernetes platform: see `coach.platforms.base.Platform`.

Pods are made here and placed by the cluster's scheduler. One watch of the pods and one of the nodes report everything
that happens to them; nothing is asked twice, and nothing is concluded from a request that was only accepted.
`coach.platforms.nuclio.platform` has another way to make pods and to end them; everything else is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from coach.core.cluster import NOTHING, Instance, Pod, PodId, Resources, Role, Taken
from coach.core.errors import CoachError, PermanentError, TemporaryError, UserError
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
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
from coach.platforms.function_calls import Direct, FunctionCalls, Unanswered
from coach.platforms.gang_client import GangClient
from coach.platforms.kubernetes import kueue, manifests, program_manifests, program_status
from coach.platforms.kubernetes.node_prices import LOOK_SECONDS, NodePrices
from coach.platforms.kubernetes.pod_logs import PodLogs
from coach.platforms.kubernetes.program_pods import Cluster as Programs_of
from coach.platforms.kubernetes.programs import Programs
from coach.platforms.kubernetes.settings import Settings, chart_settings
from coach.platforms.kubernetes_api import nodes, pods
from coach.platforms.kubernetes_api.client import (
    COACH,
    CORE,
    REQUEST_SECONDS,
    RETRY_SECONDS,
    Api,
    ApiError,
    Object,
    passes,
    until_answered,
)
from coach.platforms.kubernetes_api.pod_access import PodProxy
from coach.platforms.kubernetes_api.refusals import meaning, never_holds
from coach.platforms.kubernetes_api.watch import Collection as Objects

log = logging.getLogger(__name__)

#: Seconds until a pod is deleted without its kubelet's consent, which a lost node never gives.
FORCE_SECONDS = 15.0
#: Seconds between two looks whether a preemption is over.
DRAIN_SECONDS = 0.1
#: Seconds for which changes of pods that are not ours are collected: each report is a record in the journal.
OTHERS_SECONDS = 5.0
#: Seconds that a function has to answer a greeting.
GREETING_SECONDS = 5.0
#: Pods that hold something on a node.
HOLDING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
#: Seconds between two attempts to create a pod whose predecessor of the same name is not gone yet.
NAME_SECONDS = 0.2
#: Seconds for which the API server may refuse a pod or PodGroup, before the gang waits as a whole.
BUSY_SECONDS = 10.0
#: What is right where there are no PodGroups, by the kind of scheduler.
_NO_PODGROUP = {
    "native": "native gangs are in Kubernetes 1.37, with --feature-gates=GenericWorkload=true (kube-apiserver, "
    "kube-controller-manager, kube-scheduler) and --runtime-config=scheduling.k8s.io/v1beta1=true (kube-apiserver); "
    "without them scheduler.kind=coach in the chart's values",
    "coscheduling": "install the coscheduling plugin and its CRD, or say scheduler.kind=coach in the chart's values",
}


class Key(NamedTuple):
    """The key of a job's functions, the name of the Secret that hands it to their pods, and the Gang that owns that."""

    name: str
    key: str
    gang: str


class KubernetesPlatform:
    """Runs functions as pods of one namespace. `connect` gives the API server, `logs` a job's folder for logs."""

    places_pods = True
    linger_seconds = manifests.IDLE_SECONDS + manifests.GRACE_SECONDS
    programs_outlive = True

    def __init__(
        self,
        connect: Callable[[], Awaitable[Api]],
        settings: Settings,
        logs: Callable[[str], Path],
        now: Callable[[], float],
        offer_price: Callable[[str], Instance] | None = None,
    ) -> None:
        self._folder = logs
        self._offer_price = offer_price
        self._connect = connect
        self._has_volume = False
        self._settings = settings
        self._now = now
        #: The jobs whose NetworkPolicy is there.
        self._isolated: set[str] = set()
        #: The keys of jobs with functions: this handler ends what another one started.
        self._keys: dict[str, Key] = {}
        #: The pods that are ready, and the names of their objects.
        self._ready: dict[PodId, str] = {}
        #: Pods that the cluster took away, with its words, until they are made again.
        self._disrupted: dict[PodId, str] = {}
        self._epochs: dict[str, GangClient] = {}
        self._statuses: program_status.Statuses | None = None
        #: Pods with programs that an earlier handler left, and that go on.
        self._kept: set[PodId] = set()
        #: Jobs whose programs go on after this handler.
        self._left: Collection[str] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Whether changes of pods that are not ours are being collected.
        self._collecting = False
        #: What each pod that starts was last said to wait for.
        self._said: dict[PodId, str] = {}
        #: The unique id of the last object that was seen of each pod.
        self._seen: dict[PodId, str] = {}
        #: The objects of each pod by name: one, or its predecessor too while that ends; and the pods by these names.
        self._objects: dict[PodId, dict[str, Object]] = {}
        self._by_name: dict[str, PodId] = {}

    @property
    def checkpoints(self) -> str:
        """In an object store, or on the volume that all pods see."""
        return self._settings.checkpoints or f"file://{manifests.VOLUME}/{manifests.CHECKPOINTS}"

    def refusal(self, spec: TrainingJob) -> str:
        """What is in an image only its nodes know."""
        return ""

    async def open(self, events: PlatformEvents) -> Cluster:
        """Delete what an earlier handler left, and follow pods and nodes. Raises PermanentError, TemporaryError."""
        self._events = events
        async with contextlib.AsyncExitStack() as undo:
            self._api = await self._connect()
            undo.push_async_callback(self._api.close)
            if not self._api.inside:
                self._settings = await chart_settings(self._api, self._settings)
            self._has_volume = self._api.inside and bool(self._settings.volume_claim)
            if self._has_volume:
                for folder in (manifests.CHECKPOINTS, manifests.DATA):
                    Path(manifests.VOLUME, folder).mkdir(mode=0o700, exist_ok=True)
            self._prices = NodePrices(self._offer_price, self._settings.opencost)
            self._pods_path = f"{CORE}/namespaces/{self._api.namespace}/pods"
            self._gangs_path = f"{COACH}/namespaces/{self._api.namespace}/gangs"
            self._groups_path = f"/apis/{self._settings.pod_groups}/namespaces/{self._api.namespace}/podgroups"
            self._maps_path = f"{CORE}/namespaces/{self._api.namespace}/configmaps"
            self._secrets_path = f"{CORE}/namespaces/{self._api.namespace}/secrets"
            self._policies_path = f"/apis/networking.k8s.io/v1/namespaces/{self._api.namespace}/networkpolicies"
            await self._check()
            ours = f"{manifests.HANDLER}={self._settings.handler}"
            self._pods = Objects(self._api, self._pods_path, ours)
            self._pods.listeners.append(self._pod_changed)
            self._gangs = Objects(self._api, self._gangs_path, ours)
            self._nodes = Objects(self._api, f"{CORE}/nodes")
            self._queues = kueue.Workloads(self._api, self._pods.look_again)
            self._others = await self._other_pods()
            self._followed: list[Objects] = [self._pods, self._gangs, self._nodes, self._others]
            self._followed += self._more_to_follow(ours)
            for collection in self._followed:
                undo.push_async_callback(collection.close)
                await collection.open()
            tools = Programs_of(self._api, self._pods, self._keep, self._now, self._lose)
            if self._api.inside:
                # Of a headless Service: its name is this handler's address, and the next one's.
                where = f"{self._settings.handler}.{self._api.namespace}.svc:{program_status.PORT}"
                self._settings = replace(self._settings, status_url=f"http://{where}/status")
            self._programs = Programs(tools, self._settings, self._folder, events)
            if self._api.inside:
                self._statuses = program_status.Statuses(self._api, self._programs.sender)
                undo.callback(self._statuses.close)
            await self._take_over()
            await self._sweep()
            self._gangs.listeners.append(self._gang_changed)
            self._logs = PodLogs(self._api, self._folder)
            self._nodes.listeners.append(lambda _name, _found: self._nodes_changed())
            self._others.listeners.append(lambda _name, _found: self._others_changed())
            self._calls: FunctionCalls = Direct() if self._api.inside else PodProxy(self._api, self._pod_at)
            undo.push_async_callback(self._calls.close)
            await self._prices.look()
            self._cluster = self._nodes_now()
            undo.pop_all()
        self._keep(self._keep_alive())
        self._keep(self._follow_prices())
        return self._cluster

    async def close(self) -> None:
        """Delete every pod of this handler, and its gangs, but what was left for the next one."""
        self._kept = {pod for pod in self._objects if pod.job in self._left}
        await self._programs.follow_none()
        if self._statuses is not None:
            self._statuses.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(CoachError):
            await self._sweep()
        await asyncio.gather(self._logs.close(), self._queues.close(), *(one.close() for one in self._followed))
        await self._calls.close()
        await self._api.close()

    def leave(self, jobs: Collection[str]) -> Collection[str]:
        """Let the programs of these jobs go on; their leases end them if no handler comes."""
        self._left = frozenset(jobs)
        return self._left

    async def gang(self, size: GangSize, spec: TrainingJob) -> None:
        """Write the job's Gang, and what its pods share, before they are made."""
        if why := self._refusal(spec):
            raise PodError(Reason.POD_REFUSED, why)
        if spec.spec.program is not None:
            # Each pod of a program knows how many there are, and runs as soon as it can: all of them start, or none.
            size = replace(size, required=size.desired)
        if kueue.labels(spec):
            await self._queues.follow()
        gang = manifests.gang(size, self._settings, manifests.training_job(spec))
        if spec.spec.program is not None:
            gang["spec"]["gracePeriodSeconds"] = program_manifests.grace_seconds(spec.spec.grace_period)
        try:
            applied = await self._applied(f"{self._gangs_path}/{size.job}", gang)
            if self._settings.pod_groups:
                await self._group(manifests.pod_group(gang, self._settings, manifests.owner(applied)))
            if self._settings.isolates and size.job not in self._isolated:
                policy = manifests.network_policy(size.job, self._settings, manifests.owner(applied))
                await self._applied(f"{self._policies_path}/{policy['metadata']['name']}", policy)
                self._isolated.add(size.job)
            if spec.spec.program is None:
                await self._have_key(size.job, applied)
            if (path := manifests.shipped_model(spec)) is not None:
                made = manifests.model(spec, path, self._settings, manifests.owner(applied))
                await self._applied(f"{self._maps_path}/{made['metadata']['name']}", made)
            if self._has_volume and spec.spec.program is None:
                own = Path(manifests.VOLUME, manifests.CHECKPOINTS, size.job)  # else a kubelet makes it, as root
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(own.mkdir, mode=0o700, exist_ok=True)
            if spec.spec.program is not None:
                there = any(pod.job == size.job for pod in self._objects)
                await self._programs.gang(size, spec, manifests.owner(applied), there=there)
        except UserError as error:
            raise PodError(Reason.POD_REFUSED, str(error)) from error
        except ApiError as error:
            raise _refusal(f"the gang of {size.job}", error, spec) from error

    async def _have_key(self, job: str, gang: Object) -> None:
        """Have a Secret that goes with the Gang, as its pods do. It is only created: no right to read is needed."""
        uid = gang["metadata"]["uid"]
        if (known := self._keys.get(job)) is not None and known.gang == uid:
            return
        made = Key(f"{job}-key-{secrets.token_hex(4)}", secrets.token_hex(), uid)
        body = manifests.secret(made.name, made.key, job, self._settings, manifests.owner(gang))
        try:
            await until_answered(lambda: self._api.create(self._secrets_path, body))
        except ApiError as error:
            if error.reason != "AlreadyExists":  # the answer to a request before was lost
                raise
        self._keys[job] = made

    def _key_of(self, job: str) -> Key:
        """Its key; of a job without a Gang an empty one, by which no pod answers."""
        return self._keys.get(job, Key("", "", ""))

    def _refusal(self, spec: TrainingJob) -> str:
        """Why the job's pods cannot be made as it describes them; empty where they can."""
        if spec.spec.program is not None:
            return program_manifests.refusal(spec, self._settings)
        return manifests.refusal(spec, self._settings)

    async def forget(self, job: str) -> None:
        """The job holds nothing and wants nothing: its Gang goes, and what its pods shared."""
        await self._programs.forget(job)
        await self._deleted(f"{self._gangs_path}/{job}")
        self._isolated.discard(job)
        self._keys.pop(job, None)

    async def deploy(self, pod: Pod, spec: TrainingJob) -> Deployed:
        """Make the pod and wait until it is ready: as long as it has no node, then for `startTimeout`."""
        self._ready.pop(pod.id, None)
        self._disrupted.pop(pod.id, None)
        name = pod.id.name
        try:
            await self._start(pod, spec)
            await self._pods.until(lambda: self._settled(pod.id, placed=True))
            async with asyncio.timeout(spec.spec.start_timeout):
                await self._pods.until(lambda: self._settled(pod.id))
        except TimeoutError:
            said = self._said.get(pod.id) or "its container is not ready"
            raise PodError(
                Reason.START_TIMED_OUT, f"{name} did not start in {spec.spec.start_timeout:g} s: {said}"
            ) from None
        finally:
            self._said.pop(pod.id, None)
        found = self._object(pod.id)
        failed = self._failure(pod.id, found) if found else self._why_none(pod.id)
        if found is None or failed:
            await self._end(pod.id)
            reason, words = failed or (Reason.FUNCTION_LOST, "it has gone")
            raise PodError(reason, f"{name}: {words}")
        self._ready[pod.id] = found["metadata"]["name"]
        if spec.spec.program is not None:
            return Deployed(found["metadata"]["uid"], pods.node(found))
        self._logs.follow(pod.id, self._ready[pod.id])
        return Deployed(f"{pods.address(found)}:{manifests.FUNCTION_PORT}", pods.node(found))

    async def release(self, released: Sequence[PodId]) -> None:
        """End the pods; returns when the API server has them no more."""
        await asyncio.gather(*(client.leave(released) for client in self._epochs.values()))
        for pod in released:
            self._ready.pop(pod, None)
        await asyncio.gather(*(self._programs.end_program(job) for job in {pod.job for pod in released}))
        await asyncio.gather(*(self._end(pod) for pod in released))

    async def run_epoch(self, order: EpochOrder, progress: Callable[[Progress], None]) -> tuple[EpochReport, int]:
        """See `coach.platforms.gang_client`, and of programs `coach.platforms.kubernetes.programs`."""
        if order.spec.spec.program is not None:
            return await self._programs.run_epoch(order)
        client = GangClient(self._calls, order, self._now, self._key_of(order.action.job).key)
        self._epochs[order.action.token] = client
        try:
            await self._let_drain(order, client)
            return await client.run(progress)
        except EpochError as error:
            taken = [words for pod in order.action.pods if (words := self._disrupted.get(pod))]
            if taken:  # whatever was noticed first
                raise EpochError(Reason.DISRUPTED, taken[0], error.invocations) from error
            # What does not answer now will not answer the next attempt either.
            for pod in client.silent & self._ready.keys():
                self._lose(pod, Reason.FUNCTION_LOST, str(error))
            raise
        finally:
            del self._epochs[order.action.token]
            asyncio.get_running_loop().call_soon(self._lose_disrupted, order.action.pods)

    async def _let_drain(self, order: EpochOrder, client: GangClient) -> None:
        """Begin no epoch while the scheduler preempts the job: it deletes the pods as soon as none runs."""
        name, path = order.action.job, f"{self._gangs_path}/{order.action.job}"
        if not self._draining(name):
            return
        await self._api.merge(path, {"spec": {"betweenEpochs": True}})
        while self._draining(name) and not client.stopping and self._now() < order.due:
            await asyncio.sleep(DRAIN_SECONDS)
        if not client.stopping:
            await self._api.merge(path, {"spec": {"betweenEpochs": False}})

    def _gang_changed(self, job: str, found: Object | None) -> None:
        """A program has no end of an epoch to wait for: it writes its checkpoint when it is to end.

        An elastic group ends its epoch early; others train it to its end.
        """
        if found is not None and (draining := found.get("status", {}).get("draining")):
            self._programs.drain(job, f"preempted by {draining['by']}")
            for client in self._epochs.values():
                if client.may_cut(job):
                    self._keep(client.end(Reason.DISRUPTED))

    def _draining(self, job: str) -> bool:
        return "draining" in self._gangs.objects.get(job, {}).get("status", {})

    async def extend_epoch(self, token: str, due: float) -> None:
        """Let the program of a running epoch go on until `due`."""
        await self._programs.extend_epoch(token, due)

    async def kill_program(self, job: str) -> None:
        """End a job's program now."""
        await self._programs.kill_program(job)

    async def stop_epoch(self, token: str, reason: Reason) -> None:
        """End the running epoch."""
        if token in self._epochs:
            await self._epochs[token].end(reason)
        await self._programs.stop_epoch(token, reason)

    # -- what happens to pods and nodes -------------------------------------------------------------------

    def _settled(self, pod: PodId, *, placed: bool = False) -> bool:
        """Whether a pod is ready (or, if `placed`, has a node), or will never be."""
        found = self._object(pod)
        if found is None:
            return self._why_none(pod) is not None
        if self._failure(pod, found):
            return True
        if pods.node(found) and placed:
            return True
        self._say(pod, found)
        if pod.job in self._programs and pods.terminated(found) is not None:
            return True  # how it ended, its first epoch says
        return pods.ready(found) and bool(pods.address(found))

    def _failure(self, pod: PodId, found: Object) -> tuple[Reason, str] | None:
        """Why a pod will not be of use; a program may have run to its end."""
        ended = pod.job in self._programs and pods.terminated(found) is not None
        return None if ended else pods.failure(found)

    def _say(self, pod: PodId, found: Object) -> None:
        """Report what a pod waits for, where that is news."""
        if (words := pods.waiting(found)) is None:
            return
        reason, said = words
        if kueue.gated(found) and (why := self._queues.waiting(found)):
            said = f"Kueue: {why}"
        if reason is Reason.WAITING_CAPACITY and (deadlock := self._settings.deadlock):
            said = f"{said}; {deadlock}"
        if self._said.get(pod) != said:
            self._said[pod] = said
            self._events.pod_pending(pod, reason, said)

    def _object(self, pod: PodId) -> Object | None:
        """The object of a pod, as last seen: the last made, where its predecessor has not gone yet."""
        found = self._objects.get(pod, {}).values()
        return max(found, key=lambda one: (not pods.ending(one), _made(one)), default=None)

    def _pod_changed(self, name: str, found: Object | None) -> None:
        self._remember(name, found)
        lost = next((pod for pod, ready in self._ready.items() if ready == name), None)
        if lost is None or self._programs.followed(lost.job):
            return
        failed = found and self._failure(lost, found)
        if found and not failed and pods.ending(found) and (words := pods.disrupted(found)):
            self._leave(lost, words, evicted=True)
        elif (found is None or pods.ending(found)) and lost in self._disrupted:
            self._lose_disrupted([lost])
        elif found is None or pods.ending(found):
            self._lose(lost, Reason.FUNCTION_LOST, f"{name} was deleted, not by Coach")
        elif failed:
            self._lose(lost, failed[0], f"{name}: {failed[1]}")

    def _remember(self, name: str, found: Object | None) -> None:
        if found is None:
            if (gone := self._by_name.pop(name, None)) is not None:
                del self._objects[gone][name]
                if not self._objects[gone]:
                    del self._objects[gone]
        elif (pod := manifests.pod_id(found)) is not None:
            self._by_name[name] = pod
            self._seen[pod] = found["metadata"]["uid"]
            self._objects.setdefault(pod, {})[name] = found

    def _nodes_changed(self) -> None:
        cluster = self._nodes_now()
        # Two nodes are the same whatever they cost.
        costs = [[node.price for node in one.nodes] for one in (cluster, self._cluster)]
        if cluster != self._cluster or costs[0] != costs[1]:
            self._cluster = cluster
            self._events.nodes_changed(cluster)
        gone = {name for name, found in self._nodes.objects.items() if nodes.lost(found)}
        leaving = {name: key for name, found in self._nodes.objects.items() if (key := nodes.leaving(found))}
        for pod in list(self._ready):
            found = self._object(pod)
            if found is not None and (node := pods.node(found)) in leaving:
                self._leave(pod, f"node {node} goes away, by its taint {leaving[node]}")
            if found is None or pods.node(found) in gone or pods.node(found) not in self._nodes.objects:
                words = f"{pod.name}: node {pods.node(found) if found else ''} does not report any more"
                if self._programs.followed(pod.job):
                    self._programs.lost(pod, words)
                else:
                    self._lose(pod, Reason.FUNCTION_LOST, words)

    def _leave(self, pod: PodId, words: str, *, evicted: bool = False) -> None:
        """A program writes its checkpoint; an elastic group goes on without the pod, or ends its epoch early.

        Any other may end its epoch, or lose it; one whose pod is `evicted` has lost it.
        """
        if pod.job in self._programs:
            self._programs.leave_node(pod.job, words)
            return
        if pod in self._disrupted and pod.job in {client.job for client in self._epochs.values()}:
            return  # it is on its way
        self._disrupted[pod] = f"{pod.name}: {words}"
        of_job = [client for client in self._epochs.values() if client.job == pod.job]
        cut = [client for client in of_job if client.may_cut(pod.job)]
        for client in cut:
            self._keep(self._leave_group(client, pod))
        if not of_job or (evicted and not cut):
            self._lose_disrupted([pod])

    async def _leave_group(self, client: GangClient, pod: PodId) -> None:
        leaving = [each for each in self._disrupted if each.job == pod.job]
        if await client.leave(leaving):
            self._lose_disrupted([pod])
        else:
            await client.end(Reason.DISRUPTED)

    def _lose_disrupted(self, lost: Sequence[PodId]) -> None:
        """These pods have left, or could not."""
        for pod in lost:
            if pod in self._disrupted and pod in self._ready:
                self._lose(pod, Reason.DISRUPTED, self._disrupted[pod])

    def _nodes_now(self) -> Cluster:
        found = sorted(self._nodes.objects.items())
        return Cluster(
            tuple(self._prices.of(node) for _, node in found),
            tuple(name for name, node in found if nodes.unavailable(node)),
            self._taken(),
        )

    def _taken(self) -> tuple[Taken, ...]:
        """What pods that are not ours hold, by node; and GPUs that the kubelet can give to none."""
        held: dict[str, Resources] = {}
        for found in self._others.objects.values():
            name = pods.node(found)
            held[name] = held.get(name, NOTHING) + pods.held(found)
        why: dict[str, str] = {}
        for name, node in self._nodes.objects.items():
            if lacking := nodes.lacking(node):
                # A pod keeps its GPU, whatever becomes of it.
                ours = sum(pods.held(one).gpu for one in self._pods.objects.values() if pods.node(one) == name)
                there, others = nodes.read(node).capacity.gpu, held.get(name, NOTHING)
                gone = min(lacking, max(0.0, there - ours - others.gpu))
                held[name] = others + Resources(0.0, 0.0, gone)
                why[name] = (
                    f"{lacking:g} of {there:g} GPUs of {name} are unhealthy, or their device plugin does not run"
                )
        return tuple(
            Taken(name, Resources(round(amount.cpu, 3), round(amount.memory, 6), amount.gpu), why.get(name, ""))
            for name, amount in sorted(held.items())
        )

    def _others_changed(self) -> None:
        if not self._collecting:
            self._collecting = True
            self._keep(self._report_others())

    async def _report_others(self) -> None:
        await asyncio.sleep(OTHERS_SECONDS)
        self._collecting = False
        self._nodes_changed()

    async def _other_pods(self) -> Objects:
        """The pods that are not ours: of all namespaces, or, where these may not be read, of our own."""
        others = f"{manifests.HANDLER}!={self._settings.handler}"
        path = f"{CORE}/pods"
        try:
            await self._api.get(path, limit=1)
        except ApiError as error:
            if error.status != 403:
                raise
            path = self._pods_path
        return Objects(self._api, path, others, HOLDING, pods.footprint)

    def _pod_at(self, address: str) -> str | None:
        """The name of the pod that has an IP address."""
        for name, found in self._pods.objects.items():
            if pods.address(found) == address:
                return name
        return None

    def _lose(self, pod: PodId, reason: Reason, message: str) -> None:
        """A pod that was ready is so no longer: report it, and end what is left of it."""
        self._ready.pop(pod, None)
        self._events.pod_lost(pod, reason, message)
        self._keep(self._end(pod, force=True))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background until this is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_alive(self) -> None:
        """Let every function know that its handler is there; those that train are asked all the time."""
        while True:
            await asyncio.sleep(manifests.IDLE_SECONDS / 4)
            self._programs.keep_waiting({pod.job for pod in self._objects})
            functions = [pod for pod in self._ready if pod.job not in self._programs]
            asked = [(pod, found) for pod in functions if (found := self._object(pod))]
            await asyncio.gather(*(self._greet(pods.address(found), pod.job) for pod, found in asked))

    async def _follow_prices(self) -> None:
        """Report nodes whose prices have changed."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._prices.look()
            self._nodes_changed()

    async def _greet(self, address: str, job: str) -> None:
        where, key = f"{address}:{manifests.FUNCTION_PORT}", self._key_of(job).key
        with contextlib.suppress(Unanswered):
            await self._calls.post(where, {"op": "health"}, GREETING_SECONDS, key)

    # -- how pods are made and ended ------------------------------------------------------------------------

    def _more_to_follow(self, ours: str) -> Sequence[Objects]:
        """Collections of what pods are made from, chosen by the selector `ours`."""
        return ()

    async def _start(self, pod: Pod, spec: TrainingJob) -> None:
        """Have the pod made. Raises PodError."""
        if spec.spec.program is not None:
            await self._create(pod.id, self._programs.pod(pod, spec), spec)
            return
        owners = await self._owner(self._gangs_path, pod.id.job)
        key = self._key_of(pod.id.job).name
        await self._create(pod.id, manifests.pod(pod, spec, self._settings, owners, key), spec)

    def _why_none(self, pod: PodId) -> tuple[Reason, str] | None:
        """Why a pod that was started has no object, nor will have one; None while it may come."""
        return Reason.FUNCTION_LOST, "it was deleted while it started"

    async def _end(self, pod: PodId, *, force: bool = False) -> None:
        """End the pod, without its kubelet's consent if `force`; returns when its object is gone."""
        await self._delete(pod.name, force=force)

    # -- requests ---------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Raises PermanentError where the cluster has not what Coach needs there."""
        await self._check_for("Gang", self._gangs_path, "install Coach there first (helm install coach deploy/chart)")
        if self._settings.pod_groups:
            what = f"PodGroup ({self._settings.pod_groups})"
            await self._check_for(what, self._groups_path, _NO_PODGROUP[self._settings.scheduler_kind])

    async def _check_for(self, what: str, path: str, right: str) -> None:
        try:
            await self._api.get(path, limit=1)
        except ApiError as error:
            if error.status != 404:
                raise
            version = (await self._api.get("/version"))["gitVersion"]
            raise PermanentError(
                f"the cluster at {self._api.server} ({version}) has no {what} resource: {right}"
            ) from error

    async def _group(self, group: Object) -> None:
        """Write a PodGroup; one that is still being deleted holds no pods back, and would go from under them."""
        name, began = group["metadata"]["name"], asyncio.get_running_loop().time()
        while "deletionTimestamp" in (await self._applied(f"{self._groups_path}/{name}", group))["metadata"]:
            if asyncio.get_running_loop().time() - began > BUSY_SECONDS:
                why = "kube-controller-manager takes its finalizer away, with --feature-gates=GenericWorkload=true"
                raise PodError(Reason.PODS_DELAYED, f"PodGroup {name} was deleted and is still there: {why}")
            await asyncio.sleep(NAME_SECONDS)

    async def _owner(self, path: str, name: str) -> list[Object]:
        """What refers to the object as owner, so that it takes with it what it owns; [] where there is none."""
        try:
            found = await until_answered(lambda: self._api.get(f"{path}/{name}"))
        except ApiError as error:
            if error.status in (403, 404):
                return []
            raise
        return manifests.owner(found)

    async def _create(self, pod: PodId, body: Object, spec: TrainingJob) -> None:
        """Create a pod, once none of its name is there any more. Raises PodError where it is refused."""
        name, began = pod.name, asyncio.get_running_loop().time()
        while True:
            try:
                made = await _to_its_end(self._api.create(self._pods_path, body))
                break
            except ApiError as error:
                # Of an attempt before, or of this one: its answer was lost with the connection.
                if error.reason == "AlreadyExists":
                    await self._delete(name)
                    await asyncio.sleep(NAME_SECONDS)
                    continue
                waited = asyncio.get_running_loop().time() - began
                if not passes(error.status) or waited > BUSY_SECONDS:
                    raise _refusal(name, error, spec) from error
            except TemporaryError as error:
                log.debug("%s: sent again: %s", name, error)
            await asyncio.sleep(RETRY_SECONDS)
        # It may be gone again before anybody looks.
        await self._pods.until(lambda: self._seen.get(pod) == made["metadata"]["uid"])

    async def _delete(self, name: str, *, force: bool = False) -> None:
        """Delete a pod; returns when it is gone."""
        found: Object = self._pods.objects.get(name, {"metadata": {}, "spec": {}})
        if not force:
            await self._deleted(f"{self._pods_path}/{name}")
            if kueue.gated(found):
                await self._queues.let_go(found)
            grace = found["spec"].get("terminationGracePeriodSeconds", 0)
            patience = FORCE_SECONDS + (grace if grace > manifests.GRACE_SECONDS else 0)
            try:
                async with asyncio.timeout(patience):
                    await self._pods.until(lambda: name not in self._pods.objects)
                    return
            except TimeoutError:
                log.warning("%s did not end in %.0f s; deleting it by force", name, patience)
        await self._deleted(f"{self._pods_path}/{name}", gracePeriodSeconds=0)
        await self._queues.let_go(found)
        await self._pods.until(lambda: name not in self._pods.objects)

    async def _applied(self, path: str, body: Object) -> Object:
        return await until_answered(lambda: self._api.apply(path, body))

    async def _deleted(self, path: str, **query: int) -> None:
        await until_answered(lambda: self._api.delete(path, **query))

    async def _take_over(self) -> None:
        """Keep the pods of programs that an earlier handler left and that go on."""
        jobs = await self._programs.left()
        found = {
            pod: one["metadata"]["uid"]
            for pod in self._objects
            if pod.job in jobs and (one := self._object(pod)) and not pods.ending(one)
        }
        self._kept = set(self._events.takes_over(found)) if found else set()
        self._ready |= {pod: pod.name for pod in self._kept}

    async def _sweep(self) -> None:
        """Delete all pods and gangs of this handler but those that are kept."""
        ours = f"{manifests.HANDLER}={self._settings.handler}"
        gangs = (await self._api.get(self._gangs_path, labelSelector=ours))["items"]
        kept = {pod.job for pod in self._kept}
        names = [name for gang in gangs if (name := gang["metadata"]["name"]) not in kept]
        await asyncio.gather(
            *(self._programs.forget(name) for name in names),
            *(self._api.delete(f"{self._gangs_path}/{name}") for name in names),
            *(
                self._delete(name, force=True)
                for name in self._pods.objects
                if self._by_name.get(name) not in self._kept
            ),
        )


def _made(found: Object) -> str:
    return str(found["metadata"].get("creationTimestamp", ""))


def _refusal(name: str, error: ApiError, spec: TrainingJob) -> PodError:
    """What the API server refused, and what its job does about it."""
    reason, words = meaning(error.status, error.reason, str(error)), f"{name} was refused: {error}"
    if reason is Reason.QUOTA_EXCEEDED and (never := never_holds(str(error), _smallest_gang(spec), _device(spec))):
        return PodError(Reason.NEVER_FITS, f"{words}; {never}")
    return PodError(reason, words)


def _smallest_gang(spec: TrainingJob) -> list[Resources]:
    workers, servers = spec.spec.limits.smallest
    of = spec.spec.resources.of
    return [of(Role.SCHEDULER), *[of(Role.SERVER)] * servers, *[of(Role.WORKER)] * workers]


def _device(spec: TrainingJob) -> str:
    return spec.spec.resources.worker.gpu_resource or nodes.GPU


async def _to_its_end(request: Coroutine[Any, Any, Object]) -> Object:
    """Have a request answered, also where its caller is cancelled: what it makes can be deleted only then."""
    task = asyncio.ensure_future(request)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=REQUEST_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
