"""The gang rules: the conformance cases that Go runs too, and properties over generated clusters."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coach.core.cluster import NOTHING, Node, Pod, PodId, Resources, Role
from coach.core.gang.plan import Gang, GangPlan, Pending, PendingReason, never_fits, plan_gang
from coach.core.gang.snapshot import ForeignPod, PodRequest
from coach_research.platforms.gang_rules import all_types_present, queue_key, same_job_score
from tests.oracles.gang_queue import Backfill, gang_key, schedule_queue

pytestmark = pytest.mark.standard

CASES = Path(__file__).parents[2] / "conformance"


@cache
def documents() -> list[dict[str, Any]]:
    # libyaml, which is ten times as fast: they are read before any test can run.
    return [yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted(CASES.glob("*.yaml"))]


def cases(section: str) -> list[Any]:
    found = [case for document in documents() if document["section"] == section for case in document["cases"]]
    assert found, f"no case of section {section} in {CASES}"
    return [pytest.param(case, id=case["name"]) for case in found]


# Reading a case, as tests/conformance/README.md specifies it.


def resources(raw: dict[str, Any]) -> Resources:
    return Resources(raw.get("cpu", 0), raw.get("memory", 0), raw.get("gpu", 0))


def ids(raw: dict[str, Any], job: str | None = None) -> list[PodId]:
    first = raw.get("index", 0)
    return [PodId(raw.get("job", job), Role(raw["role"]), first + i) for i in range(raw.get("count", 1))]


def requests(raw: list[dict[str, Any]], gang: dict[str, Any] | None = None) -> list[PodRequest | ForeignPod]:
    pods: list[PodRequest | ForeignPod] = []
    for pod in raw:
        order = {**pod, **(gang or {})}
        priority, created = order.get("priority", 0), order.get("created", 0)
        if "foreign" in pod:
            pods.append(ForeignPod(pod["foreign"], resources(pod), priority, created))
        else:
            pods += [
                PodRequest(pod_id, resources(pod), priority, created, pod.get("node"))
                for pod_id in ids(pod, order.get("job"))
            ]
    return pods


def bound_pods(raw: list[dict[str, Any]]) -> list[Pod | ForeignPod]:
    pods: list[Pod | ForeignPod] = []
    for pod in raw:
        if "foreign" in pod:
            pods.append(ForeignPod(pod["foreign"], resources(pod), node=pod["node"]))
        else:
            pods += [Pod(pod_id, pod["node"], resources(pod)) for pod_id in ids(pod)]
    return pods


def gang_of(raw: dict[str, Any]) -> Gang:
    required = {Role(role): count for role, count in raw.get("required", dict.fromkeys(Role, 1)).items()}
    members = requests(raw.get("queued", []), {k: raw[k] for k in ("job", "priority", "created") if k in raw})
    return Gang(raw["job"], tuple(members), required, raw.get("duration"))


def nodes_of(raw: list[dict[str, Any]]) -> list[Node]:
    return [Node(node["name"], resources({"memory": 1000, **node})) for node in raw]


def check(outcome: GangPlan | Pending, expected: dict[str, Any]) -> None:
    if "reason" in expected:
        assert isinstance(outcome, Pending), outcome
        assert outcome.reason == expected["reason"], outcome
        if "missing" in expected:
            assert outcome.missing == {Role(role): n for role, n in expected["missing"].items()}
        if "blocked_by" in expected:
            assert outcome.blocked_by == tuple(expected["blocked_by"])
        for key in ("best_partial", "message"):
            if key in expected:
                assert getattr(outcome, key) == expected[key]
        return
    assert isinstance(outcome, GangPlan), outcome
    if "counts" in expected:
        assert Counter(outcome.placements.values()) == expected["counts"]
    else:
        assert {pod.name: node for pod, node in outcome.placements.items()} == expected["placements"]
    assert [pod.name for pod in outcome.unplaced] == expected.get("unplaced", [])


@pytest.mark.parametrize("case", cases("queue-order"))
def test_queue_order(case: dict[str, Any]) -> None:
    pods = requests(case["pods"])
    for permutation in itertools.islice(itertools.permutations(pods), 24):
        ordered = sorted(permutation, key=queue_key)
        assert [queue_key(pod).name for pod in ordered] == case["order"]


@pytest.mark.parametrize("case", cases("filter"))
def test_filter(case: dict[str, Any]) -> None:
    (pod,) = requests([case["pod"]])
    passes = all_types_present(pod, requests(case.get("queued", [])), bound_pods(case.get("bound", [])))
    assert passes is case["passes"]


@pytest.mark.parametrize("case", cases("score"))
def test_score(case: dict[str, Any]) -> None:
    (pod,) = requests([case["pod"]])
    bound = bound_pods(case["bound"])
    assert {node: same_job_score(pod, node, bound) for node in case["scores"]} == case["scores"]


@pytest.mark.parametrize("case", cases("plan"))
def test_plan(case: dict[str, Any]) -> None:
    outcome = plan_gang(
        gang_of(case["gang"]),
        nodes_of(case["nodes"]),
        bound_pods(case.get("bound", [])),
        case.get("draining", ()),
    )
    check(outcome, case["expect"])


@pytest.mark.parametrize("case", cases("queue"))
def test_queue(case: dict[str, Any]) -> None:
    outcomes = schedule_queue(
        [gang_of(gang) for gang in case["gangs"]],
        nodes_of(case["nodes"]),
        bound_pods(case.get("bound", [])),
        backfill=Backfill(case.get("backfill", "strict")),
        ends=case.get("ends"),
        draining=case.get("draining", ()),
    )
    assert set(outcomes) == set(case["expect"])
    for job, expected in case["expect"].items():
        check(outcomes[job], expected)


def test_every_case_has_a_name_of_its_own() -> None:
    for document in documents():
        names = [case["name"] for case in document["cases"]]
        assert len(names) == len(set(names)), document["section"]


# Properties. Requests are whole quarters, so that sums are exact and the oracle needs no tolerance.

quarters = st.integers(0, 12).map(lambda n: n / 4)


@st.composite
def clusters(draw: st.DrawFn, nodes: int = 4) -> tuple[list[Node], list[Pod | ForeignPod]]:
    """Nodes, and pods bound on them without over-commitment."""
    names = [f"n{i}" for i in range(draw(st.integers(1, nodes)))]
    free = {name: Resources(draw(quarters), draw(quarters)) for name in names}
    whole = dict(free)
    bound: list[Pod | ForeignPod] = []
    for i in range(draw(st.integers(0, 4))):
        node, need = draw(st.sampled_from(names)), Resources(draw(quarters), draw(quarters))
        if need.fits(free[node]):
            free[node] -= need
            job = draw(st.sampled_from(["x", "y", None]))
            bound.append(
                ForeignPod(f"web-{i}", need, node=node) if job is None else Pod(PodId(job, Role.WORKER, i), node, need)
            )
    return [Node(name, whole[name]) for name in names], bound


@st.composite
def gangs(draw: st.DrawFn, job: str, most: int = 2) -> Gang:
    """A gang with up to `most` servers and workers, of which at least one each is required."""
    counts = {
        Role.SCHEDULER: 1,
        Role.SERVER: draw(st.integers(1, most)),
        Role.WORKER: draw(st.integers(1, most)),
    }
    shape = {role: Resources(draw(quarters), draw(quarters)) for role in Role}
    created, priority = draw(st.integers(0, 2)), draw(st.integers(0, 1))
    members = [
        PodRequest(PodId(job, role, i), shape[role], priority, created)
        for role, count in counts.items()
        for i in range(count)
    ]
    return Gang(
        job,
        tuple(draw(st.permutations(members))),
        {role: draw(st.integers(1, count)) for role, count in counts.items()},
        draw(st.none() | st.integers(1, 100)),
    )


def free_room(nodes: list[Node], bound: list[Pod | ForeignPod]) -> dict[str, Resources]:
    room = {node.name: node.capacity for node in nodes}
    for pod in bound:
        assert pod.node is not None
        room[pod.node] -= pod.requests
    return room


def required_members(gang: Gang) -> list[PodRequest]:
    by_index = sorted(gang.members, key=lambda member: member.id.index)
    return [member for role in Role for member in [m for m in by_index if m.id.role is role][: gang.required[role]]]


def any_placement(members: list[PodRequest], room: dict[str, Resources]) -> bool:
    """The oracle: tries every node for every pod."""
    if not members:
        return True
    first, *rest = members
    return any(
        any_placement(rest, {**room, node: free - first.requests})
        for node, free in room.items()
        if first.requests.fits(free)
    )


def carried_out(gang: Gang, plan: GangPlan) -> list[Pod | ForeignPod]:
    requests_of = {member.id: member.requests for member in gang.members}
    return [Pod(pod, node, requests_of[pod]) for pod, node in plan.placements.items()]


@given(clusters(), gangs("a", most=3))
def test_a_small_gang_is_placed_exactly_when_a_placement_exists(
    world: tuple[list[Node], list[Pod | ForeignPod]], gang: Gang
) -> None:
    nodes, bound = world
    possible = any_placement(required_members(gang), free_room(nodes, bound))
    outcome = plan_gang(gang, nodes, bound)
    assert isinstance(outcome, GangPlan) == possible, outcome
    if isinstance(outcome, Pending):
        never = not any_placement(required_members(gang), free_room(nodes, []))
        assert outcome.reason is (PendingReason.NEVER_FITS if never else PendingReason.WAITING_CAPACITY)
        assert outcome.best_partial < sum(outcome.missing.values())


@st.composite
def crowded(draw: st.DrawFn) -> tuple[list[Node], list[Pod], Gang]:
    """Nodes of 4-8 cores, some with a pod of another job or of our own, and a gang with required members only."""
    nodes = [Node(f"n{i}", Resources(draw(st.integers(4, 8)), 0)) for i in range(draw(st.integers(2, 4)))]
    bound = [
        Pod(PodId(job, Role.WORKER, 10 + i), node.name, Resources(draw(st.integers(1, 4)), 0))
        for i, node in enumerate(nodes)
        if (job := draw(st.sampled_from(["", "a", "b"])))
    ]
    counts = {Role.SCHEDULER: 1, Role.SERVER: draw(st.integers(1, 2)), Role.WORKER: draw(st.integers(1, 2))}
    shape = {role: Resources(draw(st.integers(1, 3)), 0) for role in Role}
    members = tuple(PodRequest(PodId("a", role, i), shape[role]) for role, n in counts.items() for i in range(n))
    own = sum(pod.id.job == "a" for pod in bound)
    return nodes, bound, Gang("a", members, {**counts, Role.WORKER: counts[Role.WORKER] + own})


@given(crowded())
def test_a_small_gang_has_the_fewest_pods_on_shared_nodes_and_then_the_fewest_nodes(
    world: tuple[list[Node], list[Pod], Gang],
) -> None:
    nodes, bound, gang = world
    own = {pod.node for pod in bound if pod.id.job == "a"}
    shared = {pod.node for pod in bound if pod.id.job != "a"}

    def cost(placed: tuple[str, ...]) -> tuple[int, int]:
        return sum(node in shared for node in placed), len(set(placed) - own)

    plan = plan_gang(gang, nodes, bound)
    if isinstance(plan, GangPlan):
        assert cost(tuple(plan.placements.values())) == min(
            cost(placed)
            for placed in itertools.product([node.name for node in nodes], repeat=len(gang.members))
            if fits_together(gang.members, placed, free_room(nodes, list(bound)))
        )


def fits_together(members: tuple[PodRequest, ...], placed: tuple[str, ...], room: dict[str, Resources]) -> bool:
    for member, node in zip(members, placed, strict=True):
        room[node] -= member.requests
    return all(NOTHING.fits(free) for free in room.values())


@given(clusters(), st.data())
def test_gangs_start_whole_or_not_at_all_and_no_node_is_over_committed(
    world: tuple[list[Node], list[Pod | ForeignPod]], data: st.DataObject
) -> None:
    nodes, bound = world
    queue = [data.draw(gangs(job)) for job in "abc"]
    backfill = data.draw(st.sampled_from(Backfill))
    ends = {job: data.draw(st.integers(1, 50)) for job in "xy"}
    outcomes = schedule_queue(queue, nodes, bound, backfill=backfill, ends=ends)
    after = list(bound)
    for gang in queue:
        outcome = outcomes[gang.job]
        if isinstance(outcome, GangPlan):
            placed = Counter(pod.role for pod in outcome.placements)
            assert all(placed[role] >= count for role, count in gang.required.items())
            assert set(outcome.placements) | set(outcome.unplaced) == {member.id for member in gang.members}
            after += carried_out(gang, outcome)
    assert all(NOTHING.fits(room) for room in free_room(nodes, after).values())


@given(clusters(), st.data())
def test_the_order_of_the_input_does_not_matter(
    world: tuple[list[Node], list[Pod | ForeignPod]], data: st.DataObject
) -> None:
    nodes, bound = world
    queue = [data.draw(gangs(job)) for job in "abc"]
    again = schedule_queue(
        data.draw(st.permutations([replace(g, members=tuple(reversed(g.members))) for g in queue])),
        data.draw(st.permutations(nodes)),
        data.draw(st.permutations(bound)),
    )
    first = schedule_queue(queue, nodes, bound)
    assert again == first
    assert list(again) == list(first)


@given(clusters(), st.data())
def test_easy_backfill_never_delays_the_head_when_predictions_hold(
    world: tuple[list[Node], list[Pod | ForeignPod]], data: st.DataObject
) -> None:
    nodes, bound = world
    queue = [data.draw(gangs(job)) for job in "abc"]
    ends: dict[str, float] = {job: data.draw(st.integers(1, 50)) for job in "xy"}
    strict = schedule_queue(queue, nodes, bound, backfill=Backfill.STRICT)
    heads = [gang for gang in queue if strict[gang.job].__class__ is Pending]
    heads = [gang for gang in heads if strict[gang.job].reason is PendingReason.WAITING_CAPACITY]  # type: ignore[union-attr]
    if not heads:
        return
    head = min(heads, key=gang_key)

    def start(outcomes: dict[str, GangPlan | Pending]) -> float | None:
        """When the head fits, if every job ends as predicted and no other job starts."""
        after, until = list(bound), dict(ends)
        for gang in queue:
            plan = outcomes[gang.job]
            if isinstance(plan, GangPlan):
                after += carried_out(gang, plan)
                if gang.length is not None:
                    until[gang.job] = gang.length
        for end in sorted(until.values()):
            there = [pod for pod in after if isinstance(pod, ForeignPod) or until.get(pod.id.job, 1e9) > end]
            if isinstance(plan_gang(head, nodes, there), GangPlan):
                return end
        return None

    promised = start(strict)
    easy = schedule_queue(queue, nodes, bound, backfill=Backfill.EASY, ends=ends)
    if promised is not None:
        actual = start(easy)
        assert actual is not None
        assert actual <= promised
    else:
        assert {job for job, o in easy.items() if isinstance(o, GangPlan)} == {
            job for job, o in strict.items() if isinstance(o, GangPlan)
        }


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Role), st.integers(0, 12)), unique=True))
def test_queue_order_is_total(pods: list[tuple[str, Role, int]]) -> None:
    keys = [queue_key(PodRequest(PodId(*pod), NOTHING, 0, ord(pod[0]) % 2)) for pod in pods]
    assert len(set(keys)) == len(keys)


def test_a_verdict_on_a_gang_too_large_to_search_is_not_called_final() -> None:
    # Each pair of nodes holds 5 + 2 + 2 and 3, which greedy packing misses, as for one pair in plan.yaml.
    nodes = [Node(f"n{i}", Resources(9 if i % 2 else 3, 0)) for i in range(200)]
    sizes = [5.0, 3.0, 2.0, 2.0] * 100
    members = [PodRequest(PodId("a", Role.WORKER, i), Resources(cpu, 0)) for i, cpu in enumerate(sizes)]
    members += [PodRequest(PodId("a", role, 0), NOTHING) for role in (Role.SCHEDULER, Role.SERVER)]
    outcome = plan_gang(Gang("a", tuple(members), {Role.SCHEDULER: 1, Role.SERVER: 1, Role.WORKER: 400}), nodes, [])
    assert isinstance(outcome, Pending)
    assert outcome.reason is PendingReason.WAITING_CAPACITY
    assert "no placement found" in outcome.message


def test_what_one_node_lacks_is_not_taken_from_another_node():
    # 3 + 2 and 2 + 2 fit, but no greedy finds it; the third node is over-committed by a pod that is not ours.
    nodes = [Node("five", Resources(5, 9)), Node("four", Resources(4, 9)), Node("full", Resources(1, 9))]
    sizes = {Role.SCHEDULER: 3, Role.SERVER: 2, Role.WORKER: 2}
    members = [PodRequest(PodId("a", role, 0), Resources(cpu, 1)) for role, cpu in sizes.items()]
    members.append(PodRequest(PodId("a", Role.WORKER, 1), Resources(2, 1)))
    required = {Role.SCHEDULER: 1, Role.SERVER: 1, Role.WORKER: 2}
    greedy = ForeignPod("greedy", Resources(5, 1), node="full")
    plan = plan_gang(Gang("a", tuple(members), required), nodes, [greedy])
    assert isinstance(plan, GangPlan) and len(plan.placements) == 4


@pytest.mark.parametrize(
    ("workers", "servers", "cpu"),
    [
        (1, 0, 9999.0),
        (9999, 0, 1.0),
        (3, 0, 1.0),
        (1, 1, 9.0),
        (5, 4, 1.0),
        (2, 2, 3.0),
        (2, 2, 4.0),
        (1, 1, 1.0),
    ],
)
def test_what_never_fits_is_said_as_of_a_gang_on_empty_nodes(workers: int, servers: int, cpu: float) -> None:
    nodes = [Node(name, Resources(4.0, 16.0)) for name in ("x", "y")]
    counts = {Role.SCHEDULER: 1, Role.SERVER: servers, Role.WORKER: workers}
    requests = {
        Role.SCHEDULER: Resources(0.1, 0.1),
        Role.SERVER: Resources(0.5, 1.0),
        Role.WORKER: Resources(cpu, 1.0),
    }
    members = tuple(
        PodRequest(PodId("j", role, index), requests[role]) for role, count in counts.items() for index in range(count)
    )
    plan = plan_gang(Gang("j", members, counts), nodes, ())
    found = never_fits({(role, requests[role]): count for role, count in counts.items() if count}, nodes)
    assert found == (plan.message if isinstance(plan, Pending) else None)


def test_millions_of_pods_are_counted_and_not_placed_one_by_one() -> None:
    nodes = [Node("x", Resources(64.0, 256.0))]
    many = {(Role.WORKER, Resources(1.0, 0.0)): 10_000_000}
    assert never_fits(many, nodes) == (
        "needs 10000000 workers x 1 cpu, best partial fit 64, and the largest node has 64 cpu 256 GiB"
    )
    assert never_fits({(Role.WORKER, Resources(0.0, 0.0)): 10_000_000}, nodes) is None


def test_a_gpu_where_there_is_none_is_said_so() -> None:
    one = {(Role.WORKER, Resources(1.0, 1.0, 1.0)): 1}
    nodes = [Node("x", Resources(2.0, 8.0))]
    assert never_fits(one, nodes) == "needs 1 worker x 1 cpu 1 GiB 1 gpu, best partial fit 0, and no node has a GPU"
    few = never_fits({(Role.WORKER, Resources(1.0, 1.0, 2.0)): 1}, [Node("x", Resources(2.0, 8.0, 1.0))])
    assert few is not None and few.endswith("and the largest node has 2 cpu 8 GiB 1 gpu")
