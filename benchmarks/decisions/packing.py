"""How well whole-gang planning places gangs, compared with the thesis's pod-by-pod rules and with the optimum.

    python -m benchmarks.decisions.packing            # prints the tables, writes results/packing.{csv,md}

*quality*: random clusters of 2-4 nodes with pods of other jobs, and a gang of 3-6 pods. `thesis` schedules pod by
pod in queue order to a node with the best score, ties by name, and keeps the placed pods when one does not fit (those
are partial gangs). `best` tries every placement. Nodes, and pods on a node with another job, are means over the gangs
that all three place. *time*: CPU seconds of one plan, and of a verdict on a gang that does not fit, on one core.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from coach.core.cluster import Node, Pod, PodId, Resources, Role
from coach.core.gang.plan import Gang, GangPlan, Pending, plan_gang
from coach.core.gang.snapshot import PodRequest
from coach_research.platforms.gang_rules import all_types_present, queue_key, same_job_score

RESULTS = Path(__file__).parents[2] / "results"
Row = tuple[str, str, str, float]
Placement = Mapping[PodId, str]


def random_world(rng: np.random.Generator) -> tuple[list[Node], list[Pod], Gang]:
    """Nodes of 4 to 8 cores with up to one pod of another job each, and a gang."""
    nodes = [Node(f"n{i}", Resources(float(rng.integers(4, 9)), 64.0)) for i in range(rng.integers(2, 5))]
    bound = [
        Pod(PodId("other", Role.WORKER, i), node.name, Resources(float(rng.integers(1, 5)), 1.0))
        for i, node in enumerate(nodes)
        if rng.uniform() < 0.5
    ]
    counts = {Role.SCHEDULER: 1, Role.SERVER: int(rng.integers(1, 3)), Role.WORKER: int(rng.integers(1, 4))}
    sizes = {
        role: Resources(float(rng.integers(1, 4)) * (0.5 if role is Role.SCHEDULER else 1.0), 1.0) for role in Role
    }
    members = [PodRequest(PodId("ours", role, i), sizes[role]) for role, n in counts.items() for i in range(n)]
    return nodes, bound, Gang("ours", tuple(members), counts)


def free_room(nodes: Sequence[Node], bound: Sequence[Pod]) -> dict[str, Resources]:
    """What is free on each node."""
    room = {node.name: node.capacity for node in nodes}
    for pod in bound:
        room[pod.node] -= pod.requests
    return room


def by_thesis(nodes: Sequence[Node], bound: Sequence[Pod], gang: Gang) -> Placement:
    """Pod by pod: queue order, filter, room, score."""
    room, standing, placed = free_room(nodes, bound), list(bound), {}
    for pod in sorted(gang.members, key=queue_key):
        open_nodes = [name for name, free in room.items() if pod.requests.fits(free)]
        if open_nodes and all_types_present(pod, gang.members, standing):
            node = min(open_nodes, key=lambda name: (-same_job_score(pod, name, standing), name))
            room[node] -= pod.requests
            placed[pod.id] = node
            standing.append(Pod(pod.id, node, pod.requests))
    return placed


def by_plan(nodes: Sequence[Node], bound: Sequence[Pod], gang: Gang) -> Placement:
    """The whole gang on one snapshot."""
    plan = plan_gang(gang, nodes, bound)
    return plan.placements if isinstance(plan, GangPlan) else {}


def by_search(nodes: Sequence[Node], bound: Sequence[Pod], gang: Gang) -> Placement:
    """The best of all placements: fewest pods on nodes with another job, then fewest nodes."""
    shared = {pod.node for pod in bound}
    best: tuple[tuple[int, int], Placement] | None = None
    for names in itertools.product([node.name for node in nodes], repeat=len(gang.members)):
        worth = sum(name in shared for name in names), len(set(names))
        if best is not None and worth >= best[0]:
            continue
        room = free_room(nodes, bound)
        for pod, name in zip(gang.members, names, strict=True):
            room[name] -= pod.requests
        if all(Resources(0, 0).fits(free) for free in room.values()):
            best = worth, {pod.id: name for pod, name in zip(gang.members, names, strict=True)}
    return best[1] if best else {}


WAYS: dict[str, Callable[[Sequence[Node], Sequence[Pod], Gang], Placement]] = {
    "thesis": by_thesis,
    "plan": by_plan,
    "best": by_search,
}


def measure_quality(instances: int) -> Iterator[Row]:
    """Gangs placed whole, in part or not at all, and where."""
    rng = np.random.default_rng(7)
    placed: dict[str, list[Placement]] = {name: [] for name in WAYS}
    worlds = [random_world(rng) for _ in range(instances)]
    for world in worlds:
        for name, way in WAYS.items():
            placed[name].append(way(*world))
    whole = {
        name: [len(p) == len(world[2].members) for p, world in zip(found, worlds, strict=True)]
        for name, found in placed.items()
    }
    by_all = [all(flags) for flags in zip(*whole.values(), strict=True)]
    for name, found in placed.items():
        partial = [bool(p) and not full for p, full in zip(found, whole[name], strict=True)]
        yield "quality", name, "gangs placed", float(np.mean(whole[name]))
        yield "quality", name, "partial gangs", float(np.mean(partial))
        common = [(p, {pod.node for pod in w[1]}) for p, w, all_ in zip(found, worlds, by_all, strict=True) if all_]
        yield "quality", name, "nodes", statistics.mean(len(set(p.values())) for p, _ in common)
        on_shared = (sum(node in shared for node in p.values()) for p, shared in common)
        yield "quality", name, "pods beside another job", statistics.mean(on_shared)


def measure_time(repeats: int) -> Iterator[Row]:
    """A gang of 4 and one of 100 on nodes that are half full; 7,500 of them are those of the thesis's section 8."""
    for count, workers in itertools.product((1_000, 5_000, 7_500), (2, 80)):
        nodes = [Node(f"n{i:04d}", Resources(8.0, 64.0)) for i in range(count)]
        bound = [
            Pod(PodId(f"job-{i % 97}", Role.WORKER, i), f"n{i:04d}", Resources(4.0, 1.0)) for i in range(0, count, 2)
        ]
        roles = {Role.SCHEDULER: 1, Role.SERVER: max(1, workers // 4 - 1), Role.WORKER: workers}
        for size, what in ((1.0, "plan"), (9.0, "verdict that it never fits")):
            members = [
                PodRequest(PodId("ours", role, i), Resources(size, 1.0)) for role, n in roles.items() for i in range(n)
            ]
            seconds = []
            for _ in range(repeats):
                start = time.process_time()
                outcome = plan_gang(Gang("ours", tuple(members), roles), nodes, bound)
                seconds.append(time.process_time() - start)
            assert isinstance(outcome, GangPlan if size < 8 else Pending)
            yield "time", f"{len(members)} pods on {count} nodes", what, statistics.median(seconds)


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--instances", type=int, default=500, help="random gangs")
    parser.add_argument("--repeats", type=int, default=3, help="plans timed for each case")
    arguments = parser.parse_args()
    rows = [*measure_quality(arguments.instances), *measure_time(arguments.repeats)]
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "packing.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("table", "case", "measure", "value"))
        writer.writerows((*row[:-1], f"{row[-1]:.6g}") for row in rows)
    lines = [
        "# Packing",
        "",
        "Written by `python -m benchmarks.decisions.packing`, whose text says what is measured.",
    ]
    for table in dict.fromkeys(row[0] for row in rows):
        cells = {row[1:3]: row[3] for row in rows if row[0] == table}
        measures = list(dict.fromkeys(key[1] for key in cells))
        lines += ["", f"## {table}", "", f"| | {' | '.join(measures)} |", "|-|" + "-|" * len(measures)]
        for case in dict.fromkeys(key[0] for key in cells):
            lines.append(f"| {case} | {' | '.join(f'{cells[case, measure]:.4g}' for measure in measures)} |")
    text = "\n".join([*lines, ""])
    (RESULTS / "packing.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
