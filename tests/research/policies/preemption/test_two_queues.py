"""FitGpp, LRTP and RAND in the engine: which jobs start, are preempted and wait."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from coach import plugins
from coach.core.cluster import Allocation
from coach.simulation.faults import Faults
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.preemption.two_queues import TRIAL, TrialFirst
from coach_research.scheduling.api import Finished, JobState, Kill, Phase
from coach_research.workload import Work


def be(at: float, work: float, cpu: float, **more: Any) -> Work:
    """A best-effort task."""
    return Work(at, work, np.array([cpu, 0.0, 0.0]), kind="best-effort", grace=more.pop("grace", 2.0), **more)


def te(at: float, work: float, cpu: float, **more: Any) -> Work:
    """A trial-and-error task."""
    return Work(at, work, np.array([cpu, 0.0, 0.0]), kind=TRIAL, **more)


def log_of(works: Sequence[Work], nodes: Sequence[float], spec: str = "fitgpp") -> list[str]:
    """The actions, as `time job word`: `2 j1 start 0` is on node 0."""
    lines: list[str] = []
    cluster = Cluster(np.array([[cpu, 0.0, 0.0] for cpu in nodes]))
    Engine(cluster, works, plugins.policy(spec), log=lines.append).run()
    found = []
    for line in lines:
        if match := re.match(r"([\d.]+) > (\w+)\(job=(\d+)(?:, plan=\(\((\d+))?", line):
            at, word, job, node = match.groups()
            found.append(f"{float(at):g} j{job} {word.lower()}{'' if node is None else ' ' + node}")
    return found


STORIES: list[tuple[str, list[Work], list[float], list[str]]] = [
    (
        "where all jobs fit none is preempted",
        [be(0, 9, 4), te(1, 3, 4)],
        [8],
        ["0 j0 start 0", "1 j1 start 0"],
    ),
    (
        "the victim's room is there after its grace period, and it goes on as soon as there is room again",
        [be(0, 9, 4), te(1, 3, 4)],
        [4],
        ["0 j0 start 0", "1 j0 preempt", "3 j1 start 0", "6 j0 start 0"],
    ),
    (
        "a preempted job is on the top of the queue",
        [be(0, 9, 4), be(0.5, 9, 4), te(1, 3, 4)],
        [4],
        ["0 j0 start 0", "1 j0 preempt", "3 j2 start 0", "6 j0 start 0", "14 j1 start 0"],
    ),
    (
        "what is promised is kept from others during the grace period",
        [be(0, 9, 3), te(1, 3, 4), be(1.5, 9, 1)],
        [4],
        # Not at 1.5: node 0 has a free core, but the trial needs it.
        ["0 j0 start 0", "1 j0 preempt", "3 j1 start 0", "6 j0 start 0", "6 j2 start 0"],
    ),
    (
        "what is free in addition to a promise is not kept",
        [be(0, 9, 3), te(1, 3, 4), be(1.5, 9, 1)],
        [5],
        ["0 j0 start 0", "1 j0 preempt", "1.5 j2 start 0", "3 j1 start 0", "6 j0 start 0"],
    ),
    (
        "a trial starts early when its room comes free otherwise",
        [be(0, 9, 2, grace=5), be(0, 2, 2, grace=9), te(1, 3, 2)],
        [4],
        ["0 j0 start 0", "0 j1 start 0", "1 j0 preempt", "2 j2 start 0", "6 j0 start 0"],
    ),
    (
        "no job is preempted more than P times: the trial waits, and no job starts before it",
        [be(0, 9, 4), te(1, 1, 4), te(5, 1, 4), be(6, 1, 1)],
        [4, 0.5],
        ["0 j0 start 0", "1 j0 preempt", "3 j1 start 0", "4 j0 start 0", "12 j2 start 0", "13 j3 start 0"],
    ),
    (
        "trials are served in their order: a small one does not pass",
        [be(0, 9, 4), te(1, 1, 4), te(5, 1, 4), te(6, 1, 1)],
        [4, 1],
        ["0 j0 start 0", "1 j0 preempt", "3 j1 start 0", "4 j0 start 0", "12 j2 start 0", "12 j3 start 1"],
    ),
    (
        "each trial has a victim of its own",
        [be(0, 9, 4), be(0, 9, 4), te(1, 3, 4), te(1, 3, 4)],
        [4, 4],
        [
            "0 j0 start 0",
            "0 j1 start 1",
            "1 j0 preempt",
            "1 j1 preempt",
            "3 j2 start 0",
            "3 j3 start 1",
            "6 j0 start 0",
            "6 j1 start 1",
        ],
    ),
    (
        "where no job makes room by itself, several go together",
        [be(0, 9, 2, grace=1), be(0, 9, 2), te(1, 3, 4)],
        [4],
        [
            "0 j0 start 0",
            "0 j1 start 0",
            "1 j0 preempt",
            "1 j1 preempt",
            "3 j2 start 0",
            "6 j0 start 0",
            "6 j1 start 0",
        ],
    ),
    (
        "best-effort jobs wait in line: none passes",
        [be(0, 9, 3), be(1, 5, 4), be(2, 5, 1)],
        [4],
        ["0 j0 start 0", "9 j1 start 0", "14 j2 start 0"],
    ),
    ("the tightest node first", [be(0, 9, 2), be(1, 9, 2)], [8, 4, 2], ["0 j0 start 2", "1 j1 start 1"]),
    (
        "no grace, no wait",
        [be(0, 9, 4, grace=0), te(1, 3, 4)],
        [4],
        ["0 j0 start 0", "1 j0 preempt", "1 j1 start 0", "4 j0 start 0"],
    ),
    (
        "a higher priority is spared",
        [be(0, 9, 4, priority=1), te(1, 3, 4)],
        [4],
        ["0 j0 start 0", "9 j1 start 0"],
    ),
]


@pytest.mark.parametrize(("works", "nodes", "expected"), [pytest.param(*row[1:], id=row[0]) for row in STORIES])
def test_fitgpp(works: list[Work], nodes: list[float], expected: list[str]) -> None:
    assert log_of(works, nodes) == expected


def test_lrtp_takes_the_longest() -> None:
    works = [be(0, 9, 4), be(0, 20, 4), te(1, 3, 4)]
    assert log_of(works, [4, 4], "lrtp")[2:] == ["1 j1 preempt", "3 j2 start 1", "6 j1 start 1"]
    assert log_of(works, [4, 4], "fitgpp")[2:4] == ["1 j0 preempt", "3 j2 start 0"]


def test_lrtp_preempts_cluster_wide_until_a_node_has_room() -> None:
    works = [be(0, 30, 3), be(0, 20, 2), be(0, 10, 2), te(1, 3, 4)]
    nodes = [3, 4]
    without, trimmed = (
        [line for line in log_of(works, nodes, f"lrtp:trim={word}") if "preempt" in line] for word in ("no", "yes")
    )
    assert without == ["1 j0 preempt", "1 j1 preempt", "1 j2 preempt"]
    assert trimmed == ["1 j1 preempt", "1 j2 preempt"]


def test_without_free_room_the_victims_alone_make_the_room() -> None:
    works = [be(0, 30, 2), be(0, 20, 2), te(1, 3, 3)]  # one of five cores stays free
    for word, victims in (("yes", ["1 j0 preempt"]), ("no", ["1 j0 preempt", "1 j1 preempt"])):
        log = log_of(works, [5], f"lrtp:trim=no,free_room={word}")
        assert [line for line in log if "preempt" in line] == victims


def test_rand_draws_from_its_own_numbers() -> None:
    works = [be(0, 50, 4) for _ in range(8)] + [te(1, 3, 4)]

    def victim(seed: int) -> str:
        lines: list[str] = []
        policy = plugins.policy("rand", np.random.default_rng(seed))
        Engine(Cluster.uniform(8, 4, 0), works, policy, log=lines.append).run()
        return next(line for line in lines if "Preempt" in line)

    assert victim(1) == victim(1)
    assert len({victim(seed) for seed in range(20)}) > 3


def gang(at: float, kind: str, workers: int, servers: int, work: float = 9.0) -> Work:
    """A job of so many pods of one core, which trains an epoch a second."""
    counts, core = Allocation(workers, servers), np.array([1.0, 0.0, 0.0])
    return Work(at, work, core, core, kind=kind, minimum=counts, maximum=counts, speed=lambda plan: 1.0, grace=2.0)


@pytest.mark.parametrize("spec", ["fitgpp", "lrtp", "rand"])
def test_gangs_are_preempted_by_gangs(spec: str) -> None:
    works = [gang(0, "best-effort", 3, 1), gang(1, TRIAL, 2, 1, 3.0), be(1.5, 2, 2)]
    assert log_of(works, [2, 2], spec) == [
        "0 j0 start 0",
        "1 j0 preempt",
        "3 j1 start 0",
        "6 j0 start 0",
        "14 j2 start 0",
    ]


def test_fitgpp_prefers_the_gang_that_makes_room_by_itself() -> None:
    works = [gang(0, "best-effort", 1, 1), gang(0, "best-effort", 3, 1), gang(1, TRIAL, 3, 1, 3.0)]
    assert log_of(works, [2, 4])[2:] == ["1 j1 preempt", "3 j2 start 1", "6 j1 start 1"]


class Killing:
    """A policy that also kills a job at a certain event."""

    def __init__(self, policy: TrialFirst, at: str, job: int) -> None:
        self.policy, self.at, self.job, self.wants = policy, at, job, policy.wants

    def schedule(self, event: Any, view: Any) -> Any:
        yield from self.policy.schedule(event, view)
        if f"{type(event).__name__} {event.job}" == self.at:
            yield Kill(self.job)


@pytest.mark.parametrize(
    ("at", "job"), [("Arrived 1", 1), ("Arrived 1", 0), ("Arrived 2", 2), ("Arrived 2", 0), ("Finished 1", 2)]
)
def test_a_killed_job_leaves_no_trace(at: str, job: int) -> None:
    works = [be(0, 9, 4), te(1, 3, 4), be(1.5, 9, 1), te(1.7, 5, 4)]
    inner = plugins.policy("fitgpp")
    assert isinstance(inner, TrialFirst)
    engine = Engine(Cluster.uniform(1, 4, 0), works, Killing(inner, at, job))
    record = engine.run()
    finished = record.column("finished")
    assert np.isnan(finished).tolist() == [n == job for n in range(4)]
    assert not (inner._trials or inner._others or inner._promises or inner._promised or inner._of_victim)
    assert not inner._kept.any()


@pytest.mark.parametrize(
    "spec",
    ["fitgpp", "fitgpp:P=3,s=0", "lrtp", "lrtp:trim=no", "rand", "rand:trim=no", "lrtp:free_room=no", "fifo"],
)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_all_jobs_end_and_nothing_is_kept(spec: str, seed: int) -> None:
    """Tasks and gangs, lost nodes; the engine refuses every action that is not right."""
    rng = np.random.default_rng(seed)
    works = []
    for n in range(150):
        kind = TRIAL if rng.random() < 0.3 else "best-effort"
        work, cpu = float(rng.integers(1, 40)), float(rng.integers(1, 9))
        if rng.random() < 0.1:
            works.append(gang(n * 2.0, kind, int(rng.integers(1, 5)), int(rng.integers(1, 3)), work))
        else:
            task = te if kind == TRIAL else be
            works.append(task(n * 2.0, work, cpu, grace=float(rng.integers(0, 4))))
    faults = Faults(seed, node_lost=200.0, node_back=20.0) if seed % 2 else None
    policy = plugins.policy(spec)
    engine = Engine(Cluster.uniform(4, 8, 0), works, policy, faults=faults)
    record = engine.run()
    assert not np.isnan(record.column("finished")).any()
    assert (record.column("finished") - record.column("arrived") >= record.column("work") - 1e-6).all()
    assert np.allclose(engine.free, engine.capacity)
    if isinstance(policy, TrialFirst):
        assert not (policy._trials or policy._others or policy._promises or policy._promised or policy._of_victim)
        assert np.allclose(policy._kept, 0.0)
        most = 3 if "P=3" in spec else 1
        assert record.column("preemptions").max() <= most


def test_fifo_event_by_event() -> None:
    works = [be(0, 9, 3), be(1, 5, 4), be(2, 5, 1)]
    assert log_of(works, [4], "fifo") == ["0 j0 start 0", "9 j1 start 0", "14 j2 start 0"]


def test_fifo_gives_the_last_one_served_what_is_left_and_the_rest_later() -> None:
    def elastic(at: float, work: float) -> Work:
        core = np.array([1.0, 0.0, 0.0])
        return Work(at, work, core, core, minimum=Allocation(1, 1), maximum=Allocation(2, 2), speed=lambda plan: 1.0)

    assert log_of([elastic(0, 5), elastic(1, 9), elastic(2, 9)], [6], "fifo") == [
        "0 j0 start 0",
        "1 j1 start 0",
        "5 j1 resize 0",
        "5 j2 start 0",
        "10 j2 resize 0",
    ]


def test_phases_are_those_of_the_driver() -> None:
    """A victim that drains is no candidate again, and is not in the queue before it is drained."""
    seen: list[JobState] = []

    class Spy(Killing):
        def schedule(self, event: Any, view: Any) -> Any:
            yield from self.policy.schedule(event, view)
            seen.extend(job for job in view.jobs.values() if job.phase is Phase.DRAINING)
            if isinstance(event, Finished):
                assert not any(
                    job.id in self.policy._others for job in view.jobs.values() if job.phase is Phase.DRAINING
                )

    inner = plugins.policy("fitgpp")
    assert isinstance(inner, TrialFirst)
    Engine(Cluster.uniform(1, 4, 0), [be(0, 9, 4), te(1, 3, 4)], Spy(inner, "", 0)).run()
    assert seen
