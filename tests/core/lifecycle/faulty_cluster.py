"""The simulated driver with faults: pods that do not start, epochs that fail, users who change their minds.

It keeps its own books - what was really held and for how long - and after every event it holds the reducer to them
and to what really exists (`check`), to its journal (`shadow`) and to the clock.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from coach.core.cluster import (
    NOTHING,
    Allocation,
    Instance,
    Node,
    Placement,
    Pod,
    PodId,
    Resources,
    Role,
    by_node,
)
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind, EpochReport
from coach.core.jobs.fitted_models import fit_models
from coach.core.jobs.job import LEASE_SECONDS, Job, Phase
from coach.core.jobs.reasons import RESUMABLE, Reason, Retry
from coach.core.lifecycle.forecast import CALLS_PER_SECOND, CALLS_TO_START, MAX_FAILURES, affordable
from coach.core.lifecycle.reducer import Reducer
from coach.core.lifecycle.stopping_rules import HOPELESS_EPOCHS, HOPELESS_FITS, worth_going_on
from coach.core.money import PriceBook, to_amount, to_money
from coach.core.policies.coach import CoachPolicy
from coach.handler.state.codec import decode, encode
from coach.handler.state.journal import fold
from coach.simulation.dynamics.job_dynamics import Drawn, JobDynamics
from coach.simulation.reducer_simulation import Running, Standing
from coach_research.platforms.kube_scheduler import Default
from coach_research.pod_by_pod_driver import PodByPodDriver

SPEC: dict[str, Any] = {
    "apiVersion": "coach.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "job"},
    "spec": {
        "model": {"file": "file:///m.py"},
        "data": {"format": "digits8x8"},
        "target": {"loss": 0.3},
        "budget": {"unlimited": True},
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
MAX_AT_ONCE = 500


@cache
def _fitted(speeds: tuple[Any, ...], curve: tuple[Any, ...], metric: Any, known: tuple[Any, ...]) -> tuple[Any, Any]:
    """Cached: many tests begin alike."""
    return fit_models(speeds, curve, metric, known=known)


def spec(name: str = "job", **changes: Any) -> dict[str, Any]:
    """A job file's content with `changes` to its spec."""
    return {**SPEC, "metadata": {"name": name}, "spec": {**SPEC["spec"], **changes}}


def usd(amount: float) -> dict[str, Any]:
    """A budget."""
    return {"amount": amount, "currency": "USD"}


def nodes(count: int, cpu: float, memory: float = 64.0) -> tuple[Node, ...]:
    return tuple(Node(f"node-{i}", Resources(cpu, memory)) for i in range(count))


@dataclass(frozen=True)
class FaultyDynamics(JobDynamics):
    """The true dynamics of a job, with its faults."""

    speed: Callable[[int, int], float] = lambda w, s: 0.1 * w / (1 + 0.15 * (w - 1) + 0.1 * w / s)
    loss: Callable[[float], float] = lambda x: 1 / (0.4 * x + 0.5) + 0.1
    new_group_seconds: float = 0.3
    same_group_seconds: float = 0.3
    evaluate_seconds: float = 0.2
    release_seconds: float = 0.05
    stop_seconds: float = 0.05
    fit_seconds: float = 0.01
    #: Called before an epoch ends: a reason makes it fail after the given share of its time.
    fault: Callable[[act.RunEpoch], tuple[Reason, float] | None] = lambda order: None
    #: Seconds a pod takes to start, or why it does not; None: it never answers. The number counts the job's pods.
    pod: Callable[[PodId, int], float | Reason | None] = lambda pod, number: 0.5


