"""FIFO, SRTF, DRF, Tetris and Optimus: who is served, in which order, with how much."""

from __future__ import annotations

import pytest

from coach.core.cluster import Allocation, Resources, Role
from coach.core.policies import ClusterView, Reason
from coach.plugins import policy
from tests.core.policies.policy_examples import Epochs, Job, cluster, decided, server_speed

LINEAR = server_speed(100.0)
ONE = Allocation(1, 1)


def roles(worker: Resources, server: Resources) -> dict[Role, Resources]:
    return {Role.WORKER: worker, Role.SERVER: server, Role.SCHEDULER: Resources(0.0, 0.0)}


def lasting(epochs: float) -> Epochs:
    return Epochs(epochs, epochs, epochs)


NARROW = roles(Resources(1, 1), Resources(1, 1))

TABLE: dict[str, list[tuple[str, list[Job], ClusterView, dict[str, str]]]] = {
    "fifo": [
        (
            "every job in turn gets its maximum",
            [Job("a", created=1.0), Job("b")],
            cluster(16),
            {"a": "4x4", "b": "4x4"},
        ),
        (
            "the last one served takes what is left",
            [Job("a"), Job("b", created=1.0)],
            cluster(12),
            {"a": "4x4", "b": "2x2"},
        ),
        (
            "an odd core is a worker's",
            [Job("a"), Job("b", created=1.0)],
            cluster(13),
            {"a": "4x4", "b": "2x2"},
        ),
        (
            "no job passes one that got less",
            [Job("a"), Job("b", created=1.0), Job("c", created=2.0)],
            cluster(15),
            {"a": "4x4", "b": "3x3", "c": "-"},
        ),
        (
            "no job passes one that got nothing",
            [Job("a"), Job("b", minimum=Allocation(2, 2), created=1.0), Job("c", created=2.0)],
            cluster(10),
            {"a": "4x4", "b": "-", "c": "-"},
        ),
        (
            "who runs keeps its turn",
            [Job("a"), Job("b", created=1.0, current=ONE)],
            cluster(8),
            {"a": "-", "b": "4x4"},
        ),
        (
            "a higher priority has its turn before",
            [Job("a"), Job("b", created=1.0, priority=1)],
            cluster(8),
            {"a": "-", "b": "4x4"},
        ),
        (
            "a job that can never run blocks no other",
            [Job("a", minimum=Allocation(4, 4)), Job("b", created=1.0, maximum=ONE)],
            cluster(6),
            {"a": "-", "b": "1x1"},
        ),
        (
            "a job that cannot pay blocks no other",
            [Job("a", money=1.0), Job("b", created=1.0)],
            cluster(8),
            {"a": "-", "b": "4x4"},
        ),
        (
            "where pods do not fit on the nodes no job passes either",
            [
                Job("a", maximum=ONE, requests=roles(Resources(3, 1), Resources(1, 1))),
                Job("b", created=1.0, maximum=ONE, requests=roles(Resources(3, 1), Resources(3, 1))),
                Job("c", created=2.0, maximum=ONE),
            ],
            cluster(4, 4, 2),
            {"a": "1x1", "b": "-", "c": "-"},
        ),
    ],
    "srtf": [
        (
            "the shorter one first, all it asks for",
            [Job("a", remaining_epochs=lasting(20)), Job("b", created=1.0, remaining_epochs=lasting(5))],
            cluster(8),
            {"a": "-", "b": "4x4"},
        ),
        (
            "time counts, not epochs",
            [
                Job("a", server_speed(10.0), remaining_epochs=lasting(20)),
                Job("b", remaining_epochs=lasting(5)),
            ],
            cluster(8),
            {"a": "4x4", "b": "-"},
        ),
        (
            "a longer one that runs is preempted",
            [
                Job("a", current=ONE, remaining_epochs=lasting(20)),
                Job("b", created=1.0, remaining_epochs=lasting(5)),
            ],
            cluster(8),
            {"a": "-", "b": "4x4"},
        ),
        (
            "a longer one that finds room passes",
            [
                Job("a", minimum=Allocation(3, 3), remaining_epochs=lasting(5)),
                Job("b", remaining_epochs=lasting(1)),
                Job("c", maximum=ONE, remaining_epochs=lasting(40)),
            ],
            cluster(10),
            {"a": "-", "b": "4x4", "c": "1x1"},
        ),
        (
            "who is of unknown length counts as the median",
            [
                Job("a", remaining_epochs=None, created=3.0),
                Job("b", remaining_epochs=lasting(9)),
                Job("c", remaining_epochs=lasting(5)),
                Job("d", remaining_epochs=lasting(1)),
            ],
            cluster(20),
            {"a": "2x2", "b": "-", "c": "4x4", "d": "4x4"},
        ),
        ("equal ones in queue order", [Job("b"), Job("a", created=1.0)], cluster(8), {"b": "4x4", "a": "-"}),
    ],
    "drf": [
        (
            "equal jobs get equal parts",
            [Job("a"), Job("b", created=1.0)],
            cluster(8),
            {"a": "2x2", "b": "2x2"},
        ),
        # The example of the DRF paper (section 4.1): 1 core and 4 GiB against 3 cores and 1 GiB.
        (
            "dominant shares are equal",
            [
                Job("a", requests=roles(Resources(1, 4), Resources(0, 0))),
                Job("b", created=1.0, requests=roles(Resources(3, 1), Resources(0, 0))),
            ],
            cluster(9, memory=18),
            {"a": "3x3", "b": "2x2"},
        ),
        (
            "what one cannot use the others get",
            [Job("a", maximum=ONE), Job("b", created=1.0)],
            cluster(8),
            {"a": "1x1", "b": "3x3"},
        ),
        (
            "at its most servers, workers alone",
            [Job("a", maximum=Allocation(4, 1))],
            cluster(8),
            {"a": "4x1"},
        ),
        (
            "every job's minimum first",
            [Job("a"), Job("b", created=1.0), Job("c", created=2.0)],
            cluster(6),
            {"a": "1x1", "b": "1x1", "c": "1x1"},
        ),
        (
            "equal shares go in queue order",
            [Job("a", created=1.0), Job("b")],
            cluster(6),
            {"a": "1x1", "b": "2x2"},
        ),
        (
            "who finds no room is passed",
            [Job("a", minimum=Allocation(3, 3)), Job("b", created=1.0, maximum=Allocation(2, 2))],
            cluster(6),
            {"a": "3x3", "b": "-"},
        ),
        (
            "what a scheduler takes counts",
            [Job("a", requests={**NARROW, Role.SCHEDULER: Resources(2, 0)}), Job("b", created=1.0)],
            cluster(8),
            {"a": "1x1", "b": "2x2"},
        ),
    ],
    "tetris": [
        (
            "with equal demands the shorter one, all it asks for",
            [Job("a", remaining_epochs=lasting(20)), Job("b", created=1.0, remaining_epochs=lasting(5))],
            cluster(8),
            {"a": "-", "b": "4x4"},
        ),
        (
            "with equal work the larger demand",
            [
                Job("a", maximum=ONE),
                Job(
                    "b",
                    created=1.0,
                    maximum=ONE,
                    requests=roles(Resources(2, 2), Resources(2, 2)),
                    remaining_epochs=lasting(5),
                ),
            ],
            cluster(4),
            {"a": "-", "b": "1x1"},
        ),
        (
            "what fits into what is left: much memory",
            [
                Job(
                    "c",
                    maximum=ONE,
                    requests=roles(Resources(4, 1), Resources(0, 0)),
                    remaining_epochs=lasting(1),
                    priority=1,
                ),
                Job(
                    "a",
                    maximum=ONE,
                    requests=roles(Resources(4, 1), Resources(0, 0)),
                    remaining_epochs=lasting(10),
                ),
                Job(
                    "b",
                    created=1.0,
                    maximum=ONE,
                    requests=roles(Resources(1, 4), Resources(0, 0)),
                    remaining_epochs=lasting(10),
                ),
            ],
            cluster(8, memory=8),
            {"c": "1x1", "a": "-", "b": "1x1"},
        ),
    ],
    "optimus": [
        (
            "no more than helps",
            [Job("a", server_speed(100.0, worker=20.0, server=10.0))],
            cluster(8),
            {"a": "2x1"},
        ),
        (
            "the larger gain first",
            [
                Job("a", server_speed(100.0, traffic=10.0), remaining_epochs=lasting(100)),
                Job("b", created=1.0, remaining_epochs=lasting(1)),
            ],
            cluster(7),
            {"a": "3x2", "b": "1x1"},
        ),
        (
            "gain for what it takes",
            [Job("a", requests=roles(Resources(3, 1), Resources(1, 1))), Job("b", created=1.0)],
            cluster(9),
            {"a": "1x1", "b": "4x1"},
        ),
        (
            "every job's minimum first",
            [Job("a", remaining_epochs=lasting(1000)), Job("b", created=1.0)],
            cluster(4),
            {"a": "1x1", "b": "1x1"},
        ),
        (
            "who finds no room is passed",
            [Job("a"), Job("b", minimum=Allocation(3, 3), created=1.0), Job("c", created=2.0)],
            cluster(6),
            {"a": "2x1", "b": "-", "c": "2x1"},
        ),
    ],
}
ROWS = [pytest.param(name, *row[1:], id=f"{name}: {row[0]}") for name, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(("name", "jobs", "nodes", "expected"), ROWS)
def test_who_gets_what(name: str, jobs: list[Job], nodes: ClusterView, expected: dict[str, str]) -> None:
    assert decided(policy(name), jobs, nodes) == expected


@pytest.mark.parametrize("name", TABLE)
def test_every_job_has_a_reason(name: str) -> None:
    running = Job("a", created=1.0, remaining_epochs=lasting(1))
    waiting = Job("b", created=2.0, minimum=Allocation(3, 3))
    poor, huge = Job("c", money=1.0), Job("d", minimum=Allocation(9, 9), maximum=Allocation(9, 9))
    jobs = [running, waiting, poor, huge, Job("e", fixed=ONE, current=ONE)]
    decision = policy(name).allocate(jobs, cluster(7))
    reasons = {step.job: step.reason for step in decision.steps}
    kinds = {"fifo": Reason.QUEUE, "srtf": Reason.SHORTEST, "drf": Reason.FAIR, "tetris": Reason.PACKING}
    assert reasons == {
        "a": kinds.get(name, Reason.UTILITY),
        "b": Reason.QUEUE if name == "fifo" else Reason.CPU,
        "c": Reason.UNAFFORDABLE,
        "d": Reason.NEVER_FITS,
        "e": Reason.FIXED,
    }
    assert str(decision.why("a")[0]).startswith("job a nothing -> ")


def test_the_others_get_what_does_not_fit_one_job_on_the_nodes() -> None:
    """The sum has room for a's second worker, no node has; b's third then fits."""
    wide = Job("a", maximum=Allocation(2, 1), requests=roles(Resources(4, 1), Resources(0, 0)))
    small = Job("b", created=1.0, maximum=Allocation(4, 1), requests=roles(Resources(2, 1), Resources(0, 0)))
    assert decided(policy("drf"), [wide, small], cluster(6, 3, 3)) == {"a": "1x1", "b": "3x1"}


def test_a_busy_job_keeps_its_room_until_its_boundary() -> None:
    jobs = [Job("a", current=Allocation(4, 4), busy=True), Job("b", created=1.0)]
    assert decided(policy("drf"), jobs, cluster(10)) == {"a": "4x4", "b": "1x1"}


def test_a_thousand_jobs_on_a_hundred_nodes_all_get_their_share() -> None:
    jobs = [Job(f"j{n:04d}", created=float(n), maximum=Allocation(8, 8)) for n in range(1000)]
    given = policy("drf").allocate(jobs, cluster(*[32.0] * 100)).allocations
    assert sum(sum(a) for a in given.values() if a) == 3200
    assert {str(a) for a in given.values()} == {"1x1", "2x2"}
