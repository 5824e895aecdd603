"""What anyone may rely on in the engine, whatever the policy does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach import plugins
from coach.core.cluster import Allocation
from coach.core.policies.api.policy import Policy
from coach.simulation.faults import Faults
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.engine.record import EngineRecord
from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    Finished,
    Migrate,
    PolicyError,
    Preempt,
    Resize,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
    TimerFired,
    demand,
)
from coach_research.scheduling.node_placement import by_events
from coach_research.workload import Work, by_counts
from tests.research.engine.policies import Anything, AtOnce, Fifo

ONE = np.array([1.0, 1.0, 0.0])


def times(*rows: tuple[float, float], **more: object) -> list[Work]:
    return [Work(arrival, work, ONE, **more) for arrival, work in rows]  # type: ignore[arg-type]


class Script:
    """Does `actions[n]` at second n."""

    wants: frozenset[type] = frozenset()

    def __init__(self, actions: dict[float, list[SchedulingAction]]) -> None:
        self.actions = actions
        self.seen: list[tuple[float, SchedulingEvent]] = []

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        self.seen.append((view.now, event))
        if len(self.seen) == 1:
            for at in self.actions:
                yield ScheduleTimer(at)
        if isinstance(event, TimerFired):
            yield from self.actions[event.at]


def finishes(engine: Engine) -> list[float]:
    return [float(x) for x in engine.run().column("finished")]


def test_jobs_run_one_after_the_other_on_one_core() -> None:
    assert finishes(Engine(Cluster.uniform(1, 1), times((0, 5), (1, 2), (10, 1)), Fifo())) == [5, 7, 11]


@pytest.mark.parametrize("amount", [0.0, -1.0, float("nan"), float("inf")])
def test_an_amount_of_work_that_no_job_has_is_an_error(amount: float) -> None:
    with pytest.raises(ValueError, match=r"job 'b': its work is .*; a job has a finite amount of work above 0"):
        Engine(Cluster.uniform(1, 1), [*times((0, 5)), Work(1, amount, ONE, name="b")], Fifo()).run()


def test_a_speed_that_is_no_number_is_an_error() -> None:
    work = Work(0, 5, ONE, name="a", speed=lambda _: float("nan"))
    with pytest.raises(ValueError, match=r"job 'a': its speed with .* is nan epochs/s"):
        Engine(Cluster.uniform(1, 1), [work], Fifo()).run()


def test_a_shared_node_divides_itself() -> None:
    # Both at half speed from 2 to 8 s: the first has done 2 + 3 of 5.
    work = [Work(0, 5, np.zeros(3)), Work(2, 4, np.zeros(3))]
    assert finishes(Engine(Cluster.uniform(1, 1, contention=0.0), work, AtOnce())) == [8, 9]


def test_contention_costs_more_than_sharing() -> None:
    work = [Work(0, 1, np.zeros(3)), Work(0, 1, np.zeros(3))]
    # Each of two at 1 / (2 (1 + 0.1)).
    assert finishes(Engine(Cluster.uniform(1, 1, contention=0.1), work, AtOnce())) == pytest.approx([2.2, 2.2])


def test_a_preempted_job_holds_its_room_for_its_grace_period_and_keeps_its_work() -> None:
    plan = ((0, 1, 0),)
    policy = Script({0.0: [Start(0, plan)], 3.0: [Preempt(0)], 10.0: [Start(0, plan)]})
    engine = Engine(Cluster.uniform(1, 1), times((0, 5), grace=4.0), policy)
    assert finishes(engine) == [12.0]
    assert [(at, type(event).__name__) for at, event in policy.seen if not isinstance(event, TimerFired)] == [
        (0.0, "Arrived"),
        (7.0, "PreemptionCompleted"),
        (12.0, "Finished"),
    ]
    assert engine.record.column("cpu_seconds").tolist() == [7.0 + 2.0]


def test_a_migration_pauses_and_gives_the_old_node_back_at_once() -> None:
    policy = Script({0.0: [Start(0, ((0, 1, 0),))], 2.0: [Migrate(0, ((1, 1, 0),)), Start(1, ((0, 1, 0),))]})
    work = times((0, 5), (0, 1), migration_seconds=3.0)
    assert finishes(Engine(Cluster.uniform(2, 1), work, policy)) == [2 + 3 + 3, 3]


def test_a_resize_changes_the_speed_after_its_pause() -> None:
    speed = by_counts(lambda w, s: w * s / 2)
    work = [
        Work(
            0.0, 10.0, ONE, ONE, speed=speed, minimum=Allocation(1, 1), maximum=Allocation(2, 2), rescale_seconds=1.0
        )
    ]  # fmt: skip
    policy = Script({0.0: [Start(0, ((0, 1, 1),))], 4.0: [Resize(0, ((0, 1, 1), (1, 1, 1)))]})
    # 2 epochs by 4 s, a pause of 1 s, then 8 epochs at 2 epochs/s.
    assert finishes(Engine(Cluster.uniform(2, 2), work, policy)) == [4 + 1 + 4]


def test_work_ends_at_the_end_of_its_slot() -> None:
    assert finishes(Engine(Cluster.uniform(2, 1), times((0, 5), (1, 20)), Fifo(), slot=20)) == [20, 40]


def test_a_job_that_no_node_can_hold_is_recorded_and_its_policy_never_sees_it() -> None:
    work = [Work(0, 5, 9 * ONE, name="huge"), *times((1, 2), (10, 1))]
    policy = Script({1.0: [Start(1, ((0, 1, 0),))], 10.0: [Start(2, ((0, 1, 0),))]})
    engine = Engine(Cluster.uniform(1, 4), work, policy)
    assert finishes(engine)[1:] == [3, 11]
    assert [event.job for _, event in policy.seen if isinstance(event, Arrived)] == [1, 2]
    assert list(engine.record.never_fits) == [0]
    assert engine.record.column("started")[0] != engine.record.column("started")[0]


def test_a_gang_that_fits_on_no_nodes_together_never_fits() -> None:
    gang = {"minimum": Allocation(3, 1), "maximum": Allocation(3, 1), "server": ONE}
    engine = Engine(Cluster.uniform(2, 2), times((0, 5), **gang), plugins.policy("fifo"))
    engine.run()
    assert engine.record.never_fits == {}
    engine = Engine(Cluster.uniform(1, 3), [*times((0, 5), **gang), *times((1, 2))], plugins.policy("fifo"))
    assert finishes(engine)[1] == 3
    assert engine.record.never_fits == {
        0: "needs 1 server x 1 cpu 1 GiB, 3 workers x 1 cpu 1 GiB, best partial fit 3, and the largest node has 3 cpu "
        "1000000 GiB"
    }


def test_a_closed_loop_goes_on_behind_a_job_that_never_fits() -> None:
    work = [Work(0, 5, 9 * ONE), *times(*[(0.0, 1.0)] * 4)]
    engine = Engine(Cluster.uniform(2, 1), work, Fifo(), closed_load=2.0)
    assert finishes(engine)[1:] == [1, 1, 2, 2]


def test_a_closed_loop_submits_as_jobs_leave() -> None:
    engine = Engine(Cluster.uniform(2, 1), times(*[(0.0, 1.0)] * 6), Fifo(), closed_load=2.0)
    assert finishes(engine) == [1, 1, 2, 2, 3, 3]
    assert engine.record.column("arrived").tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([Start(0, ((0, 2, 0),))], "not within"),
        ([Start(7, ((0, 1, 0),))], "no such job"),
        ([Preempt(0)], "is waiting"),
        ([Start(0, ((0, 1, 0),)), Start(1, ((0, 1, 0),))], "free"),
        ([ScheduleTimer(-1.0)], "already"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_there_was(actions: list[SchedulingAction], words: str) -> None:
    engine = Engine(Cluster.uniform(1, 1), times((0, 5), (0, 5)), Script({1.0: actions}))
    with pytest.raises(PolicyError, match=words):
        engine.run()


def test_at_one_time_ends_come_before_arrivals_and_those_before_ticks() -> None:
    policy = Script({0.0: [Start(0, ((0, 1, 0),))], 5.0: []})
    Engine(Cluster.uniform(1, 1), times((0, 5), (5, 1)), policy).run()
    assert [type(event) for at, event in policy.seen if at == 5.0] == [Finished, Arrived, TimerFired]


class Watch:
    """Holds a policy's every view to the rules: nothing over-committed, every job in exactly one place."""

    def __init__(self, policy: Policy) -> None:
        self.policy = by_events(policy)
        self.wants = self.policy.wants

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        self.check(view)
        for action in self.policy.schedule(event, view):
            yield action
            self.check(view)

    @staticmethod
    def check(view: EngineView) -> None:
        assert (view.free >= -1e-6).all()
        held = np.zeros_like(view.free)
        for job in view.jobs.values():
            for node, need in demand(job, job.plan).items():
                held[node] += need
            assert (job.id in view.waiting) == (job.phase == "waiting")
            assert (job.id in view.running) == (job.phase == "running")
            assert bool(job.plan) == (job.phase != "waiting")
        assert np.allclose(held + view.free, view.capacity)


