"""Whether all jobs fit is known job by job: as if it were asked anew each time; and policies may rely on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach.core.cluster import Allocation, Node, Resources
from coach.core.policies.sharing.capacity import Ground, Vector
from coach.plugins import policy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.scheduling.ample import Ample
from coach_research.scheduling.node_placement import NodePlacement
from coach_research.workload import Work, by_counts

#: Every policy that says it decides on each job alone where all fit.
SEPARABLE = ("coach", "coach:mean-completion", "drf", "elasticflow", "optimus", "srtf", "static:1", "tetris", "thesis")

#: Requests that divide each other and the node: then first fit finds a placement wherever there is one.
DIVIDING = st.sampled_from([(1.0, 1.0, 0.0), (2.0, 2.0, 1.0), (4.0, 4.0, 2.0), (8.0, 8.0, 4.0), (16.0, 16.0, 8.0)])

pods = st.tuples(
    st.sampled_from([0.5, 1.0, 3.0, 7.3]), st.sampled_from([0.0, 2.0, 5.1]), st.sampled_from([0.0, 1.0, 4.0])
)
steps = st.lists(st.tuples(st.booleans(), pods, st.integers(1, 6)), max_size=40)


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(f"n{at}", Resources(16.0, 32.0, 8.0)) for at in range(count))


@given(st.integers(1, 4), steps)
def test_pods_that_are_said_to_fit_do_fit_and_those_that_a_new_look_places_are_said_to_fit(
    count: int, changes: list[tuple[bool, Vector, int]]
) -> None:
    ample, there = Ample(nodes(count), Counter()), Counter[Vector]()
    for comes, pod, number in changes:
        if comes:
            ample.come(Counter({pod: number}))
            there[pod] += number
        elif there[pod]:
            gone = min(number, there[pod])
            ample.go(Counter({pod: gone}))
            there[pod] -= gone
        fits = ample.fits()
        total = [sum(pod[i] * many for pod, many in there.items()) for i in range(3)]
        assert not fits or all(
            have <= most for have, most in zip(total, (16 * count, 32 * count, 8 * count), strict=True)
        )
        assert fits or Ground(nodes(count)).spread(+there)[1]


def test_one_job_as_large_as_a_node_leaves_the_others_their_proof() -> None:
    ample = Ample(nodes(100), Counter({(1.0, 2.0, 1.0): 300}))
    ample.come(Counter({(16.0, 32.0, 8.0): 1}))
    assert ample.fits()
    ample.come(Counter({(16.0, 32.0, 8.0): 99}))
    assert not ample.fits()
    ample.go(Counter({(16.0, 32.0, 8.0): 99}))
    assert ample.fits()


@st.composite
def workloads(draw: st.DrawFn) -> list[Work]:
    """Up to 25 tasks and jobs with epochs, of one size or elastic, close enough to wait for each other at times."""
    found, at = [], 0.0
    for number in range(draw(st.integers(1, 25))):
        at += draw(st.sampled_from([0.0, 1.0, 7.0]))
        low, more = draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 0, 2]))
        trains = draw(st.booleans())
        found.append(
            Work(
                at,
                float(draw(st.integers(1, 6))) if trains else draw(st.floats(1.0, 60.0)),
                np.array(draw(DIVIDING)),
                name=f"job-{number}",
                minimum=Allocation(low, 0),
                maximum=Allocation(low + more, 0),
                speed=by_counts(lambda workers, _: workers / (3.0 + 0.2 * workers)) if trains else None,
                rescale_seconds=0.5,
            )
        )
    return found


def finished(name: str, works: Sequence[Work]) -> list[float]:
    record = Engine(Cluster.uniform(3, 16, 16, 8), works, policy(name)).run()
    return [float(at) for at in record.column("finished")]


@pytest.mark.parametrize("name", SEPARABLE)
@settings(max_examples=20, deadline=None)
@given(workloads())
def test_asking_about_the_moving_jobs_alone_has_the_same_answer_as_asking_about_all(
    name: str, works: list[Work]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodePlacement, "_all_fit", lambda _: False)
        slowly = finished(name, works)
    np.testing.assert_array_equal(finished(name, works), slowly)


@pytest.mark.parametrize("name", SEPARABLE)
def test_a_decision_costs_no_time_for_jobs_to_which_nothing_happens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = policy(name), list[int]()
    allocate = type(made).allocate

    def counting(self: object, jobs: Sequence[object], cluster: object) -> object:
        asked.append(len(jobs))
        return allocate(self, jobs, cluster)  # type: ignore[arg-type]

    monkeypatch.setattr(type(made), "allocate", counting)
    large = np.array([64.0, 64.0, 8.0])
    works = [
        Work(float(at), 1000.0, large if at == 5 else np.array([1.0, 1.0, 1.0]), name=str(at)) for at in range(200)
    ]
    record = Engine(Cluster.uniform(100, 64, 64, 8), works, made).run()
    assert (record.column("finished") - record.column("arrived") == 1000).all()
    assert sum(asked) <= 2 * len(works)
