"""A world in virtual time for the reducer: true speeds, a true curve, pods that live and die, and faults on request.

It is a driver like the live handler, without I/O: it carries actions out and feeds the answers back in the order
of their times. It keeps its own books - which pods exist, which epochs run, what was really held and for how long -
and after every event it holds the reducer to them (`check`), to its journal (`shadow`) and to the clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from coach.core.budget import to_amount
from coach.core.cluster import NOTHING, Allocation, Node, Pod, PodId, Resources
from coach.core.estimation.fit import fit_models
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.actions import EpochKind
from coach.core.jobs.ending import HOPELESS_EPOCHS, HOPELESS_FITS
from coach.core.jobs.job import LEASE_SECONDS, Job, Phase
from coach.core.jobs.life import CALLS_PER_SECOND, CALLS_TO_START, MAX_FAILURES, affordable
from coach.core.jobs.reasons import AT_REST, MEANING, Reason, Retry
from coach.core.policies.coach import CoachPolicy
from coach.core.reducer import Reducer
from coach.handler.codec import decode, encode
from coach.handler.journal import fold

SPEC: dict[str, Any] = {
    "apiVersion": "coach.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "job"},
    "spec": {
        "model": {"file": "file:///m.py"},
        "data": {"format": "digits8x8"},
        "target": {"loss": 0.3},
        "budget": "none",
        "workers": {"min": 1, "max": 3},
        "servers": {"min": 1, "max": 3},
        "resources": {
            "scheduler": {"cpu": "100m", "memory": "100Mi"},
            "server": {"cpu": "500m", "memory": "200Mi"},
            "worker": {"cpu": "1", "memory": "500Mi"},
        },
    },
}

#: More events than this at one instant of virtual time: the jobs go round in a circle.
MOST_AT_ONCE = 500

#: Makes an event when its time has come; None: what it would have told is not so any more.
Later = Callable[[], ev.Event | None]


@cache
def _fitted(speeds: tuple[Any, ...], curve: tuple[Any, ...], metric: Any) -> tuple[Any, Any]:
    """Tests live the same beginnings again and again."""
    return fit_models(speeds, curve, metric)


def spec(name: str = "job", **changes: Any) -> dict[str, Any]:
    """A job file's content with `changes` to its spec."""
    return {**SPEC, "metadata": {"name": name}, "spec": {**SPEC["spec"], **changes}}


def usd(amount: float) -> dict[str, Any]:
    """A budget."""
    return {"amount": amount, "currency": "USD"}


def nodes(count: int, cpu: float, memory: float = 64.0) -> tuple[Node, ...]:
    return tuple(Node(f"node-{i}", Resources(cpu, memory)) for i in range(count))


@dataclass
class Truth:
    """How a job really behaves. Seconds, epochs/s, and loss by passes over the data."""

    speed: Callable[[int, int], float] = lambda w, s: 0.1 * w / (1 + 0.15 * (w - 1) + 0.1 * w / s)
    loss: Callable[[float], float] = lambda x: 1 / (0.4 * x + 0.5) + 0.1
    evaluate: float = 0.2
    start: float = 0.3
    data_size: int = 10_000
    #: Called before an epoch ends: a reason makes it fail after the given share of its time.
    fault: Callable[[act.RunEpoch], tuple[Reason, float] | None] = lambda order: None
    #: Seconds a pod takes to start, or why it does not; None: it never answers. The number counts the job's pods.
    pod: Callable[[PodId, int], float | Reason | None] = lambda pod, number: 0.5
    #: Seconds between an order and its answer for: the release of pods, the stop of an epoch, a fit.
    release: float = 0.05
    stop: float = 0.05
    fit: float = 0.01


@dataclass
class Real:
    """A pod that really exists; `billed_from`: from when on it costs."""

    pod: Pod
    ready_at: float | None = None
    billed_from: float | None = None
    leaving: bool = False