#: With it a job has epochs, and boundaries between them.
EPOCH_A_SECOND = by_counts(lambda workers, servers: float(workers))
WORKLOADS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.01, 50), st.sampled_from([0.5, 1.0, 2.0])),
    min_size=1,
    max_size=12,
)


def drawn(rows: list[tuple[float, float, float]]) -> list[Work]:
    return [
        Work(
            arrival, work, cpu * ONE, speed=EPOCH_A_SECOND, grace=cpu, migration_seconds=1.0, rescale_seconds=0.5,
            checkpoint=1.0,
        )
        for arrival, work, cpu in sorted(rows)
    ]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(WORKLOADS, st.integers(0, 2**32), st.booleans(), st.booleans())
def test_nothing_is_over_committed_and_no_job_is_lost_under_any_policy(
    rows: list[tuple[float, float, float]], seed: int, shared: bool, faulty: bool
) -> None:
    faults = Faults(seed, node_lost=60.0, node_back=5.0, function_lost=40.0) if faulty else None
    cluster = Cluster.uniform(3, 2, 4, contention=0.1 if shared else None)
    engine = Engine(cluster, drawn(rows), Watch(Anything(seed)), faults=faults)
    record = engine.run(until=3e3)
    assert len(record.column("job")) == len(rows)
    finished, executed = record.column("finished"), record.column("executed")
    assert not np.isnan(finished).any() or faulty
    done = ~np.isnan(finished)
    waited = finished - record.column("arrived") - executed
    assert (waited[done] >= -1e-6).all()
    if not faulty:
        assert executed == pytest.approx(record.column("work"), rel=1e-6, abs=1e-6)
    assert np.allclose(engine.free[engine.capacity.any(axis=1)], 2 * np.array([1, 2, 0])) or len(engine.jobs)


