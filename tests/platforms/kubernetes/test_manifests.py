"""What a function's pod has beyond the handler's wishes: places of its own."""

import pytest

from coach.core.spec.job import TrainingJob
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes.settings import Settings
from tests.core.lifecycle.faulty_cluster import spec


@pytest.mark.parametrize("readers", [0, 2])
def test_a_pod_whose_worker_reads_ahead_has_shared_memory_for_it(readers: int) -> None:
    """A container has 64 MB of it, which one batch of images can exceed."""
    given = spec(framework="pytorch", servers={"max": 0}, data={"format": "custom", "readers": readers})
    job, settings = TrainingJob.from_json(given), Settings("image")
    mounted = {each["mountPath"]: each["name"] for each in manifests.mounts(job, settings)}
    volumes = {each["name"]: each for each in manifests.volumes(job, settings)}
    assert ("/dev/shm" in mounted) == (readers > 0)
    assert mounted.keys() >= {"/tmp"} and set(mounted.values()) == volumes.keys()
    if readers:
        assert volumes[mounted["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