@dataclass
class World:
    reducer: Reducer
    truths: dict[str, Truth] = field(default_factory=dict)
    now: float = 1_000_000.0
    history: list[Any] = field(default_factory=list)
    pods: dict[PodId, Real] = field(default_factory=dict)
    #: Pods that went with their node, of which the reducer does not know yet.
    untold: set[PodId] = field(default_factory=set)
    #: Token of each epoch that really runs, by job.
    epochs: dict[str, act.RunEpoch] = field(default_factory=dict)
    #: What each job's pods and calls really cost so far, in currency units; and the part that lies after its lease.
    cost: Counter[str] = field(default_factory=Counter)
    unleased: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    leases: dict[str, float] = field(default_factory=dict)
    longest_unleased: Counter[str] = field(default_factory=Counter)
    #: The journal, as it would be read again: each record through JSON, folded as it comes. None: not kept.
    shadow: Reducer | None = None
    most_pods: Counter[str] = field(default_factory=Counter)
    _heap: list[tuple[float, int, Later]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)
    _at_once: int = 0
    _numbers: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, cluster: tuple[Node, ...], policy: Any = None, *, shadow: bool = False) -> World:
        world = cls(Reducer(policy or CoachPolicy()))
        world.shadow = Reducer(world.reducer.policy) if shadow else None
        world.send(ev.HandlerStarted(world.now, cluster))
        return world

    # -- what users and fate do ---------------------------------------------------------------------------

    def submit(self, content: dict[str, Any], truth: Truth | None = None, **more: Any) -> list[act.Action]:
        name = content["metadata"]["name"]
        self.truths.setdefault(name, truth or Truth())
        return self.send(ev.JobSubmitted(self.now, name, content, "file:///checkpoints", **more))

    def cancel(self, name: str = "job") -> list[act.Action]:
        return self.send(ev.CancelAsked(self.now, name))

    def interrupt(self, name: str = "job", now: bool = False, by_user: bool = True) -> list[act.Action]:
        return self.send(ev.InterruptAsked(self.now, name, now, by_user))

    def resume(self, name: str = "job", added: int = 0) -> list[act.Action]:
        return self.send(ev.ResumeAsked(self.now, name, added))

    def lose(self, pod: PodId, reason: Reason = Reason.FUNCTION_LOST) -> None:
        """A pod dies, if it is there; its epoch fails by itself a moment later, if nobody stops it before."""
        real = self.pods.get(pod)
        if real is None or real.leaving:
            return
        self._remove(pod)
        order = self.epochs.get(pod.job)
        if order is not None and pod in order.pods:
            self._answer_epoch(order, 0.2, Reason.PEER_LOST)
        self.send(ev.PodLost(self.now, pod.job, pod, reason, "lost"))

    def lose_nodes(self, *names: str, back: float | None = 30.0) -> None:
        """These nodes are away, and no others, until `back` seconds from now; what stood there is gone."""
        gone = [pod for pod, real in self.pods.items() if real.pod.node in names and not real.leaving]
        for pod in gone:
            self._remove(pod)
        for order in [order for order in self.epochs.values() if set(gone) & set(order.pods)]:
            self._answer_epoch(order, 0.2, Reason.PEER_LOST)
        self.untold.update(gone)
        self.send(ev.NodesChanged(self.now, names))
        for pod in gone:
            self.untold.remove(pod)
            self.send(ev.PodLost(self.now, pod.job, pod, Reason.FUNCTION_LOST, "its node is away"))
        if back is not None:
            self.at(back, lambda: ev.NodesChanged(self.now, ()))

    def restart(self, cluster: tuple[Node, ...] | None = None, down: float = 0.0) -> None:
        """The handler is killed, and starts again `down` seconds later.

        Its pods end with it, answers under way are lost, and all that it knows is what the journal says.
        """
        for pod in list(self.pods):
            self._remove(pod)
        self.epochs.clear()
        self._heap.clear()
        reducer = Reducer(self.reducer.policy)
        for record in self.journalled():
            reducer.apply(record)
        cluster, away = cluster or self.reducer.nodes.all, tuple(sorted(self.reducer.nodes.away))
        self.reducer = reducer
        killed = self.now
        self.now += down
        self.send(ev.HandlerStarted(self.now, cluster, killed, away=away))
        if away:
            self.at(10.0, lambda: ev.NodesChanged(self.now, ()))

    # -- time ---------------------------------------------------------------------------------------------

    def job(self, name: str = "job") -> Job:
        return self.reducer.jobs[name]

    def at(self, seconds: float, make: Later) -> None:
        """Send the event that `make` gives, `seconds` from now."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._count), make))

    def send(self, event: ev.Event) -> list[act.Action]:
        actions = self.reducer.react(event)
        self.history += [event, *actions]
        if self.shadow:
            for record in (event, *actions):
                self.shadow.apply(decode(type(record).__name__, encode(record)))
        for action in actions:
            self._carry_out(action)
        self.check()
        return actions

    def step(self) -> bool:
        """Let the next thing happen; whether there was one."""
        while self._heap:
            due, _, make = heapq.heappop(self._heap)
            self._at_once = self._at_once + 1 if due <= self.now else 0
            assert self._at_once < MOST_AT_ONCE, f"in circles: {self.history[-20:]}"
            self.now = max(self.now, due)
            event = make()
            if event is not None:
                self.send(event)
                return True
        return False

    def run(self, most: int = 20_000, until: Callable[[], bool] | None = None) -> None:
        """Until nothing is to come, or `until` holds. Fails where the jobs never come to rest, or rest too early."""
        for _ in range(most):
            if until and until():
                return
            if not self.step():
                assert not until, "it never came to that"
                return self.check_rest()
        raise AssertionError(f"still going after {most} events: {self.history[-20:]}")

    # -- carrying actions out -------------------------------------------------------------------------------

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
            case act.StopEpoch():
                order = self.epochs.get(name)
                if order and order.token == action.token:
                    left = order.at + order.deadline - self.now
                    self._answer_epoch(order, min(self.truths[name].stop, max(0.0, left)), action.reason)
            case act.End():
                self._check_end(action)
            case act.FitModels():
                job = self.job(name)
                fitted = _fitted(tuple(job.speed_points()), tuple(job.curve_points()), job.metric)
                self.at(self.truths[name].fit, lambda: ev.ModelsFitted(self.now, name, action.token, *fitted))
            case act.SetTimer():
                self.at(action.due - self.now, lambda: ev.TimerFired(self.now, name, action.token))

    def _deploy(self, pod: Pod) -> None:
        assert pod.id not in self.pods, f"{pod.id.name} is there already"
        assert pod.node not in self.reducer.nodes.away, f"{pod.id.name} on {pod.node}, which is away"
        real = self.pods[pod.id] = Real(pod)
        self._numbers[pod.id.job] += 1
        fate = self.truths[pod.id.job].pod(pod.id, self._numbers[pod.id.job])

        def answer() -> ev.Event | None:
            if self.pods.get(pod.id) is not real or real.leaving:
                return None
            if isinstance(fate, Reason):
                self._remove(pod.id)
                return ev.PodLost(self.now, pod.id.job, pod.id, fate, "did not start")
            real.ready_at = self.now
            return ev.PodReady(self.now, pod.id.job, pod.id, "127.0.0.1:1")

        if fate is not None:
            self.at(0.2 if isinstance(fate, Reason) else fate, answer)

    def _release(self, action: act.ReleasePods) -> None:
        assert action.pods
        for pod in action.pods:
            if pod in self.pods:
                self.pods[pod].leaving = True

        def answer() -> ev.Event:
            for pod in action.pods:
                if pod in self.pods:
                    self._remove(pod)
            return ev.PodsReleased(self.now, action.job, action.pods)

        self.at(self.truths[action.job].release, answer)

    def _remove(self, pod: PodId) -> None:
        self._bill(self.pods.pop(pod))

    def _bill(self, real: Real) -> None:
        """What a pod cost since its job's last order."""
        if real.billed_from is not None:
            name = real.pod.id.job
            rate = self.job(name).spec.spec.price_book.rate(real.pod.requests)
            self.cost[name] += rate * (self.now - real.billed_from)
            beyond = max(0.0, self.now - max(real.billed_from, self.leases[name]))
            self.unleased[name] += rate * beyond
            self.longest_unleased[name] = max(self.longest_unleased[name], beyond)

    def _run_epoch(self, order: act.RunEpoch) -> None:
        assert order.job not in self.epochs, "two epochs of a job at once"
        for pod in order.pods:
            real = self.pods[pod]
            assert real.ready_at is not None and not real.leaving
            self._bill(real)
            real.billed_from = self.now
        self.leases[order.job] = self.job(order.job).lease_until
        self.epochs[order.job] = order
        truth = self.truths[order.job]
        speed = truth.speed(*order.allocation)
        fraction = order.fraction
        if order.seconds is not None:
            assert order.allocation.workers == 1, "workers of one group cannot each stop by their own clock"
            fraction = min(fraction, order.seconds * speed)
        samples = max(1, round(fraction * truth.data_size))
        train = samples / truth.data_size / speed
        total = truth.start + train + truth.evaluate
        fault = truth.fault(order)
        if fault and fault[1] * total < order.deadline:
            self._answer_epoch(order, fault[1] * total, fault[0])
        elif total > order.deadline:
            self._answer_epoch(order, order.deadline, Reason.DEADLINE_EXCEEDED)
        else:
            loss = truth.loss((order.position + samples) / truth.data_size)
            report = ev.EpochReport(
                samples=samples,
                data_size=truth.data_size,
                loss=loss,
                accuracy=max(0.0, 1 - loss / 3),
                weights=order.weights_out,
                train_seconds=train,
                evaluate_seconds=truth.evaluate,
            )
            self._answer_epoch(order, total, report)

    def _answer_epoch(self, order: act.RunEpoch, seconds: float, answer: Reason | ev.EpochReport) -> None:
        """The first answer counts; a platform gives no other."""
        began = order.at

        def make() -> ev.Event | None:
            if self.epochs.get(order.job) is not order:
                return None
            del self.epochs[order.job]
            # A start and a stop for each pod, and as many polls as the reservation has.
            calls = int(len(order.pods) * (min(CALLS_TO_START, 3) + CALLS_PER_SECOND * (self.now - began)))
            self.calls[order.job] += calls
            if isinstance(answer, Reason):
                return ev.EpochFailed(self.now, order.job, order.token, answer, "fault", calls)
            return ev.EpochFinished(self.now, order.job, order.token, answer, calls)

        self.at(seconds, make)

    # -- what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds after every event."""
        used = {node.name: NOTHING for node in self.reducer.nodes.all}
        for job in self.reducer.jobs.values():
            self._check_money(job)
            check_job(job)
            for held in job.pods.values():
                used[held.pod.node] = used[held.pod.node] + held.pod.requests
        for node in self.reducer.nodes.all:
            assert used[node.name].fits(node.capacity), f"{node.name} is over-committed: {used[node.name]}"
        # For a job whose models are being fitted, or that backs off, room may be kept before it holds any.
        live = [job for job in self.reducer.jobs.values() if not job.ended and job.reason not in AT_REST]
        waiting = [job.name for job in live if job.phase is Phase.IDLE]
        assert not waiting or self.pods or len(waiting) < len(live) or self.reducer.nodes.away, (
            f"{waiting} wait for room that nobody holds, or will"
        )
        known = {pod for job in self.reducer.jobs.values() for pod in job.pods}
        assert known == set(self.pods) | self.untold, "Coach knows of every pod there is, and of no other"
        running = {job.name: job.running for job in self.reducer.jobs.values() if job.running}
        assert running == self.epochs, "Coach knows of every epoch that runs, and of no other"
        if self.shadow:
            assert self.shadow.jobs == self.reducer.jobs, "state changes only through records"
            assert self.shadow.nodes.all == self.reducer.nodes.all
            assert self.shadow.nodes.away == self.reducer.nodes.away

    def _check_end(self, end: act.End) -> None:
        """Jobs end for a reason."""
        job = self.job(end.job)
        match end.reason:
            case Reason.BUDGET_SPENT:
                assert not affordable(job, job.minimum), "the smallest allocation's next epoch is covered"
                assert "USD left" in end.message or "left it" in end.message
            case Reason.TARGET_REACHED:
                assert job.in_a_row >= job.spec.spec.target.epochs_in_a_row
            case Reason.TARGET_BELOW_ASYMPTOTE:
                assert job.hopeless >= HOPELESS_FITS and len(job.real_epochs) >= HOPELESS_EPOCHS
            case Reason.CANCELLED_BY_USER:
                assert job.cancel
            case Reason.TIME_LIMIT:
                assert job.run_seconds >= (job.spec.spec.time_limit or 0)
            case _ if MEANING[end.reason].retry is Retry.BOUNDED:
                assert job.failures + 1 == MAX_FAILURES

    def _check_money(self, job: Job) -> None:
        ledger = job.ledger
        assert ledger.spent >= 0 and ledger.reserved >= 0
        if ledger.budget is not None:
            assert ledger.spent + ledger.reserved <= ledger.budget, to_amount(ledger.spent)
        assert sum(job.charges.values()) == ledger.spent
        epochs = {epoch.token: epoch.cost for epoch in job.epochs}
        assert all(job.charges.get(token, 0) == cost for token, cost in epochs.items())

    def check_rest(self) -> None:
        """What holds once nothing is to come: all jobs have ended or were stopped, and nothing is held."""
        for job in self.reducer.jobs.values():
            stopped = job.interrupt and job.phase is Phase.PAUSED and job.reason in AT_REST
            assert job.ended or stopped, (
                f"{job.name} waits for nothing: {job.phase} {job.reason} {job.message}"
            )
            assert not job.pods and job.ledger.reserved == 0
            self._check_bill(job)
        assert not self.pods, "no pod is left behind"

    def _check_bill(self, job: Job) -> None:
        """What was paid is what was held, from a gang's first epoch to its release, and each call."""
        book = job.spec.spec.price_book
        calls = book.invocation * self.calls[job.name]
        least = self.cost[job.name] - self.unleased[job.name] + calls
        paid = to_amount(job.ledger.spent)
        assert paid >= least * (1 - 1e-9) - 1e-9, f"paid {paid}, held {least}"
        truth = self.truths[job.name]
        # A shrinking gang waits for one release before it begins again or is released itself.
        slack = truth.fit + max(0.0, 2 * truth.release - LEASE_SECONDS) + 1e-6
        assert self.longest_unleased[job.name] <= slack, "no gang outlives its lease"

    def check_fold(self) -> None:
        """The journal alone gives the same jobs as the reducer that wrote it."""
        assert fold(self.journalled()) == self.reducer.jobs

    def journalled(self) -> Iterable[Any]:
        """Every record so far, written to JSON and read again."""
        return [decode(type(record).__name__, encode(record)) for record in self.history]

    def orders(self, name: str = "job") -> list[act.RunEpoch]:
        return [record for record in self.history if isinstance(record, act.RunEpoch) and record.job == name]

    def taken(self, kind: type, name: str = "job") -> list[Any]:
        return [record for record in self.history if isinstance(record, kind) and record.job == name]


