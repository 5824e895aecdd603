"""What `kubectl get -o yaml` prints, of pods and nodes and of Kueue's workloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from coach_research.traces.replay import read_trace
from tests.research.traces.reading import DATA, notes, read, refusal


def test_pods_that_ended_are_tasks_and_nodes_are_the_cluster() -> None:
    trace = read_trace(f"kubernetes:{DATA / 'cluster.yaml'}")
    (work,) = trace.works
    assert (work.name, work.kind, work.priority, work.work) == ("ml/p1", "ml", 10, 3600)
    assert work.worker.tolist() == [2, 8, 1]
    assert trace.waited == 60
    assert notes(trace.left_out) == [("ml/p2", 20, "it has not ended")]
    (node,) = trace.nodes
    assert (node.name, node.capacity.cpu, node.capacity.gpu) == ("a", 3.92, 2)


def test_a_workload_ran_from_its_admission_and_the_quota_is_the_cluster() -> None:
    trace = read_trace(f"kueue:{DATA / 'kueue.yaml'}")
    (work,) = trace.works
    assert (work.name, work.kind, work.priority) == ("ml/w1", "team-a", 5)
    # Four workers, and the launcher.
    assert (work.minimum, work.worker.tolist(), work.server.tolist()) == ((4, 1), [4, 16, 1], [0.5, 0, 0])
    assert (work.work, trace.waited) == (4 * 7200, 600)
    (quota,) = trace.nodes
    assert (quota.capacity.cpu, quota.capacity.memory, quota.capacity.gpu) == (40, 200, 8)


def test_json_is_read_as_well(tmp_path: Path) -> None:
    content = json.dumps(yaml.safe_load((DATA / "cluster.yaml").read_text()), indent=1)
    assert len(read(tmp_path, content, "kubernetes").works) == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cpu: 3920m", "cpu: lots", 'trace.csv:4: cpu: "lots" is given; use a quantity such as 500m or 4'),
        ("memory: 8Gi", "memory: 8GB", 'trace.csv:8: memory: "8GB" is given'),
        ("2026-11-02T08:01:00Z", "soon", 'trace.csv:8: "soon" is given; use a time'),
        ("priority: 10", "priority: high", 'trace.csv:8: "high" is given; use a whole number'),
        ("kind: List\nitems:", "kind: List\n items:", "trace.csv:3:7: this is no YAML"),
        (
            "- apiVersion: v1\n  kind: Node",
            "- no object\n- apiVersion: v1\n  kind: Node",
            "an object is expected",
        ),
    ],
)
def test_a_mistake_says_where_it_is_and_what_would_be_right(old: str, new: str, words: str, tmp_path: Path) -> None:
    text = (DATA / "cluster.yaml").read_text()
    assert old in text
    assert words in refusal(tmp_path, text.replace(old, new), "kubernetes")


@pytest.mark.parametrize("kind", ["kubernetes", "kueue"])
@pytest.mark.parametrize(
    "value", ["", "3", "[]", "{}", "{kind: Pod}", "{kind: Workload, spec: {podSets: 3}}", "{items: {a: 1}}",
              "{kind: Pod, spec: {containers: [3, {resources: 4}]}, status: [1]}", "&a [*a]", "{kind: &a {b: *a}}"],
)  # fmt: skip
def test_any_other_yaml_is_refused_in_one_line(kind: str, value: str, tmp_path: Path) -> None:
    assert "nothing was simulated" in refusal(tmp_path, value, kind)
