"""FitGpp, LRTP and RAND for live jobs: which are preempted at the end of an epoch, which wait, which grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from coach.core.cluster import Allocation
from coach.core.policies import ClusterView, Reason
from coach.plugins import policy
from tests.core.policies.policy_examples import Epochs, Job, cluster, decided

ONE, TWO = Allocation(1, 1), Allocation(2, 2)


def be(name: str, current: Allocation | None = None, **more: object) -> Job:
    return replace(Job(name, maximum=TWO, current=current, grace=10.0), **more)  # type: ignore[arg-type]


def te(name: str, current: Allocation | None = None, **more: object) -> Job:
    return be(name, current, trial=True, **more)


TABLE: list[tuple[str, list[Job], ClusterView, dict[str, str]]] = [
    (
        "where all jobs fit none is preempted",
        [be("a", TWO), te("t", created=1.0)],
        cluster(8),
        {"a": "2x2", "t": "2x2"},
    ),
    (
        "a trial takes what is left",
        [be("a", TWO), te("t", created=1.0)],
        cluster(6),
        {"a": "2x2", "t": "1x1"},
    ),
    (
        "a job between epochs is preempted at once",
        [be("a", TWO), te("t", created=1.0)],
        cluster(4),
        {"a": "-", "t": "2x2"},
    ),
    (
        "a busy one keeps its room until then, and the trial waits",
        [be("a", TWO, busy=True), te("t", created=1.0)],
        cluster(4),
        {"a": "-", "t": "-"},
    ),
    (
        "one between epochs before one in the middle of it",
        [be("a", ONE, busy=True), be("b", TWO), te("t", created=1.0)],
        cluster(6),
        {"a": "1x1", "b": "-", "t": "2x2"},
    ),
    (
        "the small one that makes room by itself",
        [be("a", TWO), be("b", ONE), te("t", created=1.0)],
        cluster(6),
        {"a": "2x2", "b": "-", "t": "1x1"},
    ),
    (
        "while a trial waits no best-effort job starts",
        [be("a", TWO, busy=True), te("t", created=1.0, minimum=TWO), be("b", created=2.0, maximum=ONE)],
        cluster(6),
        {"a": "-", "t": "-", "b": "-"},
    ),
    (
        "one whose pods are being released makes no room, and has no speed",
        [be("a", Allocation(0, 0)), be("b", TWO), te("t", created=1.0)],
        cluster(4),
        {"a": "1x1", "b": "-", "t": "1x1"},
    ),
    ("a trial is not preempted", [te("a", TWO), te("t", created=1.0)], cluster(4), {"a": "2x2", "t": "-"}),
    ("nor does a higher priority", [be("a", TWO, priority=1), te("t")], cluster(4), {"a": "2x2", "t": "-"}),
    ("trials come first", [be("a"), te("t", created=1.0)], cluster(3), {"a": "-", "t": "1x1"}),
    ("trials grow first", [be("a", ONE), te("t", created=1.0)], cluster(6), {"a": "1x1", "t": "2x2"}),
    (
        "each trial has its room",
        [be("a", TWO), be("b", TWO), te("t", created=1.0), te("u", created=2.0)],
        cluster(4, 4),
        {"a": "-", "b": "2x2", "t": "1x1", "u": "1x1"},
    ),
    (
        "who runs grows into what is left",
        [be("a", ONE), be("b", created=1.0)],
        cluster(6),
        {"a": "2x2", "b": "1x1"},
    ),
]


@pytest.mark.parametrize(("jobs", "nodes", "expected"), [pytest.param(*row[1:], id=row[0]) for row in TABLE])
def test_fitgpp(jobs: list[Job], nodes: ClusterView, expected: dict[str, str]) -> None:
    assert decided(policy("fitgpp"), jobs, nodes) == expected


def test_lrtp_takes_the_longest() -> None:
    jobs = [
        be("a", ONE),
        be("b", ONE, remaining_epochs=Epochs(20, 20, 20)),
        te("t", created=1.0, maximum=ONE),
    ]
    assert decided(policy("lrtp"), jobs, cluster(4)) == {"a": "1x1", "b": "-", "t": "1x1"}
    assert decided(policy("fitgpp"), jobs, cluster(4)) == {"a": "-", "b": "1x1", "t": "1x1"}


def test_rand_keeps_to_the_lots_it_drew() -> None:
    jobs = [be(name, ONE) for name in "abcdef"] + [te("t", created=1.0, maximum=ONE)]
    chosen = policy("rand")
    first = decided(chosen, jobs, cluster(12))
    assert sorted(first.values()) == ["-", *["1x1"] * 6]
    assert decided(chosen, list(reversed(jobs)), cluster(12)) == first


def test_no_job_is_preempted_more_than_p_times() -> None:
    chosen = policy("fitgpp:P=1")
    trial = te("t", created=1.0, maximum=ONE)
    decision = chosen.allocate([be("a", ONE, busy=True), trial], cluster(2))
    assert decision.why("a")[-1].reason is Reason.PREEMPTED
    assert decided(chosen, [be("a", ONE), trial], cluster(2)) == {"a": "-", "t": "1x1"}
    # It left, the trial ends, it runs again; the next trial has to wait for it.
    assert decided(chosen, [be("a"), replace(trial, current=ONE)], cluster(2)) == {"a": "-", "t": "1x1"}
    assert decided(chosen, [be("a", maximum=ONE)], cluster(2)) == {"a": "1x1"}
    again = [be("a", ONE), te("u", created=9.0, maximum=ONE)]
    assert decided(chosen, again, cluster(2)) == {"a": "1x1", "u": "-"}
    assert decided(policy("fitgpp:P=2"), again, cluster(2)) == {"a": "-", "u": "1x1"}


@dataclass(frozen=True)
class Restored(Job):
    """A job with what the policy saved of it before the handler's restart."""

    policy_state: Mapping[str, Any] = field(default_factory=dict)


def test_the_journal_says_how_often_a_job_was_preempted() -> None:
    chosen = policy("fitgpp:P=1")
    before = Restored("a", maximum=TWO, current=ONE, grace=10.0, policy_state={"preempted": 1})
    jobs = [before, te("u", created=9.0, maximum=ONE)]
    assert decided(chosen, jobs, cluster(2)) == {"a": "1x1", "u": "-"}
    assert chosen.memory("a") == {"preempted": 1}


def test_a_preempted_job_may_stay_when_the_trial_is_gone() -> None:
    chosen = policy("fitgpp")
    decided(chosen, [be("a", ONE, busy=True), te("t", created=1.0, maximum=ONE)], cluster(2))
    assert decided(chosen, [be("a", ONE)], cluster(2)) == {"a": "1x1"}
    again = [be("a", ONE), te("u", created=9.0, maximum=ONE)]
    assert decided(chosen, again, cluster(2)) == {"a": "-", "u": "1x1"}, "it never left, so it was not preempted"
