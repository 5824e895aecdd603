"""Policies that choose nodes, called by the reducer: whole runs, nodes chosen, moves, preemptions and kills."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import Reason
from coach.plugins import policy
from coach_research.platforms.kube_scheduler import Default
from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    EpochEnded,
    Finished,
    Kill,
    Migrate,
    PolicyError,
    Preempt,
    PreemptionCompleted,
    Reserve,
    Resize,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
    TimerFired,
    first,
)
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec, usd

NAMES = ["round-robin", "specon", "specon:crowd=0", "kod2", "tf-operator", "tf-operator:deadlock_timeout=60"]


@pytest.mark.parametrize("name", NAMES)
def test_under_every_policy_every_job_ends(name: str) -> None:
    world = World.of(nodes(2, 2.0), policy(name), shadow=True)
    world.submit(spec("a", maxEpochs=3, timeLimit="1h"))
    world.submit(spec("b", maxEpochs=3, budget=usd(0.01)))
    world.submit(spec("c", maxEpochs=3, workers={"min": 2, "max": 2}, servers={"min": 1, "max": 1}))
    world.run()
    assert all(job.reason is Reason.EPOCH_LIMIT for job in world.reducer.jobs.values())


@pytest.mark.parametrize("default", [None, Default()], ids=["gang", "default"])
@pytest.mark.parametrize("name", NAMES)
def test_many_jobs_on_a_small_cluster_reach_their_targets(name: str, default: Default | None) -> None:
    world = World.of(nodes(3, 4.0), policy(name), shadow=True, default=default)
    for number in range(6):
        world.submit(spec(f"j{number}", target={"loss": 0.5}))
    world.run()
    assert all(job.reason is Reason.TARGET_REACHED for job in world.reducer.jobs.values())


def test_the_policy_s_name_is_the_one_that_was_asked_for() -> None:
    assert policy(" kod2:starve_limit=60 ").name == "kod2:starve_limit=60"


class Scripted(SchedulingPolicy):
    """Starts each job on node 0; then what `then` says, at each end of an epoch."""

    wants = frozenset({EpochEnded})

    def __init__(self, then: Callable[[SchedulingEvent, EngineView], Iterator[SchedulingAction]]) -> None:
        self.then = then
        self.seen: list[SchedulingEvent] = []

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        self.seen.append(event)
        if isinstance(event, Arrived):
            yield Start(event.job, ((0, 1, 1),))
        yield from self.then(event, view)


def simulated(
    then: Callable[[SchedulingEvent, EngineView], Iterator[SchedulingAction]],
    *names: str,
    cores: float = 4.0,
    default: Default | None = None,
) -> tuple[World, Scripted]:
    scripted = Scripted(then)
    world = World.of(nodes(2, cores), scripted, shadow=True, default=default)
    for name in names or ("a",):
        world.submit(spec(name, maxEpochs=6), FaultyDynamics())
    world.run()
    return world, scripted


def placed(world: World, name: str = "a") -> list[set[str]]:
    """The nodes of each full epoch."""
    where: dict[Any, str] = {}
    found = []
    for record in world.history:
        if isinstance(record, act.DeployPods) and record.job == name:
            where |= {pod.id: pod.node for pod in record.pods}
        if isinstance(record, ev.PodReady) and record.node:  # the kube-scheduler's choice
            where[record.pod] = record.node
        if isinstance(record, act.RunEpoch) and record.job == name and record.kind is EpochKind.FULL:
            found.append({where[pod] for pod in record.pods})
    return found


@pytest.mark.parametrize("default", [None, Default()], ids=["gang", "default"])
def test_a_job_trains_on_the_nodes_that_the_policy_names_and_moves_when_it_says(
    default: Default | None,
) -> None:
    """With default placement its pods say so, and the kube-scheduler binds them there (node affinity)."""

    def then(event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        if isinstance(event, EpochEnded) and view.jobs[event.job].migrations == 0 and event.epoch >= 3:
            yield Migrate(event.job, ((1, 1, 1),))

    world, scripted = simulated(then, default=default)
    stood = placed(world)
    assert stood[0] == {"node-0"} and stood[-1] == {"node-1"}
    assert all(len(nodes) == 1 for nodes in stood)
    assert scripted.seen[-1].job == 0 and isinstance(scripted.seen[-1], EpochEnded | Finished)  # type: ignore[union-attr]
    assert world.job("a").reason is Reason.EPOCH_LIMIT


def test_a_job_without_probes_begins_where_its_policy_says() -> None:
    world = World.of(nodes(3, 4.0), policy("round-robin"), shadow=True)
    for name in ("a", "b", "c"):
        world.submit(spec(name, maxEpochs=2, policy={"name": "static", "workers": 1, "servers": 1}))
    world.run()
    places = [placed(world, name) for name in ("a", "b", "c")]
    assert all(len(first) == 1 and first == second for first, second in places)
    assert len(set.union(*(first for first, _ in places))) == 3


def test_a_resized_job_has_the_new_counts_at_its_next_epoch() -> None:
    def then(event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        if isinstance(event, EpochEnded) and view.jobs[event.job].workers == 1:
            yield Resize(event.job, ((0, 2, 1), (1, 1, 0)))

    world, _ = simulated(then)
    orders = [order for order in world.orders("a") if order.kind is EpochKind.FULL]
    assert orders[-1].allocation == Allocation(3, 1)
    assert placed(world)[-1] == {"node-0", "node-1"}


def test_a_preempted_job_gives_all_back_is_drained_and_starts_again() -> None:
    def then(event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        a = view.jobs.get(0)
        if isinstance(event, EpochEnded) and event.job == 0 and a and a.preemptions == 0:
            yield Preempt(0)
        if isinstance(event, PreemptionCompleted):
            yield Start(event.job, ((1, 1, 1),))

    world, scripted = simulated(then, "a", "b")
    assert [event.job for event in scripted.seen if isinstance(event, PreemptionCompleted)] == [0]
    assert placed(world)[-1] == {"node-1"}
    assert all(job.reason is Reason.EPOCH_LIMIT for job in world.reducer.jobs.values())


def test_a_killed_job_comes_anew_and_its_user_s_job_still_ends_well() -> None:
    def then(event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        if isinstance(event, EpochEnded) and event.job == 0:
            yield Kill(0)

    world, scripted = simulated(then, "a", "b")
    events = [event for event in scripted.seen if isinstance(event, Finished | Arrived)]
    killed = next(event for event in events if isinstance(event, Finished) and event.killed)
    assert killed.job == 0
    assert Arrived(2) in events[events.index(killed) :]
    assert world.job("a").reason is Reason.EPOCH_LIMIT


def test_ticks_come_at_the_first_question_after_their_time() -> None:
    asked = []

    def then(event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        if isinstance(event, Arrived):
            yield ScheduleTimer(view.now + 5.0)
        if isinstance(event, TimerFired):
            asked.append(view.now - event.at)

    simulated(then)
    assert len(asked) == 1
    assert asked[0] >= 0.0


def test_the_policy_sees_what_was_trained_and_the_loss() -> None:
    seen: list[tuple[float, float]] = []

    def then(event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        if isinstance(event, EpochEnded):
            job = view.jobs[event.job]
            seen.append((job.done(), job.loss()))
            assert job.speed(2, 1) > 0.0
            assert job.remaining().low <= job.remaining().high
        yield from ()

    simulated(then)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    losses = [loss for _, loss in seen]
    assert all(not math.isnan(loss) for loss in losses)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Start(0, ((0, 9, 1),)), "not within"),
        (Start(0, ((0, 3, 3), (1, 0, 0))), "more than there is"),
        (Reserve(0, ((0, 9, 0),)), "more than there is"),
        (Resize(0, ((0, 1, 1),)), "is waiting"),
        (Preempt(7), "no such job"),
    ],
)
def test_what_cannot_be_is_the_policy_s_fault(action: SchedulingAction, message: str) -> None:
    class Wrong(SchedulingPolicy):
        name = "wrong"

        def schedule(self, event: SchedulingEvent, view: EngineView) -> list[SchedulingAction]:
            return [action] if first(view.waiting) else []

    world = World.of(nodes(2, 2.0), Wrong())
    with pytest.raises(PolicyError, match=message):
        world.submit(spec("a", maxEpochs=2))
        world.run()


def test_jobs_that_ended_are_forgotten_and_other_nodes_are_seen() -> None:
    scripted = Scripted(lambda event, view: iter(()))
    world = World.of(nodes(2, 4.0), scripted)
    world.submit(spec("a", maxEpochs=2))
    world.run()
    world.restart(nodes(1, 4.0))
    world.submit(spec("b", maxEpochs=2))
    world.run()
    assert [job.name for job in scripted._planned.cluster.jobs.values()] == ["b"]
    assert scripted._planned.cluster.names == ("node-0",)
    assert scripted._planned.cluster.capacity.shape == (1, 3)
    assert world.job("b").reason is Reason.EPOCH_LIMIT
