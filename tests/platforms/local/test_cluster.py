"""The nodes of the local platform: their GPUs are those that the driver has, or that a cluster file says."""

from pathlib import Path

import pytest

from coach.core.cluster import Instance
from coach.core.errors import UserError
from coach.jobfiles.prices import instance_of
from coach.platforms.local import cluster


def test_a_cluster_file_says_the_gpus_of_its_nodes(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes:\n- {name: a, cpu: 2, memory: 4Gi, gpu: 1}\n- {name: b, cpu: 2, memory: 4Gi}\n")
    assert [node.capacity.gpu for node in cluster.parse_nodes(str(file))] == [1, 0]
    file.write_text("nodes:\n- {name: a, cpu: 2, memory: 4Gi, gpu: many}\n")
    with pytest.raises(UserError, match=r"nodes.0.gpu: .*value seen: 'many'"):
        cluster.parse_nodes(str(file))


def test_a_cluster_file_names_the_offers_that_its_nodes_are(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    line = "- {{name: {}, cpu: 2, memory: 4Gi, offer: '{}'}}\n"
    file.write_text(f"nodes:\n{line.format('a', 'nebius/cpu-e2_2vcpu-8gb')}- {{name: b, cpu: 2, memory: 4Gi}}\n")
    priced, unpriced = cluster.parse_nodes(str(file), instance_of)
    assert priced.price == Instance(0.0496, 2.0, 8.0) and unpriced.price is None
    file.write_text(f"nodes:\n{line.format('a', 'aws/m8g.large:spot')}{line.format('b', 'aws/m8g.large')}")
    assert [node.spot for node in cluster.parse_nodes(str(file), instance_of)] == [True, False]
    file.write_text(f"nodes:\n{line.format('a', 'nebius/cpu-e2_2vcpu-9gb')}")
    with pytest.raises(UserError, match=r"node a: offer: no such offer 'nebius/cpu-e2_2vcpu-9gb': did you mean"):
        cluster.parse_nodes(str(file), instance_of)


def test_a_node_of_a_cluster_file_is_of_the_kind_that_it_says_or_that_its_offer_is(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    lines = ("", ", kind: Tesla-T4", ", offer: 'nebius/cpu-e2_2vcpu-8gb'", ", offer: 'a/b@c:spot', kind: ''")
    file.write_text(
        "nodes:\n" + "".join(f"- {{name: n{at}, cpu: 2, memory: 4Gi{more}}}\n" for at, more in enumerate(lines))
    )
    assert [node.kind for node in cluster.parse_nodes(str(file))] == ["", "Tesla-T4", "cpu-e2_2vcpu-8gb", ""]
    file.write_text("nodes:\n- {name: a, cpu: 2, memory: 4Gi, gpu: 2, gpuFactor: 2.5}\n")
    assert cluster.parse_nodes(str(file))[0].gpu_factor == 2.5
    file.write_text("nodes:\n- {name: a, cpu: 2, memory: 4Gi, gpuFactor: 0}\n")
    with pytest.raises(UserError, match=r"nodes.0.gpuFactor: .*greater than 0.*value seen: 0"):
        cluster.parse_nodes(str(file))
    file.write_text("nodes:\n- {name: a, cpu: 2, memory: 4Gi, kind: 3}\n")
    with pytest.raises(UserError, match=r"nodes.0.kind: .*value seen: 3"):
        cluster.parse_nodes(str(file))
