"""Coach itself in virtual time: the reducer of `coach.core` on a simulated platform.

Like the handler, the driver carries out the reducer's actions and returns their results as events, each with its
token. It decides nothing. Every event and action goes to `journal`, in the order in which the handler writes them.

Everything random or measured has a method of its own (`_pod_seconds`, `_mishap`, `_report`, ...). The tests' faulty
cluster (`tests/core/lifecycle/faulty_cluster.py`) overrides them to add faults, and checks rules after every event.

A program (`spec.program`) goes on between two of its epochs, each of which is the interval between two reports. With
other workers it is started again: `release_seconds` are its end after SIGTERM, `new_group_seconds` its start.

With `machine_cores` all virtual nodes are one machine with that many cores (as on the `local` platform). When the
running epochs use more, all of them slow down by the same factor.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from coach import collector
from coach.core.cluster import NOTHING, Node, Placement, Pod, PodId, Resources, Role
from coach.core.estimation.cost import USUAL_CALLS, USUAL_CALLS_PER_SECOND
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.fitted_models import fit_models
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle.reducer import Reducer
from coach.core.policies.api.policy import Policy
from coach.simulation.dynamics.job_dynamics import Drawn, JobDynamics, draw
from coach.simulation.faults import Faults
from coach.simulation.outcome import Ended

#: A scheduled step: makes an event, or None if it is stale.
Later = Callable[[], ev.Event | None]


@dataclass(slots=True)
class Running:
    """A running epoch. At `mark`, `left` seconds remain at full speed; they pass at `rate` (1: full speed)."""

    order: act.RunEpoch
    whole: float
    train: float
    left: float
    mark: float
    cores: float
    rate: float = 1.0
    version: int = 0
    noise: float = 0.0
    samples: int = 0
    evaluate: float = 0.0
    #: Workers and servers that left within it.
    left_early: int = 0


@dataclass(slots=True)
class Standing:
    """An existing pod. `since`: when it got its node or, while it waits for one, when it was created."""

    pod: Pod
    since: float
    ready: bool = False
    leaving: bool = False


class Driver:
    """One run. Submit jobs, `run`, and read `ended`."""

    def __init__(
        self,
        nodes: Sequence[Node],
        policy: Policy,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        machine_cores: float = math.inf,
        journal: Callable[[ev.Event | act.Action], object] | None = None,
        usage: Callable[[float, Resources, str], object] | None = None,
        begin: float = 0.0,
        placement: Placement = Placement.GANG,
    ) -> None:
        """`faults` of nodes and functions; None: nothing fails. `usage` gets (time, change of resources held, node).

        `placement` DEFAULT: a subclass gives pods their nodes.
        """
        self.reducer = Reducer(policy, placement)
        self.now = begin
        self.ended: dict[str, Ended] = {}
        self.events = 0
        self._seed = seed
        self._faults = faults or Faults(seed)
        self._nodes = tuple(nodes)
        self._unavailable: set[str] = set()
        self.nodes_lost = 0
        self._machine = machine_cores
        self._journal = journal
        self._usage = usage
        self.dynamics: dict[str, JobDynamics] = {}
        self.standing: dict[str, dict[PodId, Standing]] = {}
        self.running: dict[str, Running] = {}
        #: Of programs: when the last report came, and the seconds that the last end for a change took.
        self._reported: dict[str, float] = {}
        self._stopped: dict[str, float] = {}
        self._held: dict[str, Resources] = {}
        self._heap: list[tuple[float, int, Later]] = []
        self._sequence = 0
        self._submissions = 0
        self.send(ev.HandlerStarted(self.now, self._nodes))
        if self._faults.node_lost < math.inf:
            for number in range(len(self._nodes)):
                self._plan_loss(number)

    def submit_at(self, at: float, name: str, document: dict[str, Any], dynamics: JobDynamics, **known: Any) -> None:
        """Submit a job file's content at `at`; `known` as in `JobSubmitted`. What an epoch is, `dynamics` says."""
        document = {**document, "spec": {key: it for key, it in document["spec"].items() if key != "epoch"}}
        self.dynamics[name] = dynamics
        self._submissions += 1

        def make() -> ev.Event:
            self._submissions -= 1
            return ev.JobSubmitted(self.now, name, document, f"simulated:///{name}", **known)

        self.at(at, make)

    def run(self) -> None:
        """Run until every job has ended, or no event is left for the others."""
        while (self._submissions or self.reducer.jobs) and self.step():
            pass

    @property
    def left(self) -> dict[str, Ended]:
        """The jobs that have not ended, as they are now (`ended` is NaN)."""
        return {name: Ended.of(job, math.nan, self._held_by_now(name)) for name, job in self.reducer.jobs.items()}

    def _held_by_now(self, job: str) -> Resources:
        pods = self.standing.get(job, {}).values()
        still = [pod.pod.requests * (self.now - pod.since) for pod in pods if pod.pod.node]
        return sum(still, self._held.get(job, NOTHING))

    def _next(self, event: ev.Event) -> None:
        self.at(self.now, lambda: event)

    def step(self) -> bool:
        """Process the next event. Returns whether there was one."""
        while self._heap:
            due, _, make = heapq.heappop(self._heap)
            before, self.now = self.now, max(self.now, due)
            event = make()
            if event is not None:
                self.send(event)
                return True
            self.now = before
        return False

    # -- the loop ----------------------------------------------------------------------------------------------

    def at(self, due: float, make: Later) -> None:
        """Schedule the event that `make` returns, for `due`."""
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, make))

    def send(self, event: ev.Event) -> list[act.Action]:
        """Send an event to the reducer, and carry out its actions."""
        self.events += 1
        with collector.paused():
            actions = self.reducer.react(event)
        if self._journal is not None:
            for record in (event, *actions):
                self._journal(record)
        for action in actions:
            self._carry_out(action)
        return actions

    def _carry_out(self, action: act.Action) -> None:
        name = action.job
        match action:
            case act.DeployPods():
                for pod in action.pods:
                    self._deploy(pod)
            case act.ReleasePods():
                self._release(action)
            case act.RunEpoch():
                self._run_epoch(action)
            case act.ExtendEpoch():
                self._extend(action)
            case act.StopEpoch():
                self._stop(action)
            case act.FitModels():
                fitted = self._fit(self.reducer.jobs[name])
                self.at(
                    self.now + self.dynamics[name].fit_seconds,
                    lambda: ev.ModelsFitted(self.now, name, action.token, *fitted),
                )
            case act.SetTimer():
                self.at(max(self.now, action.due), lambda: ev.TimerFired(self.now, name, action.token))
            case act.SetStatus():
                job = self.reducer.jobs[name]
                if job.ended:
                    self._ended(job)

    def _fit(self, job: Job) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        curve, either = job.curve_points(), job.spec.chooses_servers
        return fit_models(job.speed_points(), curve, job.spec.curve, either, job.models.known_curves)

    def _ended(self, job: Job) -> None:
        """Remove an ended job from the reducer, so that a long run stays fast."""
        self.reducer.forget(job.name)
        self.standing.pop(job.name, None)
        self._reported.pop(job.name, None)
        self._stopped.pop(job.name, None)
        self.ended[job.name] = Ended.of(job, self.now, self._held.pop(job.name, NOTHING))

    # -- pods --------------------------------------------------------------------------------------------------

    def _deploy(self, pod: Pod) -> None:
        self._start(self._keep(pod))

    def _keep(self, pod: Pod) -> Standing:
        standing = self.standing.setdefault(pod.id.job, {})[pod.id] = Standing(pod, self.now)
        return standing

    def _left(self, pod: Pod) -> None:
        """A pod gave its node back, or the wait for one."""

    def _place_soon(self) -> None:
        """A node came back."""

    def _start(self, standing: Standing, found: str = "") -> None:
        """Start a pod that has a node; it becomes ready later. `found`: the node, if the reducer does not know it."""
        pod, name = standing.pod, standing.pod.id.job
        self._use(pod.requests, pod.node or found)

        def answer() -> ev.Event | None:
            if self.standing.get(name, {}).get(pod.id) is not standing or standing.leaving:
                return None
            standing.ready = True
            return ev.PodReady(self.now, name, pod.id, "simulated:0", found)

        seconds = self._pod_seconds(pod.id)
        if seconds < math.inf:
            self.at(self.now + seconds, answer)

    def _pod_seconds(self, pod: PodId) -> float:
        """Seconds from the start of a pod to its readiness; infinity: never."""
        return self.dynamics[pod.job].pod_seconds

    def _release(self, action: act.ReleasePods) -> None:
        pods = self.standing.get(action.job, {})
        for pod in action.pods:
            if pod in pods:
                pods[pod].leaving = True
                if not pods[pod].pod.node:
                    self._left(pods[pod].pod)

        seconds = self.dynamics[action.job].release_seconds
        epoch, order = self.running.get(action.job), self.reducer.jobs[action.job].attempts.running
        if epoch is not None and order is not None:
            seconds += self._give_back(epoch, order, len(action.pods))
        if action.job in self._reported:
            self._stopped[action.job] = self.dynamics[action.job].release_seconds

        def answer() -> ev.Event:
            for pod in action.pods:
                self._remove(pod)
            return ev.PodsReleased(self.now, action.job, action.pods)

        self.at(self.now + seconds, answer)

    def _give_back(self, epoch: Running, order: act.RunEpoch, gone: int) -> float:
        """`gone` pods leave an elastic group within its epoch, whose `order` is now that of the others.

        Its rest takes longer then. Returns the seconds that the change takes.
        """
        dynamics, before = self.dynamics[order.job], epoch.order.allocation
        price = dynamics.new_group_seconds if dynamics.rescale_seconds is None else dynamics.rescale_seconds
        self._share_out(epoch)
        evaluate = dynamics.evaluating(*order.allocation)
        training = max(0.0, epoch.left - (epoch.evaluate if order.evaluate else 0.0))
        longer = price + training * (dynamics.speed(*before) / dynamics.speed(*order.allocation) - 1.0)
        epoch.train += longer
        longer += evaluate - epoch.evaluate if order.evaluate else 0.0
        epoch.whole, epoch.left, epoch.evaluate = epoch.whole + longer, epoch.left + longer, evaluate
        epoch.order, epoch.left_early = order, epoch.left_early + gone
        epoch.cores = min(dynamics.cores(*order.allocation), self._machine)
        self._share_out(epoch)
        return price

    def _remove(self, pod: PodId) -> None:
        standing = self.standing.get(pod.job, {}).pop(pod, None)
        if standing is not None and standing.pod.node:
            requests = standing.pod.requests
            self._held[pod.job] = self._held.get(pod.job, NOTHING) + requests * (self.now - standing.since)
            self._use(requests * -1.0, standing.pod.node)
            self._left(standing.pod)

    def _use(self, more: Resources, node: str) -> None:
        if self._usage is not None:
            self._usage(self.now, more, node)

    # -- nodes -------------------------------------------------------------------------------------------------

    def _plan_loss(self, number: int) -> None:
        self.at(self.now + self._faults.lost_after(number), lambda: self._lose_node(number))

    def _lose_node(self, number: int) -> ev.Event:
        """A node is lost, with all its pods."""
        node = self._nodes[number].name
        self.at(self.now + self._faults.back_after(number), lambda: self._return_node(number))
        self._unavailable.add(node)
        self.nodes_lost += 1
        for pod in self._empty({node}):
            self._next(ev.PodLost(self.now, pod.job, pod, Reason.FUNCTION_LOST, f"{node} is unavailable"))
        return ev.NodesChanged(self.now, tuple(sorted(self._unavailable)))

    def _empty(self, nodes: Collection[str]) -> list[PodId]:
        """Remove the pods on these nodes, except those already being released."""
        pods = [pod for of_job in self.standing.values() for pod in of_job.values()]
        lost = [pod.pod.id for pod in pods if pod.pod.node in nodes and not pod.leaving]
        for pod in lost:
            self._remove(pod)
        return lost

    def _return_node(self, number: int) -> ev.Event:
        self._unavailable.remove(self._nodes[number].name)
        self._plan_loss(number)
        self._place_soon()
        return ev.NodesChanged(self.now, tuple(sorted(self._unavailable)))

    # -- epochs ------------------------------------------------------------------------------------------------

    def _run_epoch(self, order: act.RunEpoch) -> None:
        dynamics = self.dynamics[order.job]
        job = self.reducer.jobs[order.job]
        drawn = draw(self._seed, order.job, job.attempts.count, self._faults.function_lost)
        speed = order.pace * dynamics.speed(*order.allocation) * math.exp(dynamics.speed_noise * drawn.speed)
        last = job.epochs[-1] if job.epochs else None
        same = last is not None and (last.group, last.allocation) == (order.group, order.allocation)
        fraction = order.fraction
        if order.seconds is not None:
            # In a new group the seconds count from the end of the first step.
            warm_up = 0 if same else dynamics.batch_size
            fraction = min(fraction, order.seconds * speed + warm_up / dynamics.data_size)
        samples = dynamics.samples(fraction, new_group=not same)
        train = samples / dynamics.data_size / speed + self._network_seconds(order, samples)
        overhead = dynamics.same_group_seconds
        if last is None or (not same and dynamics.rescale_seconds is None):
            overhead = dynamics.new_group_seconds
        elif not same:
            overhead += dynamics.rescale_seconds or 0.0
        evaluate = dynamics.evaluating(*order.allocation)
        whole = overhead + train + (evaluate if order.evaluate else 0.0)
        if job.spec.program is not None:
            # It has trained on since its last report.
            begun = self._reported.get(order.job, self.now) if same else self.now
            whole = max(whole - (self.now - begun), 1e-6)
            train, evaluate = self.now + whole - begun, 0.0
        epoch = Running(
            order,
            whole,
            train,
            whole,
            self.now,
            # The speed is that of the job alone on the machine: too few cores have slowed it already.
            min(dynamics.cores(*order.allocation), self._machine),
            noise=dynamics.loss_noise * drawn.loss,
            samples=samples,
            evaluate=evaluate,
        )
        self.running[order.job] = epoch
        self._keep_deadline(order)
        self._mishap(epoch, drawn)
        self._share_out(epoch)

    def _keep_deadline(self, order: act.RunEpoch) -> None:
        """Fail an epoch at its deadline, unless that was extended."""

        def due() -> ev.Event | None:
            epoch = self.running.get(order.job)
            extended = epoch is None or epoch.order.deadline > order.deadline
            return None if extended else self._fail(order, Reason.DEADLINE_EXCEEDED, "deadline")

        self.at(order.at + order.deadline, due)

    def _extend(self, action: act.ExtendEpoch) -> None:
        epoch = self.running.get(action.job)
        if epoch is not None and epoch.order.token == action.token:
            epoch.order = epoch.order.extended(action)
            self._keep_deadline(epoch.order)

    def _network_seconds(self, _order: act.RunEpoch, _samples: int) -> float:
        """What the network adds to an epoch, by where its pods are; nothing: the speeds have it."""
        return 0.0

    def _mishap(self, epoch: Running, drawn: Drawn) -> None:
        """Schedule the faults of an epoch that begins: it loses a worker if the drawn failure is before its end."""
        order = epoch.order
        if drawn.fails_at < epoch.whole:
            workers = [pod for pod in order.pods if pod.role is Role.WORKER]
            lost = workers[int(drawn.fails_at * 1e6) % len(workers)]
            self.at(self.now + drawn.fails_at, lambda: self._lose(order, lost))

    def _share_out(self, changed: Running | None = None) -> None:
        """Share the machine's cores again, and reschedule the end of `changed` and of each epoch with a new rate."""
        used = sum(epoch.cores for epoch in self.running.values())
        rate = min(1.0, self._machine / used) if used > 0 else 1.0
        affected = [epoch for epoch in self.running.values() if epoch.rate != rate or epoch is changed]
        for epoch in affected:
            epoch.left -= (self.now - epoch.mark) * epoch.rate
            epoch.mark = self.now
            epoch.rate = rate
            epoch.version += 1
            self._stamp(epoch)

    def _stamp(self, epoch: Running) -> None:
        version = epoch.version
        due = epoch.mark + max(0.0, epoch.left) / epoch.rate
        self.at(due, lambda: self._finish(epoch) if epoch.version == version else None)

    def _finish(self, epoch: Running) -> ev.Event | None:
        order = epoch.order
        if self.running.get(order.job) is not epoch:
            return None
        del self.running[order.job]
        self._share_out()
        return ev.EpochFinished(self.now, order.job, order.token, self._report(epoch), self._calls(order))

    def _report(self, epoch: Running) -> EpochReport:
        order, dynamics = epoch.order, self.dynamics[epoch.order.job]
        slower = (self.now - order.at) / epoch.whole
        evaluate = epoch.evaluate if order.evaluate else 0.0
        fraction = epoch.samples / dynamics.data_size
        job = self.reducer.jobs[order.job]
        loss, accuracy = self._values(epoch, job)
        if job.spec.program is not None:
            return self._report_of_program(epoch, job, slower, loss if accuracy is None else accuracy)
        own = {job.metric: loss} if job.spec.has_own_metric and order.evaluate else {}
        return EpochReport(
            samples=epoch.samples,
            data_size=dynamics.data_size,
            loss=loss if order.evaluate and not own else None,
            accuracy=accuracy if order.evaluate else None,
            weights=order.weights_out,
            train_seconds=epoch.train * slower,
            evaluate_seconds=evaluate * slower,
            # An evaluation uses one core.
            cpu_seconds=dynamics.cores_of_worker(*order.allocation) * epoch.train + evaluate,
            thread_seconds=dynamics.computing(*order.allocation) * fraction,
            metrics=own,
            workers_lost=epoch.left_early,
        )

    def _values(self, epoch: Running, job: Job) -> tuple[float, float | None]:
        """Loss and accuracy at its end."""
        dynamics = self.dynamics[job.name]
        x = (epoch.order.position + epoch.samples) / dynamics.data_size
        loss = dynamics.loss(x) + epoch.noise
        accuracy = None if dynamics.accuracy is None else min(1.0, max(0.0, dynamics.accuracy(x) - epoch.noise))
        return loss if job.spec.curve == "score" else max(1e-9, loss), accuracy

    def _report_of_program(self, epoch: Running, job: Job, slower: float, value: float) -> EpochReport:
        last, seconds = job.epochs[-1] if job.epochs else None, epoch.train * slower
        again = last is None or last.group != epoch.order.group
        first = last is None or again or last.allocation != epoch.order.allocation
        stopped = self._stopped.pop(job.name, 0.0)
        values = {job.metric: value}
        self._reported[job.name] = self.now
        return EpochReport(
            epoch.samples,
            self.dynamics[job.name].data_size,
            values.pop("loss", None),
            values.pop("accuracy", None),
            "",
            seconds,
            0.0,
            metrics=values,
            warm_up_samples=epoch.samples if first else 0,
            warm_up_seconds=seconds if first else 0.0,
            stop_seconds=stopped if again else 0.0,
            regroups=self.dynamics[job.name].regroups,
        )

    def _stop(self, action: act.StopEpoch) -> None:
        epoch = self.running.get(action.job)
        if epoch is None or epoch.order.token != action.token:
            return
        if action.reason is Reason.DISRUPTED and self.reducer.jobs[action.job].spec.elastic:
            self._cut(epoch)
        else:
            left = max(0.0, epoch.order.at + epoch.order.deadline - self.now)
            due = self.now + min(self.dynamics[action.job].stop_seconds, left)
            self.at(due, lambda: self._fail(epoch.order, action.reason, "stopped"))

    def _cut(self, epoch: Running) -> None:
        """An elastic group ends its epoch after the step under way: it counts, as far as it was trained."""
        self._share_out(epoch)
        steps = math.ceil(epoch.samples / self.dynamics[epoch.order.job].batch_size)
        training = epoch.left - (epoch.evaluate if epoch.order.evaluate else 0.0)
        trained = max(1, steps - math.floor(min(1.0, max(0.0, training) / epoch.train) * steps))
        left_out = epoch.train * (1 - trained / steps)
        epoch.whole, epoch.train, epoch.left = epoch.whole - left_out, epoch.train - left_out, epoch.left - left_out
        epoch.samples = epoch.samples * trained // steps
        epoch.version += 1
        self._stamp(epoch)

    def _fail(self, order: act.RunEpoch, reason: Reason, message: str) -> ev.Event | None:
        epoch = self.running.get(order.job)
        if epoch is None or epoch.order.token != order.token:
            return None
        del self.running[order.job]
        self._share_out()
        return ev.EpochFailed(self.now, order.job, order.token, reason, message, self._calls(order))

    def _lose(self, order: act.RunEpoch, pod: PodId) -> ev.Event | None:
        epoch = self.running.get(order.job)
        if epoch is None or epoch.order.token != order.token:
            return None
        self._remove(pod)
        return ev.PodLost(self.now, order.job, pod, Reason.FUNCTION_LOST, "drawn by the simulation")

    def _calls(self, order: act.RunEpoch) -> int:
        return round(len(order.pods) * (USUAL_CALLS + USUAL_CALLS_PER_SECOND * (self.now - order.at)))
