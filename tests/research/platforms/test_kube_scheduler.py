"""Default placement: pod by pod, on the node with the most free capacity, without regard to a job's other pods."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach.core.cluster import NOTHING, Node, Placement, Pod, PodId, Resources, Role
from coach.core.errors import UserError
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.reducer import Reducer
from coach.core.policies import Policy
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView
from coach.handler.state.codec import encode
from coach.plugins import policy
from coach.simulation.faults import Faults
from coach_research.platforms.kube_scheduler import (
    Default,
    PodByPodPlacement,
    least_allocated,
    parse_placement,
)
from coach_research.pod_by_pod_driver import PodByPodDriver
from tests.core.lifecycle.faulty_cluster import nodes, spec, usd
from tests.simulation.test_reducer_simulation import DYNAMICS

pytestmark = pytest.mark.standard

# -- the queue and the nodes by themselves ---------------------------------------------------------------------------


def pod(job: str, index: int, cpu: float) -> Pod:
    return Pod(PodId(job, Role.WORKER, index), "", Resources(cpu, 0.1))


class Queue:
    """A `PodByPodPlacement`, spoken to in words."""

    def __init__(self, *cores: float) -> None:
        cluster = [Node(f"n{number}", Resources(cpu, 64.0)) for number, cpu in enumerate(cores)]
        self.placement = PodByPodPlacement(cluster, np.random.default_rng(1))
        self.pods: dict[PodId, Pod] = {}

    def ask(self, *pods: Pod, unavailable: Sequence[str] = ()) -> dict[str, str]:
        """Who gets which node where these come one after the other."""
        bound: dict[str, str] = {}
        for one in pods:
            self.pods[one.id] = one
            self.placement.ask(one)
            bound |= self.bind(unavailable)
        return bound

    def bind(self, unavailable: Sequence[str] = ()) -> dict[str, str]:
        bound = dict(self.placement.bind(unavailable))
        for one, node in bound.items():
            self.pods[one] = Pod(one, node, self.pods[one].requests)
        return {f"{one.job}{one.index}": node for one, node in bound.items()}

    def leave(self, *pods: Pod) -> dict[str, str]:
        """Who gets their nodes."""
        for one in pods:
            self.placement.leave(self.pods[one.id])
        return self.bind()

    @property
    def waiting(self) -> list[str]:
        return [f"{one.job}{one.index}" for one in self.placement.waiting]


def test_what_fits_is_placed_at_once_on_the_node_with_the_most_room() -> None:
    queue = Queue(4, 8)
    # 75 or 87 % would stay free; then 75 or 75 %, which the draw decides; then whatever was left.
    assert queue.ask(pod("a", 0, 1)) == {"a0": "n1"}
    first, second = queue.ask(pod("a", 1, 1)), queue.ask(pod("a", 2, 1))
    assert {*first.values(), *second.values()} == {"n0", "n1"}
    assert queue.waiting == []


def test_a_pod_without_room_waits_and_a_smaller_one_passes_it() -> None:
    queue = Queue(2, 2)
    assert queue.ask(pod("a", 0, 1), pod("a", 1, 1)).keys() == {"a0", "a1"}
    assert queue.ask(pod("b", 0, 2)) == {}
    assert queue.waiting == ["b0"]
    assert queue.ask(pod("c", 0, 1)).keys() == {"c0"}
    assert queue.waiting == ["b0"]


def test_two_groups_hold_what_the_other_one_waits_for() -> None:
    queue = Queue(3)
    a, b = [pod("a", n, 1) for n in range(2)], [pod("b", n, 1) for n in range(2)]
    assert queue.ask(a[0], b[0], pod("c", 0, 1)).keys() == {"a0", "b0", "c0"}
    assert queue.ask(a[1], b[1]) == {}
    assert queue.waiting == ["a1", "b1"]
    # Nothing happens until a job is killed.
    assert queue.bind() == {}
    assert queue.leave(b[0], b[1]).keys() == {"a1"}


def test_freed_room_is_taken_by_the_longest_waiting_pod() -> None:
    queue = Queue(2)
    first = pod("a", 0, 2)
    queue.ask(first)
    queue.ask(pod("b", 0, 1.5), pod("c", 0, 1), pod("d", 0, 0.5))
    assert queue.waiting == ["b0", "c0", "d0"]
    assert queue.leave(first).keys() == {"b0", "d0"}
    assert queue.waiting == ["c0"]


def test_an_unavailable_node_takes_no_pod_until_it_is_back() -> None:
    queue = Queue(4, 2)
    assert queue.ask(pod("a", 0, 2), unavailable=["n0"]) == {"a0": "n1"}
    assert queue.ask(pod("a", 1, 1), unavailable=["n0"]) == {}
    assert queue.bind() == {"a1": "n0"}


def test_who_leaves_before_it_has_a_node_leaves_no_room_behind() -> None:
    queue = Queue(1)
    one, two = pod("a", 0, 1), pod("b", 0, 1)
    queue.ask(one, two)
    assert queue.leave(two) == {}
    assert queue.leave(one) == {}
    assert queue.ask(pod("c", 0, 1), pod("d", 0, 1)).keys() == {"c0"}


def test_pods_of_one_instant_stand_in_a_drawn_order() -> None:
    orders = set()
    for seed in range(20):
        placement = PodByPodPlacement([Node("n", Resources(1.0, 64.0))], np.random.default_rng(seed))
        for job in "ab":
            placement.ask(pod(job, 0, 1))
        orders.add(placement.bind()[0][0].job)
    assert orders == {"a", "b"}


@pytest.mark.parametrize(
    ("free", "capacity", "points"),
    [
        ((4, 8, 0), (4, 8, 0), 100),
        ((3, 4, 0), (4, 8, 0), (75 + 50) // 2),
        ((1, 0, 0), (3, 8, 0), (33 + 0) // 2),
        ((0, 0, 0), (4, 8, 0), 0),
        ((3, 0, 2), (4, 0, 2), 75),  # without memory only the cores count, and devices never do
    ],
)
def test_the_score_is_kube_schedulers(free: tuple[float, ...], capacity: tuple[float, ...], points: int) -> None:
    assert least_allocated(np.array([free], float), np.array([capacity], float)).tolist() == [points]


def test_placements_are_read_and_others_refused() -> None:
    assert parse_placement("gang") is None
    assert parse_placement("default") == Default()
    assert parse_placement("default:deadlock_timeout=600") == Default(600.0)
    for text in ("kube", "gang:x=1", "default:x=1", "default:deadlock_timeout=0"):
        with pytest.raises(UserError, match="use gang, or default"):
            parse_placement(text)


# -- jobs ------------------------------------------------------------------------------------------------------------


def fixed(name: str, workers: int, servers: int, **more: Any) -> dict[str, Any]:
    """A job that always has so many."""
    return spec(name, policy={"name": "static", "workers": workers, "servers": servers}, **more)


def run(
    seed: int,
    cluster: tuple[Node, ...],
    documents: Sequence[dict[str, Any]],
    default: Default | None,
    **more: Any,
) -> tuple[PodByPodDriver, list[Any]]:
    records: list[Any] = []
    driver = PodByPodDriver(cluster, policy("coach"), seed=seed, default=default, journal=records.append, **more)
    for document in documents:
        driver.submit_at(0.0, document["metadata"]["name"], document, DYNAMICS)
    driver.run()
    return driver, records


#: Room for one 2x1 and two pods of another: the workers need a core, a server half a one.
TIGHT = (Node("n", Resources(3.0, 64.0)),)
TWO = (fixed("a", 2, 1), fixed("b", 2, 1))


def test_a_group_that_fits_trains_where_the_scheduler_put_it() -> None:
    driver, records = run(1, nodes(3, 1.1), [fixed("a", 2, 1)], Default())
    assert driver.ended["a"].state is State.SUCCEEDED
    deployed = [one for record in records if isinstance(record, act.DeployPods) for one in record.pods]
    assert {one.node for one in deployed} == {""}
    where = {record.pod: record.node for record in records if isinstance(record, ev.PodReady)}
    assert len(where) == 4
    workers = [node for one, node in where.items() if one.role is Role.WORKER]
    assert len(set(workers)) == 2  # each on a node of its own


def test_two_groups_may_wait_for_one_another_for_ever_and_nothing_is_paid() -> None:
    stuck = 0
    for seed in range(12):
        gang, _ = run(seed, TIGHT, TWO, None)
        assert {one.state for one in gang.ended.values()} == {State.SUCCEEDED}
        driver, _ = run(seed, TIGHT, TWO, Default())
        assert len(driver.ended) + len(driver.left) == 2
        if driver.left:
            stuck += 1
            assert not driver.ended
            for one in driver.left.values():
                assert (one.state, one.reason) == (State.WAITING, Reason.STARTING_FUNCTIONS)
                assert math.isnan(one.ended) and math.isnan(one.started)
                assert one.final.phase is Phase.DEPLOYING and "functions have no node" in one.final.message
                # Its pods hold room, and money counts from the first epoch on.
                assert one.held.cpu > 0 and one.spent == 0
    assert 0 < stuck < 12


def test_after_the_deadlocks_timeout_a_job_is_killed() -> None:
    stuck = [seed for seed in range(12) if run(seed, TIGHT, TWO, Default())[0].left]
    for seed in stuck:
        driver, records = run(seed, TIGHT, TWO, Default(deadlock_timeout=900.0))
        asked = [record.at for record in records if isinstance(record, ev.CancelRequested)]
        assert asked and asked[0] == 900.0
        assert not driver.left
        ends = Counter(one.reason for one in driver.ended.values())
        assert ends[Reason.CANCELLED_BY_USER] == len(asked)


def test_who_has_its_smallest_group_begins_after_the_forming_deadline() -> None:
    """Its second worker never finds a node, and is waited for no longer than for one that does not start."""
    document = spec("a", workers={"min": 1, "max": 2}, servers={"min": 1, "max": 1})
    driver, records = run(1, (Node("n", Resources(1.7, 64.0)),), [document], Default())
    assert driver.ended["a"].state is State.SUCCEEDED
    orders = [record for record in records if isinstance(record, act.RunEpoch)]
    assert {order.allocation for order in orders} == {(1, 1)}
    _, gang = run(1, (Node("n", Resources(1.7, 64.0)),), [document], None)
    assert {record.allocation for record in gang if isinstance(record, act.RunEpoch)} == {(1, 1)}


def test_a_job_that_can_go_on_does_not_wait_for_a_probe_without_room() -> None:
    records: list[Any] = []
    driver = PodByPodDriver(nodes(1, 4.3), policy("coach"), default=Default(), journal=records.append)
    driver.submit_at(0.0, "long", fixed("long", 2, 1), replace(DYNAMICS, speed=lambda w, s: 0.005))
    driver.submit_at(1.0, "job", spec("job"), DYNAMICS)
    driver.run()
    assert driver.ended["job"].ended < driver.ended["long"].ended
    asked = [record for record in records if isinstance(record, act.DeployPods) and record.job == "job"]
    assert [len(order.pods) for order in asked] == [3]
    assert {record.allocation for record in records if isinstance(record, act.RunEpoch)} == {(1, 1), (2, 1)}


class Most(Policy):
    """All that they may have for all, whether there is room or not."""

    name = "most"
    cadence = None

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        return AllocationDecision({job.id: job.maximum for job in jobs}, ())


def test_who_comes_to_its_smallest_group_after_the_deadline_begins_with_it() -> None:
    late = spec("late", workers={"min": 1, "max": 2}, servers={"min": 1, "max": 1})
    records: list[Any] = []
    driver = PodByPodDriver(nodes(1, 4.3), Most(), default=Default(), journal=records.append)
    driver.submit_at(0.0, "short", fixed("short", 1, 1), DYNAMICS)
    driver.submit_at(0.0, "long", fixed("long", 2, 1), replace(DYNAMICS, speed=lambda w, s: 0.02))
    known = {"known_points": (KnownSpeed(1, 1, 0.1), KnownSpeed(2, 1, 0.3)), "known_epochs": 8.0}
    driver.submit_at(1.0, "late", late, DYNAMICS, **known)
    driver.run()
    assert {one.state for one in driver.ended.values()} == {State.SUCCEEDED}
    wanted = [record for record in records if isinstance(record, act.SetAllocation) and record.job == "late"]
    assert wanted[0].allocation == (2, 1)
    first = next(record for record in records if isinstance(record, act.RunEpoch) and record.job == "late")
    # No job left before `short` did, and only then, long after its deadline, did it have one worker.
    assert 61.0 < driver.ended["short"].ended <= first.at < driver.ended["short"].ended + 2.0
    assert first.allocation == (1, 1)
    assert first.at < driver.ended["long"].ended


def test_the_same_seed_gives_the_same_journal_to_the_byte_and_another_one_another() -> None:
    documents = [spec(f"job-{n}", budget=usd(1.0)) for n in range(4)]
    one, two, other = (
        [encode(record) for record in run(seed, nodes(2, 3), documents, Default())[1]] for seed in (1, 1, 2)
    )
    assert one == two != other


def test_a_journal_fed_to_the_reducer_again_gives_the_same_actions() -> None:
    documents = [spec(f"job-{n}", budget=usd(1.0)) for n in range(4)]
    _, records = run(3, nodes(2, 3), documents, Default(), faults=Faults(3, function_lost=60.0))
    reducer = Reducer(policy("coach"), Placement.DEFAULT)
    actions: list[Any] = []
    for record in records:
        if isinstance(record, ev.Event):
            actions += reducer.react(record)
    assert actions == [record for record in records if isinstance(record, act.Action)]


class Checked(PodByPodDriver):
    """Holds after every event what has to hold, whatever happens."""

    def send(self, event: ev.Event) -> list[act.Action]:
        actions = super().send(event)
        used = {node.name: NOTHING for node in self._nodes}
        for job, pods in self.standing.items():
            known = self.reducer.jobs[job]
            for standing in pods.values():
                if standing.pod.node:
                    used[standing.pod.node] += standing.pod.requests
                else:
                    assert not standing.ready
                held = known.gang.pods.get(standing.pod.id)
                if held and held.ready:
                    assert held.pod == standing.pod, "once a pod answers the reducer knows where it is"
                if known.attempts.running and standing.pod.id in known.attempts.running.pods:
                    assert standing.ready and standing.pod.node not in self._unavailable
        for node in self._nodes:
            assert used[node.name].fits(node.capacity), f"{node.name} is over-committed"
        for known in self.reducer.jobs.values():
            ledger = known.money.ledger
            assert ledger.budget is None or ledger.spent + ledger.reserved <= ledger.budget
        return actions


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_nothing_is_over_committed_and_every_job_is_somewhere(data: st.DataObject) -> None:
    draw = data.draw
    cluster = nodes(draw(st.integers(1, 3)), draw(st.sampled_from([1.7, 2.5, 4.0])))
    seed = draw(st.integers(0, 100))
    name = draw(st.sampled_from(["coach", "drf", "fifo", "srtf", "static:1x1"]))
    lost = draw(st.sampled_from([math.inf, 90.0]))
    driver = Checked(
        cluster,
        policy(name),
        seed=seed,
        default=Default(draw(st.sampled_from([None, 300.0]))),
        faults=Faults(seed, node_lost=lost, node_back=30.0, function_lost=draw(st.sampled_from([math.inf, 120.0]))),
    )
    jobs = [f"job-{n}" for n in range(draw(st.integers(1, 5)))]
    for job in jobs:
        money = draw(st.sampled_from([{"unlimited": True}, usd(0.01), usd(1.0)]))
        document = fixed(job, 2, 1, budget=money) if draw(st.booleans()) else spec(job, budget=money)
        driver.submit_at(draw(st.sampled_from([0.0, 20.0])), job, document, DYNAMICS)
    for _ in range(4000):
        if not (driver._submissions or driver.reducer.jobs) or not driver.step():
            break
    assert driver.ended.keys().isdisjoint(driver.left)
    assert sorted([*driver.ended, *driver.left]) == jobs
    capacity = sum(node.capacity.cpu for node in cluster)
    held = sum(one.held.cpu for one in (*driver.ended.values(), *driver.left.values()))
    assert held <= capacity * driver.now + 1e-6
    if driver.left and lost == math.inf:
        assert any(not one.pod.node for pods in driver.standing.values() for one in pods.values())
    if not driver.left:
        assert not driver.standing