class World(PodByPodDriver):
    """Jobs are submitted, stopped and resumed at any instant, and remain readable after their ends."""

    dynamics: dict[str, FaultyDynamics]  # type: ignore[assignment]

    def __init__(
        self,
        cluster: tuple[Node, ...],
        policy: Any = None,
        *,
        shadow: bool = False,
        default: Default | None = None,
    ) -> None:
        """`shadow`: keep the journal too, as it would be read again: each record through JSON, folded as it comes."""
        policy = policy or CoachPolicy()
        self.history: list[Any] = []
        #: Pods that went with their node, of which the reducer does not know yet.
        self.unreported: set[PodId] = set()
        #: What each job's pods and calls really cost so far, in currency units; and the part that lies after its lease.
        self.cost, self.unleased, self.longest_unleased = Counter[str](), Counter[str](), Counter[str]()
        self.calls: Counter[str] = Counter()
        self.called: Counter[str] = Counter()  #: what these cost
        self.leases: dict[str, float] = {}
        #: By account: what was spent and reserved when its amount was set lower than that, as far as it is left.
        self.lowered: dict[str, int] = {}
        self.shadow = Reducer(policy, Placement.DEFAULT if default else Placement.GANG) if shadow else None
        #: By job: the pods of its last order that are there, since when they cost what they do, and their prices.
        self._billed: defaultdict[str, dict[PodId, Pod]] = defaultdict(dict)
        self._billed_since: dict[str, float] = {}
        self.books: dict[str, PriceBook] = {}
        self.begun_hours = Counter[str]()
        self._at_once = 0
        self._numbers: Counter[str] = Counter()
        super().__init__(cluster, policy, journal=self._write_down, begin=1_000_000.0, default=default)

    @classmethod
    def of(cls, cluster: tuple[Node, ...], policy: Any = None, **options: Any) -> World:
        return cls(cluster, policy, **options)

    @property
    def pods(self) -> dict[PodId, Standing]:
        """All pods that really exist."""
        return {pod: one for pods in self.standing.values() for pod, one in pods.items()}

    @property
    def epochs(self) -> dict[str, act.RunEpoch]:
        """The epoch of each job that really runs."""
        return {name: epoch.order for name, epoch in self.running.items()}

    # -- what users and fate do ---------------------------------------------------------------------------

    def submit(self, content: dict[str, Any], dynamics: FaultyDynamics | None = None, **more: Any) -> list[act.Action]:
        name = content["metadata"]["name"]
        self.dynamics.setdefault(name, dynamics or FaultyDynamics())
        return self.send(ev.JobSubmitted(self.now, name, content, "file:///checkpoints", **more))

    def set_account(
        self,
        name: str,
        amount: float,
        period: str = "ever",
        parent: str = "",
        labels: dict[str, str] | None = None,
        removed: bool = False,
    ) -> list[act.Action]:
        money = to_money(amount)
        wanted = ev.AccountSet(
            self.now, name, money, "USD", period, parent=parent, labels=labels or {}, removed=removed
        )
        then = deepcopy(self.reducer.accounts)
        then.apply(wanted)
        used = {one.name: then.spent(one, self.now) + one.held for one in then.known.values()}
        self.lowered = {name: much for name, much in used.items() if much > then.known[name].amount}
        return self.send(wanted)

    def cancel(self, name: str = "job") -> list[act.Action]:
        return self.send(ev.CancelRequested(self.now, name))

    def suspend(self, name: str = "job", now: bool = False, by_user: bool = True) -> list[act.Action]:
        return self.send(ev.SuspendRequested(self.now, name, now, by_user))

    def resume(self, name: str = "job", added: int = 0) -> list[act.Action]:
        return self.send(ev.ResumeRequested(self.now, name, added))

    def reprice(self, name: str, prices: dict[str, Any]) -> list[act.Action]:
        return self.send(ev.PricesChanged(self.now, name, prices, "tested"))

    def reprice_nodes(self, factor: float) -> list[act.Action]:
        """The nodes cost so many times as much from now on, where they have prices."""
        all_nodes = tuple(
            replace(node, price=node.price and replace(node.price, hour=node.price.hour * factor))
            for node in self.reducer.nodes.all
        )
        gone = tuple(sorted(self.reducer.nodes.unavailable))
        return self.send(ev.NodesChanged(self.now, gone, nodes=all_nodes))

    def lose(self, pod: PodId, reason: Reason = Reason.FUNCTION_LOST) -> None:
        """A pod dies, if it is there."""
        lost = self.dies(pod, reason)
        if lost is not None:
            self.send(lost)

    def dies(self, pod: PodId, reason: Reason = Reason.FUNCTION_LOST) -> ev.Event | None:
        """The event of it; its epoch fails by itself a moment later, unless it is stopped before."""
        real = self.pods.get(pod)
        if real is None or real.leaving:
            return None
        self._remove(pod)
        self._break_off({pod})
        return ev.PodLost(self.now, pod.job, pod, reason, "lost")

    def lose_nodes(self, *names: str, back: float | None = 30.0) -> None:
        """These nodes are unavailable, and no others, until `back` seconds from now; their pods are gone."""
        lost = self._empty(names)
        self._break_off(set(lost))
        self.unreported.update(lost)
        self.send(ev.NodesChanged(self.now, names))
        for pod in lost:
            self.unreported.remove(pod)
            self.send(ev.PodLost(self.now, pod.job, pod, Reason.FUNCTION_LOST, "its node is unavailable"))
        if back is not None:
            self.at(self.now + back, lambda: ev.NodesChanged(self.now, ()))

    def _break_off(self, lost: set[PodId]) -> None:
        for order in self.epochs.values():
            if lost & set(order.pods) and not self._goes_on(order, lost):
                self.fail(order, 0.2, Reason.PEER_LOST)

    def _goes_on(self, order: act.RunEpoch, lost: set[PodId]) -> bool:
        """An elastic group does without lost workers while there is one."""
        left = [pod for pod in order.pods if pod in self.pods and pod not in lost and pod.role is Role.WORKER]
        of_workers = all(pod.role is Role.WORKER for pod in lost & set(order.pods))
        return self.job(order.job).spec.elastic and of_workers and bool(left)

    def fail(self, order: act.RunEpoch, seconds: float, reason: Reason) -> None:
        """The epoch fails so many seconds from now, if it still runs then."""
        self.at(self.now + seconds, lambda: self._fail(order, reason, "fault"))

    def restart(self, cluster: tuple[Node, ...] | None = None, down: float = 0.0) -> None:
        """The handler is killed, and starts again `down` seconds later.

        Its pods end with it, answers under way are lost, and all that it knows is what the journal says.
        """
        for pod in self.pods:
            self._remove(pod)
        self.running.clear()
        self._heap.clear()
        reducer = Reducer(self.reducer.policy)
        for record in self.journalled():
            reducer.apply(record)
        cluster, unavailable = (
            cluster or self.reducer.nodes.all,
            tuple(sorted(self.reducer.nodes.unavailable)),
        )
        self.reducer = reducer
        killed = self.now
        self.now += down
        self.send(ev.HandlerStarted(self.now, cluster, killed, unavailable=unavailable))
        if unavailable:
            self.at(self.now + 10.0, lambda: ev.NodesChanged(self.now, ()))

    # -- time ---------------------------------------------------------------------------------------------

    def job(self, name: str = "job") -> Job:
        return self.reducer.jobs[name]

    def send(self, event: ev.Event) -> list[act.Action]:
        actions = super().send(event)
        self.check()
        return actions

    def _write_down(self, record: Any) -> None:
        self.history.append(record)
        assert record.at <= self.now, "a handler that starts again goes on from the last record's time"
        if self.shadow:
            self.shadow.apply(decode(type(record).__name__, encode(record)))

    def step(self) -> bool:
        before = self.now
        going = super().step()
        self._at_once = self._at_once + 1 if going and self.now == before else 0
        assert self._at_once < MAX_AT_ONCE, f"in circles: {self.history[-20:]}"
        return going

    def run(self, most: int = 20_000, until: Callable[[], bool] | None = None) -> None:
        """Run until no event is left, or `until` holds. Fails where the jobs never come to rest, or rest too early."""
        for _ in range(most):
            if until and until():
                return
            if not self.step():
                assert not until, "it never came to that"
                return self.check_rest()
        raise AssertionError(f"still going after {most} events: {self.history[-20:]}")

    # -- how this world differs from the simulated one ------------------------------------------------------

    def _carry_out(self, action: act.Action) -> None:
        if isinstance(action, act.Finish):
            self._check_end(action)
        super()._carry_out(action)
        if isinstance(action, act.ExtendEpoch):
            self._bill(action.job)
            self._change_book(action.job)
            self.leases[action.job] = self.job(action.job).money.lease_until

    def _ended(self, job: Job) -> None:
        """It stays."""

    def _fit(self, job: Job) -> tuple[Any, Any]:
        return _fitted(tuple(job.speed_points()), tuple(job.curve_points()), job.metric, job.models.known_curves)

    def _deploy(self, pod: Pod) -> None:
        assert pod.id not in self.pods, f"{pod.id.name} is there already"
        assert pod.node not in self.reducer.nodes.unavailable, f"{pod.id.name} on {pod.node}, which is unavailable"
        super()._deploy(pod)

    def _pod_seconds(self, pod: PodId) -> float:
        self._numbers[pod.job] += 1
        fate = self.dynamics[pod.job].pod(pod, self._numbers[pod.job])
        if not isinstance(fate, Reason):
            return math.inf if fate is None else fate
        real = self.pods[pod]

        def answer() -> ev.Event | None:
            if self.pods.get(pod) is not real or real.leaving:
                return None
            self._remove(pod)
            return ev.PodLost(self.now, pod.job, pod, fate, "did not start")

        self.at(self.now + 0.2, answer)
        return math.inf

    def _release(self, action: act.ReleasePods) -> None:
        assert action.pods
        job = self.job(action.job)
        if job.attempts.running is not None:
            assert job.spec.elastic and job.attempts.running.kind is EpochKind.FULL
            stopped = job.stop.cancel or job.stop.suspend or job.attempts.stopping == job.attempts.running.token
            assert not stopped, "an epoch that is being stopped gives nothing"
        super()._release(action)

    def _remove(self, pod: PodId) -> None:
        if pod in self.pods:
            self._bill(pod.job)
            self._billed[pod.job].pop(pod, None)
        super()._remove(pod)

    def _bill(self, name: str) -> None:
        """What a job's pods cost since the last time, by the prices of their order; of hours only what was used."""
        began, pods = self._billed_since.get(name, self.now), self._billed[name]
        self._billed_since[name] = self.now
        if not pods:
            return
        held, placed = sum((pod.requests for pod in pods.values()), NOTHING), by_node(pods.values())
        rate = self.books[name].rate(held, placed)
        self.cost[name] += rate * (self.now - began)
        beyond = max(0.0, self.now - max(began, self.leases[name]))
        self.unleased[name] += rate * beyond
        since_lease = max(0.0, self.now - self.leases[name])
        self.longest_unleased[name] = max(self.longest_unleased[name], since_lease if beyond else 0.0)

    def _change_book(self, name: str) -> None:
        """The job's prices from now on; an hour that was begun at the old ones is paid, and covers time at the new."""
        old, new = self.books.get(name), self._prices_now(name)
        if old is not None and old != new and old.by_hour and (pods := self._billed[name]):
            held, placed = sum((pod.requests for pod in pods.values()), NOTHING), by_node(pods.values())
            self.begun_hours[name] += 3600 * max(0.0, new.rate(held, placed) - old.rate(held, placed))
        self.books[name] = new

    def _prices_now(self, name: str) -> PriceBook:
        """The job's book as it is; of nodes, as the cluster has them. One without a price is let pass as free."""
        book = self.job(name).spec.price_book
        known = {node.name: node.price for node in self.reducer.nodes.all if node.price is not None}
        if self.job(name).spec.prices == "nodes" and known:
            free = Instance(0.0, 1.0, 1.0)
            nodes = {pod.node: known.get(pod.node, free) for pod in self._billed[name].values()}
            book = PriceBook("nodes", "USD", 0.0, 0.0, 0.0, instance=free, nodes=tuple(nodes.items()))
        return book

    def _run_epoch(self, order: act.RunEpoch) -> None:
        assert order.job not in self.running, "two epochs of a job at once"
        assert order.seconds is None or order.allocation.workers == 1, (
            "workers of one group cannot each stop by their own clock"
        )
        pods = self.pods
        for pod in order.pods:
            assert pods[pod].ready and not pods[pod].leaving
        self._bill(order.job)
        self._billed[order.job] = {pod: pods[pod].pod for pod in order.pods}
        self._change_book(order.job)
        self.leases[order.job] = self.job(order.job).money.lease_until
        super()._run_epoch(order)

    def _mishap(self, epoch: Running, fate: Drawn) -> None:
        order = epoch.order
        fault = self.dynamics[order.job].fault(order)
        if fault and fault[1] * epoch.whole < order.deadline:
            self.fail(order, fault[1] * epoch.whole, fault[0])

    def _report(self, epoch: Running) -> EpochReport:
        if self.job(epoch.order.job).spec.program is not None:
            return super()._report(epoch)
        dynamics = self.dynamics[epoch.order.job]
        loss, _ = self._values(epoch, self.job(epoch.order.job))
        return EpochReport(
            samples=epoch.samples,
            data_size=dynamics.data_size,
            loss=loss if epoch.order.evaluate else None,
            accuracy=max(0.0, 1 - loss / 3) if epoch.order.evaluate else None,
            weights=epoch.order.weights_out,
            train_seconds=epoch.train,
            evaluate_seconds=dynamics.evaluate_seconds if epoch.order.evaluate else 0.0,
            workers_lost=epoch.left_early,
        )

    def _fail(self, order: act.RunEpoch, reason: Reason, message: str) -> ev.Event | None:
        return super()._fail(order, reason, "fault")

    def _calls(self, order: act.RunEpoch) -> int:
        """A start and a stop for each pod, and as many polls as the reservation has."""
        calls = int(len(order.pods) * (min(CALLS_TO_START, 3) + CALLS_PER_SECOND * (self.now - order.at)))
        self.calls[order.job] += calls
        self.called[order.job] += calls * self.books[order.job].invocation
        return calls

    # -- what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds after every event."""
        used = {node.name: NOTHING for node in self.reducer.nodes.all}
        for job in self.reducer.jobs.values():
            self._check_money(job)
            check_job(job, self.reducer.placement)
            for held in job.gang.pods.values():
                # Where the kube-scheduler binds, a pod that is not ready has no node, or the one that it waits for.
                if held.ready or self.reducer.placement is Placement.GANG:
                    used[held.pod.node] = used[held.pod.node] + held.pod.requests
        self._check_accounts()
        for node in self.reducer.nodes.all:
            assert used[node.name].fits(node.capacity), f"{node.name} is over-committed: {used[node.name]}"
        # For a job whose models are being fitted, or that backs off, capacity may be kept before it holds any.
        live = [job for job in self.reducer.jobs.values() if not job.ended and job.reason not in RESUMABLE]
        waiting = [job.name for job in live if job.phase is Phase.IDLE and not job.attempts.timer]
        away = self.reducer.nodes.unavailable or self.reducer.nodes.taken
        assert not waiting or self.pods or len(waiting) < len(live) or away, (
            f"{waiting} wait for capacity that no job holds, or will"
        )
        known = {pod: held for job in self.reducer.jobs.values() for pod, held in job.gang.pods.items()}
        real = set(self.pods) | self.unreported
        # What was lost while it was being released is heard of when all of them are.
        lost = {pod for pod, held in known.items() if held.releasing} - real
        assert known.keys() - lost == real, "Coach knows of every pod there is, and of no other"
        running = {job.name: job.attempts.running for job in self.reducer.jobs.values() if job.attempts.running}
        assert running == self.epochs, "Coach knows of every epoch that runs, and of no other"
        if self.shadow:
            assert self.shadow.jobs == self.reducer.jobs, "state changes only through records"
            assert self.shadow.accounts == self.reducer.accounts
            assert self.shadow.nodes.all == self.reducer.nodes.all
            assert self.shadow.nodes.unavailable == self.reducer.nodes.unavailable

    def _check_end(self, end: act.Finish) -> None:
        """Jobs end for a reason."""
        job = self.job(end.job)
        match end.reason:
            case Reason.BUDGET_SPENT:
                if "on the nodes that it has" in end.message:  # planned is without knowing which
                    assert job.spec.prices == "nodes" and job.gang.pods
                    return
                assert not affordable(job, job.minimum), "the smallest allocation's next epoch is covered"
                assert "USD left" in end.message or "left it" in end.message or "account" in end.message
            case Reason.TARGET_REACHED:
                assert job.consecutive_hits >= job.spec.target.epochs_in_a_row
            case Reason.TARGET_BELOW_ASYMPTOTE:
                assert job.hopeless >= HOPELESS_FITS and len(job.full_epochs) >= HOPELESS_EPOCHS
                assert job.spec.stop_early and not worth_going_on(job)
            case Reason.CANCELLED_BY_USER:
                assert job.stop.cancel
            case Reason.TIME_LIMIT:
                assert job.progress.run_seconds >= (job.spec.time_limit or 0)
            case _ if end.reason.retry is Retry.BOUNDED:
                again = job.spec.program is None or job.spec.program.resumes
                assert not again or job.attempts.failures + 1 == MAX_FAILURES

    def _check_money(self, job: Job) -> None:
        ledger = job.money.ledger
        assert ledger.spent >= 0 and ledger.reserved >= 0
        if ledger.budget is not None:
            assert ledger.spent + ledger.reserved <= ledger.budget, to_amount(ledger.spent)
        assert sum(job.money.charges.values()) == ledger.spent
        epochs = {epoch.token: epoch.cost for epoch in job.epochs}
        assert all(job.money.charges.get(token, 0) == cost for token, cost in epochs.items())

    def _check_accounts(self) -> None:
        """No account is overdrawn in its present period, by books of its own: the settlements of the history."""
        accounts, jobs = self.reducer.accounts, self.reducer.jobs
        for account in accounts.known.values():
            names = {job.name for job in jobs.values() if account in accounts.of(job)}
            reserved = sum(jobs[name].money.ledger.reserved for name in names)
            start = account.period.start(self.now)
            spent = sum(
                record.amount
                for record in self.history
                if isinstance(record, act.Settle) and record.job in names and record.until >= start
            )
            assert (accounts.spent(account, self.now), account.held) == (spent, reserved)
            lowered = self.lowered.get(account.name, 0)
            assert spent + reserved <= max(account.amount, lowered), f"{account.name}: {spent}, {reserved}"
            self.lowered[account.name] = min(lowered, spent + reserved)

    def check_rest(self) -> None:
        """What holds once no event is left: all jobs have ended or were stopped, and nothing is held."""
        for job in self.reducer.jobs.values():
            stopped = job.stop.suspend and job.phase is Phase.PAUSED and job.reason in RESUMABLE
            assert job.ended or stopped, f"{job.name} waits for nothing: {job.phase} {job.reason} {job.message}"
            assert not job.gang.pods and job.money.ledger.reserved == 0
            self._check_bill(job)
        assert not self.pods, "no pod is left behind"

    def _check_bill(self, job: Job) -> None:
        """What was paid is what was held, from a gang's first epoch to its release, and each call."""
        least = self.cost[job.name] - self.unleased[job.name] + self.called[job.name] - self.begun_hours[job.name]
        paid = to_amount(job.money.ledger.spent)
        assert paid >= least * (1 - 1e-9) - 1e-9, f"paid {paid}, held {least}"
        dynamics = self.dynamics[job.name]
        # A shrinking gang waits for one release before it begins again or is released itself.
        slack = dynamics.fit_seconds + max(0.0, 2 * dynamics.release_seconds - LEASE_SECONDS) + 1e-6
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


