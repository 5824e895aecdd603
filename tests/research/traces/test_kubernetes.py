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


@pytest.mark.parametrize("never", ["1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "null"])
def test_a_time_that_never_was_is_not_known(never: str, tmp_path: Path) -> None:
    """A container that could not start has 1970 as its start: its pod's start counts, where that is known."""
    text = (DATA / "cluster.yaml").read_text()
    start = 'startedAt: "2026-11-02T08:01:00Z"'
    assert start in text
    text = text.replace(start, f'startedAt: "{never}"')
    assert "when it started is not known" in refusal(tmp_path, text, "kubernetes")
    known = text.replace("    phase: Succeeded", '    phase: Succeeded\n    startTime: "2026-11-02T08:01:00Z"')
    assert read(tmp_path, known, "kubernetes").waited == 60


def test_amounts_may_have_any_spelling_of_the_api(tmp_path: Path) -> None:
    text = (DATA / "cluster.yaml").read_text()
    trace = read(tmp_path, text.replace("memory: 8Gi", "memory: 8589934592000m"), "kubernetes")
    assert trace.works[0].worker[1] == 8


def test_a_pod_set_without_pods_adds_nothing(tmp_path: Path) -> None:
    text = (DATA / "kueue.yaml").read_text()
    assert "count: 4" in text and "count: 1" in text
    (work,) = read(tmp_path, text.replace("count: 1", "count: 0"), "kueue").works
    assert (work.minimum, work.server.tolist()) == ((4, 0), [0, 0, 0])
    none = text.replace("count: 1", "count: 0").replace("count: 4", "count: 0")
    assert "it has no pod set with a pod" in refusal(tmp_path, none, "kueue")
