"""What every allocation policy keeps to, the static baseline, and the names of policies."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach.core.cluster import Allocation, Resources, Role
from coach.core.errors import UserError
from coach.core.policies import ClusterView, Policy
from coach.core.policies.api.allocation import NOT_TAKEN
from coach.plugins import POLICIES, policy
from tests.core.policies.policy_examples import Epochs, Job, allocation, cluster, decided, server_speed

pytestmark = pytest.mark.standard

#: Coach's own, and the research package's that answer for all jobs at once.
NAMES = [
    *(name for name in POLICIES if name != "static"),
    *("coach:cheapest", "coach:mean-completion", "static:1x1", "static:2x3", "static:2"),
    *("dl2", "tetris", "elasticflow", "fitgpp", "lrtp", "rand", "thesis"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_found_by_its_name(name: str) -> None:
    assert policy(name).name == name


def test_coach_by_itself_means_soonest() -> None:
    assert policy("coach:soonest") == policy(" coach ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lifo",
        "drf:x=1",
        "coach:fastest",
        "static",
        "static:",
        "static:0",
        "static:0x1",
        "static:2x0",
        "static:2x1x1",
        ":2x1",
    ],
)
def test_any_other_text_is_the_user_s_mistake_and_the_message_says_what_would_be_right(text: str) -> None:
    with pytest.raises(UserError, match=r"there is no policy .*coach:<soonest\|.*static:<workers>x<servers>"):
        policy(text)


STATIC = [
    ("every job gets the same", [Job("a"), Job("b", created=1.0)], cluster(8.0), {"a": "2x2", "b": "2x2"}),
    ("who comes later waits", [Job("a", created=1.0), Job("b")], cluster(7.0), {"a": "-", "b": "2x2"}),
    (
        "no job passes, however small",
        [Job("a"), Job("b", created=1.0), Job("c", created=2.0, maximum=Allocation(1, 1))],
        cluster(6.0),
        {"a": "2x2", "b": "-", "c": "-"},
    ),
    (
        "a higher priority is served first",
        [Job("a"), Job("b", priority=1)],
        cluster(4.0),
        {"a": "-", "b": "2x2"},
    ),
    (
        "who runs keeps its place",
        [Job("a", priority=1), Job("b", current=Allocation(2, 2))],
        cluster(4.0),
        {"a": "-", "b": "2x2"},
    ),
    (
        "a job's own limits are respected",
        [Job("a", maximum=Allocation(1, 4)), Job("b", created=1.0, minimum=Allocation(3, 1))],
        cluster(9.0),
        {"a": "1x2", "b": "3x2"},
    ),
    ("a probe gets what it asks for", [Job("a", fixed=Allocation(1, 2))], cluster(9.0), {"a": "1x2"}),
    (
        "until a probe ends it holds what it has, and no other job starts there",
        [Job("a", current=Allocation(4, 3), busy=True), Job("b", created=1.0)],
        cluster(10.0),
        {"a": "2x2", "b": "-"},
    ),
    (
        "a job that no empty cluster holds blocks no other",
        [Job("a", minimum=Allocation(4, 4)), Job("b", created=1.0)],
        cluster(6.0),
        {"a": "-", "b": "2x2"},
    ),
    (
        "a job that can pay for nothing waits",
        [Job("a", money=1.0), Job("b")],
        cluster(4.0),
        {"a": "-", "b": "2x2"},
    ),
    ("pods go to nodes in one piece", [Job("a")], cluster(0.9, 0.9, 0.9, 0.9, 0.9), {"a": "-"}),
]


@pytest.mark.parametrize(("jobs", "nodes", "expected"), [pytest.param(*row[1:], id=row[0]) for row in STATIC])
def test_static(jobs: list[Job], nodes: ClusterView, expected: dict[str, str]) -> None:
    assert decided(policy("static:2x2"), jobs, nodes) == expected


# Properties of all policies, over jobs in any state.

shares = st.integers(0, 8).map(lambda n: n / 4)


@st.composite
def jobs_and_nodes(draw: st.DrawFn) -> tuple[list[Job], ClusterView]:
    """Jobs in any state. What the busy ones hold fits on the nodes."""
    jobs = []
    for i in range(draw(st.integers(0, 5))):
        servers = draw(st.sampled_from([(0, 0), (1, 2), (2, 2)]))  # the first: by all-reduce
        least = Allocation(draw(st.integers(1, 2)), servers[0])
        most = Allocation(least[0] + draw(st.integers(0, 3)), least[1] + draw(st.integers(0, servers[1])))
        inside = st.tuples(st.integers(least[0], most[0]), st.integers(least[1], most[1])).map(lambda a: Allocation(*a))
        current = draw(st.none() | inside)
        jobs.append(
            Job(
                f"j{i}",
                server_speed(
                    draw(st.integers(1, 200)),
                    draw(st.integers(0, 10)),
                    draw(st.integers(0, 40)),
                    draw(st.integers(0, 9)),
                ),
                float(draw(st.integers(0, 2))),
                draw(st.integers(0, 1)),
                least,
                most,
                current,
                draw(st.none() | st.none() | inside),
                current is not None and draw(st.booleans()),
                {role: Resources(draw(shares), draw(shares)) for role in Role},
                draw(st.none() | st.integers(0, 60).map(lambda n: Epochs(n, n, n))),
                draw(st.none() | st.integers(1, 800)),
                draw(st.none() | st.integers(1, 5000)),
                draw(st.sampled_from([0.0, 10.0, 1e6])),
                money=draw(st.just(float("inf")) | st.integers(1, 800)),
                trial=draw(st.booleans()),
                grace=draw(st.sampled_from([0.0, 30.0, 60.0])),
            )
        )
    sizes = draw(st.lists(st.sampled_from([1.0, 2.0, 4.0, 8.0]), min_size=1, max_size=4))
    return jobs, cluster(*sizes, memory=draw(st.sampled_from([2.0, 8.0, 1000.0])))


def pods(jobs: list[Job], allocations: Mapping[str, Allocation | None]) -> list[Resources]:
    requests = []
    for job in jobs:
        given_ = allocations[job.id]
        if given_ is not None:
            counts = {Role.SCHEDULER: 1, Role.SERVER: given_.servers, Role.WORKER: given_.workers}
            requests += [job.requests[role] for role, count in counts.items() for _ in range(count)]
    return requests


def placeable(requests: list[Resources], nodes: ClusterView) -> bool:
    """Largest first, first fit: a placement that is found exists."""
    room = [node.capacity for node in nodes.nodes]
    for pod in sorted(requests, key=lambda r: r.cpu / 8 + r.memory / max(n.memory for n in room), reverse=True):
        at = next((i for i, free in enumerate(room) if pod.fits(free)), None)
        if at is None:
            return False
        room[at] -= pod
    return True


def sum_fits(requests: list[Resources], nodes: ClusterView) -> bool:
    room, need = Resources(0, 0), Resources(0, 0)
    for node in nodes.nodes:
        room += node.capacity
    for pod in requests:
        need += pod
    return need.fits(room) and all(any(pod.fits(node.capacity) for node in nodes.nodes) for pod in requests)


@given(world=jobs_and_nodes())
@settings(max_examples=30)
def test_every_job_is_answered_within_its_limits_and_all_fit_on_the_nodes(
    world: tuple[list[Job], ClusterView],
) -> None:
    jobs, nodes = world

    def is_placed(jobs: list[Job]) -> bool:
        """Whether what these jobs hold is on the nodes already; what is generated here need not fit together."""
        return placeable(pods(jobs, {job.id: job.current for job in jobs}), nodes)

    busy = [job for job in jobs if job.busy]
    for name in NAMES:
        decision = policy(name).allocate(jobs, nodes)
        assert set(decision.allocations) == {job.id for job in jobs}, name
        for job in jobs:
            given_ = decision.allocations[job.id]
            if given_ is None:
                assert decision.why(job.id), f"{name}: a job that waits has a reason"
            elif job.fixed is not None:
                assert given_ == job.fixed, name
            else:
                assert job.minimum.workers <= given_.workers <= job.maximum.workers, name
                assert job.minimum.servers <= given_.servers <= job.maximum.servers, name
                assert job.affordable(given_), name
        if is_placed([job for job in jobs if job.busy or (job.fixed is not None and job.fixed == job.current)]):
            assert sum_fits(pods(jobs, decision.allocations), nodes), name
        if is_placed(busy):
            held = {job.id: job.current for job in busy}
            assert sum_fits(pods(jobs, {**decision.allocations, **held}), nodes), f"{name}: what busy jobs hold"


@given(world=jobs_and_nodes(), data=st.data())
@settings(max_examples=15, deadline=None)
def test_the_order_of_jobs_and_nodes_does_not_matter(world: tuple[list[Job], ClusterView], data: st.DataObject) -> None:
    jobs, nodes = world
    shuffled = data.draw(st.permutations(jobs)), ClusterView(tuple(data.draw(st.permutations(nodes.nodes))))
    for name in NAMES:
        first, again = policy(name).allocate(jobs, nodes), policy(name).allocate(*shuffled)
        assert again.allocations == first.allocations, name
        assert again.steps == first.steps, name


@given(world=jobs_and_nodes())
@settings(max_examples=15, deadline=None)
def test_the_steps_lead_to_what_was_decided(world: tuple[list[Job], ClusterView]) -> None:
    jobs, nodes = world
    for name in NAMES:
        decision = policy(name).allocate(jobs, nodes)
        for job in jobs:
            story = [step for step in decision.why(job.id) if step.reason not in NOT_TAKEN]
            if story and not any(other.busy for other in jobs):
                assert story[-1].after == decision.allocations[job.id], name


def test_a_decision_shows_its_outcome_and_not_its_log() -> None:
    chosen: Policy = policy("static:1x1")
    shown = repr(chosen.allocate([Job("a")], cluster(3.0)))
    assert "Allocation(workers=1, servers=1)" in shown
    assert "Step" not in shown


def test_texts_of_examples_are_read_as_written() -> None:
    assert allocation("2x1") == Allocation(workers=2, servers=1)