def check_job(job: Job, placement: Placement = Placement.GANG) -> None:
    """A job that makes sense by itself."""
    smallest, largest = job.spec.limits
    assert [epoch.number for epoch in job.epochs] == list(range(1, len(job.epochs) + 1))
    assert len({epoch.token for epoch in job.epochs}) == len(job.epochs)
    assert job.progress.position == sum(epoch.report.samples for epoch in job.epochs)
    assert job.progress.weights == (job.epochs[-1].report.weights if job.epochs else None)
    assert job.attempts.failures < MAX_FAILURES
    assert job.attempts.count >= len(job.epochs)
    *earlier, last = job.epochs or [None]
    if last is not None and last.kind is EpochKind.PROBE:
        before = sum(epoch.allocation == last.allocation and not epoch.report.workers_lost for epoch in earlier)
        assert before <= 1, "a point is measured again only where its one measurement may be mistaken"
    assert (job.attempts.running is not None) == (job.phase is Phase.RUNNING)
    assert (job.models.fit_token != "") == (job.phase is Phase.FITTING)
    assert job.ended == (job.phase is Phase.ENDED)
    if job.phase is Phase.DEPLOYING:
        assert job.gang.pods, "it waits for pods that are there"
        unready = any(not held.ready for held in job.gang.pods.values())
        endless = placement is Placement.DEFAULT and unready  # until the kube-scheduler finds nodes
        assert job.attempts.timer or endless or any(held.releasing for held in job.gang.pods.values())
    if job.phase is Phase.PAUSED:
        assert job.attempts.timer or job.reason in RESUMABLE
    if job.phase is Phase.ENDING:
        assert job.decision.ending and job.gang.pods and all(held.releasing for held in job.gang.pods.values())
    if job.phase is Phase.IDLE:
        assert all(held.releasing for held in job.gang.pods.values()), "who waits for room holds none"
    if job.attempts.running:
        held = Allocation(*job.attempts.running.allocation)
        assert smallest.workers <= held.workers <= largest.workers, "no partial gang"
        assert smallest.servers <= held.servers <= largest.servers, "no partial gang"
        roles = Counter(pod.role for pod in job.attempts.running.pods)
        assert (roles["worker"], roles["server"], roles["scheduler"]) == (
            *held,
            job.spec.resources.schedulers,
        )
        assert job.money.ledger.reserved >= 0
        leaving = {pod for pod, held in job.gang.pods.items() if held.releasing}
        assert not leaving or (job.spec.elastic and leaving.isdisjoint(job.attempts.running.pods))
        present = [pod for pod in job.attempts.running.pods if pod in job.gang.pods]
        assert all(job.gang.pods[pod].ready for pod in present)
    if job.ended:
        assert not job.gang.pods and job.attempts.running is None and job.money.ledger.reserved == 0
