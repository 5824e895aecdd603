"""Jobs run on the nodes of their partition or queue, where nodes are given by partition."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from coach.cli.simulate import parse_cluster
from coach.core.errors import UserError
from coach_research.trace_simulation import replay
from coach_research.traces.replay import read_trace
from tests.research.traces.reading import DATA

SACCT = "JobID|Partition|State|Submit|Start|ElapsedRaw|AllocTRES\n"
NEVER = (math.inf, math.inf)


def slurm(folder: Path, *jobs: tuple[str, int]) -> str:
    """A trace of jobs of one core, (partition, seconds), a second apart."""
    file = folder / "jobs.sacct"
    line = "{}|{}|COMPLETED|2026-11-02T08:00:0{}|2026-11-02T08:00:09|{}|cpu=1,mem=1G,node=1\n"
    file.write_text(SACCT + "".join(line.format(at + 1, part, at, seconds) for at, (part, seconds) in enumerate(jobs)))
    return f"sacct:{file}"


def test_each_partition_has_a_queue_of_its_own(tmp_path: Path) -> None:
    trace = slurm(tmp_path, ("gpu", 100), ("gpu", 100), ("cpu", 100))
    nodes = parse_cluster("gpu=1x1+cpu=1x1")
    assert [node.name for node in nodes] == ["gpu/node-0000", "cpu/node-0000"]
    apart = replay(trace, nodes, "fifo", 1, NEVER)
    assert apart.columns["finished"].tolist() == [100, 200, 102]
    assert apart.ended == 200
    together = replay(trace, parse_cluster("2x1"), "fifo", 1, NEVER)
    assert together.columns["finished"].tolist() == [100, 101, 200]


def test_nodes_without_a_name_have_all_other_jobs(tmp_path: Path) -> None:
    trace = slurm(tmp_path, ("gpu", 100), ("a", 100), ("b", 100))
    found = replay(trace, parse_cluster("gpu=1x1+1x1"), "fifo", 1, NEVER)
    assert found.columns["finished"].tolist() == [100, 101, 201]
    with pytest.raises(UserError, match=r"no nodes for the jobs of a, such as 2; add a=COUNTxCORES"):
        replay(trace, parse_cluster("gpu=1x1"), "fifo", 1, NEVER)


def test_each_of_kueues_queues_has_its_own_quota_and_a_cohort_one_together(tmp_path: Path) -> None:
    document = yaml.safe_load((DATA / "kueue.yaml").read_text())
    queue = next(item for item in document["items"] if item["kind"] == "ClusterQueue")
    queue["metadata"] = {"name": "a"}
    for name, cohort in (("b", "shared"), ("c", "shared"), ("d", None)):
        spec = {**queue["spec"], **({"cohort": cohort} if cohort else {})}
        document["items"].append({**queue, "metadata": {"name": name}, "spec": spec})
    (tmp_path / "queue.yaml").write_text(yaml.safe_dump(document))
    trace = read_trace(f"kueue:{tmp_path / 'queue.yaml'}")
    cores = {node.name: node.capacity.cpu for node in trace.nodes}
    assert cores == {"a/quota": 40, "shared/quota": 80, "d/quota": 40}