def log_hash(seed: int) -> str:
    rng = np.random.default_rng(seed)
    rows = [(float(a), float(w), 1.0) for a, w in zip(rng.uniform(0, 100, 30), rng.exponential(10, 30), strict=True)]
    digest = hashlib.sha256()
    faults = Faults(seed, node_lost=100.0, node_back=20.0, function_lost=50.0)
    engine = Engine(
        Cluster.uniform(4, 2, 4),
        drawn(rows),
        Anything(seed),
        faults=faults,
        log=lambda x: digest.update(x.encode()),
    )
    engine.run()
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_event_log_to_the_byte() -> None:
    assert log_hash(5) == log_hash(5) != log_hash(6)
    assert log_hash(5) == "1e06cc27d5dbf31849634308419e3e6953c0a6f4d6d346112b914fc93ea86b66"


def test_what_policies_do_changes_nothing_of_the_workload_and_its_noise() -> None:
    curve = {"loss": lambda x: 1 / (x + 1), "loss_noise": 0.1}

    class Look(Fifo):
        seen: list[float]

        def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
            if isinstance(event, TimerFired):
                self.seen = [job.loss() for job in view.running.values()]
            yield from super().schedule(event, view)
            if isinstance(event, Arrived) and event.job == 0:
                for at in self.looks:
                    yield ScheduleTimer(at)

        def __init__(self, *looks: float) -> None:
            self.looks = looks

    once, often = Look(4.0), Look(1.0, 2.0, 2.0, 3.0, 4.0)
    for policy in (once, often):
        Engine(Cluster.uniform(1, 1), times((0, 5), **curve), policy).run()
    assert once.seen == often.seen


def test_utilisation_is_the_mean_of_what_was_held_in_each_bucket() -> None:
    cluster = Cluster.uniform(2, 1)
    record = Engine(cluster, times((0, 90), (30, 30)), Fifo(), record=EngineRecord(cluster, bucket=60)).run()
    starts, share = record.utilisation()
    assert starts.tolist() == [0, 60]
    # 60 s of one and 30 s of the other core in the first minute; one core for 30 s of the last half minute.
    assert share[:, 0].tolist() == pytest.approx([0.75, 0.5])


def test_utilisation_keeps_its_integral_when_the_run_is_long() -> None:
    engine = Engine(Cluster.uniform(2, 1), times(*[(7000.0 * i, 5000.0) for i in range(100)]), Fifo())
    record = engine.run()
    starts, share = record.utilisation()
    widths = np.diff([*starts, record.ended])
    assert record.bucket > 1
    assert (share[:, 0] * widths).sum() * 2 == pytest.approx(100 * 5000.0)


def test_utilisation_of_a_run_in_which_nothing_happens_for_a_month_is_known_to_its_end() -> None:
    month = 30 * 86400.0
    record = Engine(Cluster.uniform(1, 4), [*times((0, 4096)), Work(month, 5, 9 * ONE)], Fifo()).run()
    starts, share = record.utilisation()
    assert starts[-1] <= month == record.ended
    widths = np.diff([*starts, record.ended])
    assert (share[:, 0] * widths).sum() * 4 == pytest.approx(4096)
