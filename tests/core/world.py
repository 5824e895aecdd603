"""A world in virtual time for the reducer: true speeds, a true curve, and faults on request.

It is a driver like the live handler, without I/O: it carries actions out and feeds the answers back in the order
of their times. After every event it checks what must always hold.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coach.core.budget import to_amount
from coach.core.cluster import NOTHING, Allocation, Node, Resources
from coach.core.estimation.fit import fit_models
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import Reason
from coach.core.policies.coach import CoachPolicy
from coach.core.reducer import Reducer
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


def spec(name: str = "job", **changes: Any) -> dict[str, Any]:
    """A job file's content with `changes` to its spec."""
    return {**SPEC, "metadata": {"name": name}, "spec": {**SPEC["spec"], **changes}}


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


@dataclass
class World:
    reducer: Reducer
    truths: dict[str, Truth] = field(default_factory=dict)
    now: float = 1_000_000.0
    history: list[Any] = field(default_factory=list)
    _heap: list[tuple[float, int, Callable[[], ev.Event | None]]] = field(default_factory=list)
    _count: itertools.count = field(default_factory=itertools.count)

    @classmethod
    def of(cls, cluster: tuple[Node, ...], policy: Any = None) -> World:
        world = cls(Reducer(policy or CoachPolicy()))
        world.send(ev.HandlerStarted(world.now, cluster))
        return world

    def submit(self, content: dict[str, Any], truth: Truth | None = None, **more: Any) -> None:
        name = content["metadata"]["name"]
        self.truths[name] = truth or Truth()
        self.send(ev.JobSubmitted(self.now, name, content, "file:///checkpoints", **more))

    def job(self, name: str = "job") -> Job:
        return self.reducer.jobs[name]

    def at(self, seconds: float, make: Callable[[], ev.Event | None]) -> None:
        """Send the event that `make` gives, `seconds` from now."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._count), make))

    def send(self, event: ev.Event) -> list[act.Action]:
        actions = self.reducer.react(event)
        self.history += [event, *actions]
        for action in actions:
            self._carry_out(action)
        self.check()
        return actions

    def run(self, most: int = 20_000, until: Callable[[], bool] | None = None) -> None:
        """Until nothing is to come, or `until` holds. Fails where the jobs never come to rest."""
        for _ in range(most):
            if until and until():
                return
            if not self._heap:
                return
            due, _, make = heapq.heappop(self._heap)
            self.now = max(self.now, due)
            event = make()
            if event is not None:
                self.send(event)
        raise AssertionError(f"still going after {most} events: {self.reducer.jobs}")

    def _carry_out(self, action: act.Action) -> None:
        name = action.job
        match action:
            case act.DeployPods():
                for pod in action.pods:
                    self.at(0.5, lambda pod=pod: ev.PodReady(self.now, name, pod.id, "127.0.0.1:1"))
            case act.ReleasePods():
                self.at(0.05, lambda: ev.PodsReleased(self.now, name, action.pods))
            case act.RunEpoch():
                self._run_epoch(action)
            case act.StopEpoch():
                self.at(0.05, lambda: ev.EpochFailed(self.now, name, action.token, action.reason, "stopped", 3))
            case act.FitModels():
                job = self.job(name)
                fitted = fit_models(job.speed_points(), job.curve_points(), job.metric)
                self.at(0.01, lambda: ev.ModelsFitted(self.now, name, action.token, *fitted))
            case act.SetTimer():
                self.at(action.due - self.now, lambda: ev.TimerFired(self.now, name, action.token))

    def _run_epoch(self, order: act.RunEpoch) -> None:
        truth = self.truths[order.job]
        speed = truth.speed(*order.allocation)
        fraction = order.fraction
        if order.seconds is not None:
            fraction = min(fraction, order.seconds * speed)
        samples = max(1, round(fraction * truth.data_size))
        train = samples / truth.data_size / speed
        total = truth.start + train + truth.evaluate
        calls = 3 * len(order.pods) + int(total)
        fault = truth.fault(order)
        if fault and fault[1] * total < order.deadline:
            reason, share = fault
            self.at(share * total, lambda: ev.EpochFailed(self.now, order.job, order.token, reason, "fault", calls))
        elif total > order.deadline:
            late = Reason.DEADLINE_EXCEEDED
            self.at(order.deadline, lambda: ev.EpochFailed(self.now, order.job, order.token, late, "", calls))
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
            self.at(total, lambda: ev.EpochFinished(self.now, order.job, order.token, report, calls))

    def check(self) -> None:
        """What holds after every event."""
        used = {node.name: NOTHING for node in self.reducer.nodes}
        for job in self.reducer.jobs.values():
            ledger = job.ledger
            assert ledger.spent >= 0 and ledger.reserved >= 0
            if ledger.budget is not None:
                assert ledger.spent + ledger.reserved <= ledger.budget, to_amount(ledger.spent)
            assert sum(job.charges.values()) == ledger.spent
            assert sum(epoch.cost for epoch in job.epochs) <= ledger.spent
            assert len({epoch.token for epoch in job.epochs}) == len(job.epochs)
            if job.running:
                held = Allocation(*job.running.allocation)
                assert job.minimum <= held, "no partial gang"
                assert job.minimum.servers <= held.servers
                assert all(held.ready for held in (job.pods[pod] for pod in job.running.pods))
            if job.ended:
                assert not job.pods and job.running is None and job.phase is Phase.ENDED
                assert ledger.reserved == 0
            for held in job.pods.values():
                used[held.pod.node] = used[held.pod.node] + held.pod.requests
        for node in self.reducer.nodes:
            assert used[node.name].fits(node.capacity), f"{node.name} is over-committed: {used[node.name]}"

    def check_fold(self) -> None:
        """The journal alone gives the same jobs as the reducer that wrote it."""
        assert fold(self.history) == self.reducer.jobs
