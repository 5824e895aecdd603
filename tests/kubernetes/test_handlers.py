"""Two handlers on the cluster: one leads, and the other goes on where it is stopped."""

from __future__ import annotations

import pytest

from tests.kubernetes.cluster import ExistingCluster
from tests.kubernetes.installed import Coach, job, ours
from tests.kubernetes.test_cluster import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

LEADS = ("pods", "-l", "coach.dev/leader=coach-handler")


def leader(cluster: ExistingCluster) -> str:
    """The pod that the Services choose, if it is the one that the lease names."""
    names = [one["metadata"]["name"] for one in cluster.get(*LEADS)["items"]]
    return names[0] if names == [cluster.get("lease", "coach-handler")["spec"]["holderIdentity"]] else ""


def test_another_handler_goes_on_where_the_leader_is_stopped_which_ends_when_it_goes_on(
    coach: Coach, cluster: ExistingCluster
) -> None:
    nodes = ours(cluster)
    coach.upgrade("handler.replicas=2")
    try:
        coach.apply(job("led", target={"loss": 1.0, "epochsInARow": 1000}, maxEpochs=2000))
        epochs = coach.training("led", epochs=2)["epochs"]
        stopped = cluster.get("pod", wait_for("leader", lambda: leader(cluster)))
        node, name = nodes.nodes[stopped["spec"]["nodeName"]], stopped["metadata"]["name"]
        container = stopped["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        node.ctr("tasks", "pause", container)
        try:
            wait_for("another leader", lambda: leader(cluster) not in ("", name), 120)
            coach.training("led", epochs + 2)
        finally:
            node.ctr("tasks", "resume", container)
        wait_for("end of the first", lambda: cluster.get("pod", name)["status"]["containerStatuses"][0]["restartCount"])
        said = cluster.get("pod", name)["status"]["containerStatuses"][0]["lastState"]["terminated"]
        assert said["exitCode"] == 75, "it found another's name in the lease"
        cluster.kubectl("delete", "trainingjob", "led", "--timeout=60s")
        coach.nothing_left("led")
        coach.paid("led")
        shown = [one["epoch"] for one in coach.ask("show", "led")["epochs"] if one["kind"] == "full"]
        assert shown == list(range(1, len(shown) + 1)), "none was lost, none is there twice"
    finally:
        coach.upgrade("handler.replicas=1")
