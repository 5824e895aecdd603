"""Victims: the conformance cases that the kube-scheduler plugin runs too, and the same choice by arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coach.core.cluster import Node, Pod, PodId, Resources, Role
from coach.core.gang.plan import Gang, GangPlan, plan_gang
from coach.core.gang.snapshot import ForeignPod, PodRequest
from coach_research.policies.preemption.candidates import BestEffort
from coach_research.policies.preemption.victims import Rule, Running, choose, scores
from coach_research.scheduling.best_fit import weights

CASES = yaml.load((Path(__file__).parents[3] / "conformance/preempt.yaml").read_text(), yaml.CSafeLoader)["cases"]


def resources(raw: dict[str, Any]) -> Resources:
    return Resources(raw.get("cpu", 0), raw.get("memory", 0), raw.get("gpu", 0))


def vector(amount: Resources) -> np.ndarray:
    return np.array([amount.cpu, amount.memory, amount.gpu], float)


class Case:
    """A case as tests/conformance/README.md says it is read."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.nodes = [Node(node["name"], resources({"memory": 1000, **node})) for node in raw["nodes"]]
        self.weight = weights(np.array([vector(node.capacity) for node in self.nodes]))
        self.foreign = [ForeignPod(pod["foreign"], resources(pod), node=pod["node"]) for pod in raw.get("bound", [])]
        self.pods = {job["job"]: self._pods(job) for job in raw.get("running", [])}
        self.running = [
            Running(
                job["job"],
                sum((vector(pod.requests) for pod in self.pods[job["job"]]), np.zeros(3)) * self.weight,
                job.get("grace", 0),
                job.get("preempted", 0),
                job.get("priority", 0),
                job.get("remaining", math.inf),
                job.get("boundary", False),
                job.get("lot", 0.0),
            )
            for job in raw.get("running", [])
            if not job.get("trial")
        ]
        preemptor = raw["preemptor"]
        self.trial, self.priority = preemptor.get("trial", True), preemptor.get("priority", 0)
        shapes = [resources(pod) for pod in preemptor["pods"] for _ in range(pod.get("count", 1))]
        members = tuple(PodRequest(PodId("preemptor", Role.WORKER, i), shape, 0, 0.0) for i, shape in enumerate(shapes))
        # The planner of gangs wants one of each role.
        nothing = Resources(0, 0)
        members += tuple(
            PodRequest(PodId("preemptor", role, 0), nothing, 0, 0.0) for role in (Role.SCHEDULER, Role.SERVER)
        )
        self.gang = Gang("preemptor", members, {Role.WORKER: len(shapes), Role.SERVER: 1, Role.SCHEDULER: 1})

    def _pods(self, job: dict[str, Any]) -> list[Pod]:
        shapes = [(resources(pod), pod["node"]) for pod in job["pods"] for _ in range(pod.get("count", 1))]
        return [Pod(PodId(job["job"], Role.WORKER, i), node, shape) for i, (shape, node) in enumerate(shapes)]

    def fits(self, gone: Sequence[Running]) -> bool:
        out = {job.job for job in gone}
        bound = [pod for job, pods in self.pods.items() if job not in out for pod in pods]
        return isinstance(plan_gang(self.gang, self.nodes, [*bound, *self.foreign]), GangPlan)


@pytest.mark.parametrize("raw", [pytest.param(raw, id=raw["name"]) for raw in CASES])
def test_conformance(raw: dict[str, Any]) -> None:
    case = Case(raw)
    s, most = raw.get("s", 4), raw.get("P", 1)
    chosen = (
        choose(case.running, case.fits, rule=Rule(raw["policy"]), s=s, most=most, priority=case.priority)
        if case.trial
        else []
    )
    assert [job.job for job in chosen] == raw["expect"]["victims"]
    sizes = np.array([np.linalg.norm(job.demand) for job in case.running])
    score = scores(sizes, np.array([job.grace for job in case.running], float), s)
    found = dict(zip((job.job for job in case.running), score.tolist(), strict=True))
    assert {job: found[job] for job in raw["expect"].get("scores", {})} == raw["expect"].get("scores", {})


def test_without_putting_back_all_chosen_go() -> None:
    raw = next(case for case in CASES if case["name"].startswith("lrtp, on until the pods fit"))
    case = Case(raw)
    chosen = choose(case.running, case.fits, rule=Rule.LRTP, trim=False)
    assert [job.job for job in chosen] == ["elsewhere", "in-the-way", "too"]


def test_no_jobs_have_no_scores() -> None:
    assert scores(np.zeros(0), np.zeros(0), 4.0).tolist() == []


# The same by whole arrays, for single tasks.

amounts = st.tuples(*[st.integers(0, 4)] * 3).map(lambda a: np.array(a, float))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[np.ndarray, list[tuple[int, Running]], np.ndarray, np.ndarray]:
    """Room of each node, (node, task) in order of their numbers, what is asked for, and the nodes' capacity."""
    nodes = draw(st.integers(1, 4))
    room = np.array([draw(amounts) for _ in range(nodes)])
    capacity = room.copy()
    tasks = []
    for number in range(draw(st.integers(0, 7))):
        node, amount = draw(st.integers(0, nodes - 1)), draw(amounts)
        capacity[node] += amount
        tasks.append((number, node, amount))
    weight = weights(capacity)
    few = st.integers(0, 2)
    running = []
    for number, node, amount in tasks:
        preempted, lot = draw(st.integers(0, 1)), draw(few)
        task = Running(number, amount * weight, draw(few), preempted, draw(few), draw(few), lot=lot)
        running.append((node, task))
    return room, running, draw(amounts), capacity


@given(worlds(), st.sampled_from(Rule), st.booleans(), st.integers(0, 2), st.sampled_from([0.0, 1.0, 4.0]))
def test_whole_arrays_choose_as_the_rule_does(world: Any, rule: Rule, trim: bool, priority: int, s: float) -> None:
    room, running, need, capacity = world
    weight = weights(capacity)
    demand = {task.job: task.demand / np.where(weight > 0, weight, 1.0) for _, task in running}

    def fits(gone: Sequence[Running]) -> bool:
        after = room.copy()
        for node, task in running:
            if task in gone:
                after[node] += demand[task.job]
        return bool((after >= need - 1e-9).all(axis=1).any())

    if rule is Rule.NEVER or fits([]):
        return  # the policy asks only when there is no room
    if rule is Rule.FITGPP:
        trim = True
    tasks = [task for _, task in running]
    expected = choose(tasks, fits, rule=rule, s=s, priority=priority, trim=trim)

    table = BestEffort(weight, 1)
    # Others come and go: places in the table are in no order.
    for number in (100, 101):
        table.add(_job(Running(number, need)), need, 0, 0.0)
    for node, task in reversed(running):
        table.add(_job(task), demand[task.job], node, float(task.remaining))
    for number in (100, 101, 102):
        table.remove(number)
    by_job = {task.job: task for task in tasks}
    lots = np.array([by_job[job.id].lot for job in table.jobs], float)
    rank = {Rule.FITGPP: table.score(s), Rule.LRTP: -table.ends(), Rule.RANDOM: lots}[rule]
    alone = table.alone(need, room, priority, rank) if rule is Rule.FITGPP else None
    found = [alone] if alone is not None else table.together(need, room, priority, rank, trim=trim)
    assert found == [task.job for task in expected]


def _job(task: Running) -> Any:
    return SimpleNamespace(id=task.job, grace=float(task.grace), preemptions=task.preempted, priority=task.priority)