def check_job(job: Job) -> None:
    """A job that makes sense by itself."""
    smallest, largest = job.spec.spec.limits
    assert [epoch.number for epoch in job.epochs] == list(range(1, len(job.epochs) + 1))
    assert len({epoch.token for epoch in job.epochs}) == len(job.epochs)
    assert job.position == sum(epoch.report.samples for epoch in job.epochs)
    assert job.weights == (job.epochs[-1].report.weights if job.epochs else None)
    assert job.failures < MAX_FAILURES
    assert job.attempts >= len(job.epochs)
    *earlier, last = job.epochs or [None]
    if last is not None and last.kind is EpochKind.MINI:
        before = sum(epoch.allocation == last.allocation for epoch in earlier)
        assert before <= 1, "a point is measured again only where its one measurement may be mistaken"
    assert (job.running is not None) == (job.phase is Phase.RUNNING)
    assert (job.fit != "") == (job.phase is Phase.FITTING)
    assert job.ended == (job.phase is Phase.ENDED)
    if job.phase is Phase.DEPLOYING:
        assert job.pods, "it waits for pods that are there"
        assert job.timer or any(held.releasing for held in job.pods.values())
    if job.phase is Phase.PAUSED:
        assert job.timer or job.reason in AT_REST
    if job.phase is Phase.ENDING:
        assert job.ending and job.pods and all(held.releasing for held in job.pods.values())
    if job.phase is Phase.IDLE:
        assert all(held.releasing for held in job.pods.values()), "who waits for room holds none"
    if job.running:
        held = Allocation(*job.running.allocation)
        assert smallest.workers <= held.workers <= largest.workers, "no partial gang"
        assert smallest.servers <= held.servers <= largest.servers, "no partial gang"
        roles = Counter(pod.role for pod in job.running.pods)
        assert (roles["worker"], roles["server"], roles["scheduler"]) == (*held, 1)
        assert job.ledger.reserved >= 0
        assert not any(held.releasing for held in job.pods.values())
        present = [pod for pod in job.running.pods if pod in job.pods]
        assert all(job.pods[pod].ready for pod in present)
    if job.ended:
        assert not job.pods and job.running is None and job.ledger.reserved == 0
