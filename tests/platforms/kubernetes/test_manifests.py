"""Which places a function's pod has, and which it has not."""

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
    found = manifests.volumes(job, settings)
    mounted = {each["mountPath"]: each["name"] for _, mounts in found for each in mounts}
    volumes = {each["name"]: each for each, _ in found}
    assert ("/dev/shm" in mounted) == (readers > 0)
    assert mounted.keys() >= {"/tmp"} and set(mounted.values()) == volumes.keys()
    if readers:
        assert volumes[mounted["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}


@pytest.mark.parametrize("init", [None, {"job": "other"}])
def test_a_function_sees_the_checkpoints_of_its_own_job_and_others_only_to_begin_with_them(init: object) -> None:
    """With the folder of all a model could make `checkpoints/x -> ../home`: a program named x would get the journal."""
    given = spec("job", **({"init": init} if init else {}))
    found = manifests.volumes(TrainingJob.from_json(given), Settings("image", volume_claim="claim"))
    (mounts,) = [mounts for volume, mounts in found if volume["name"] == "coach"]
    seen = {one["mountPath"]: (one["subPath"], one.get("readOnly", False)) for one in mounts}
    others = {"/var/lib/coach/checkpoints": ("checkpoints", True)} if init else {}
    assert seen == {
        "/var/lib/coach/data": ("data", True),
        "/var/lib/coach/checkpoints/job": ("checkpoints/job", False),
        **others,
    }


@pytest.mark.parametrize("folder", ["/var/lib/coach/home", "/var/lib/coach/checkpoints/other", "/var/lib/coach"])
def test_checkpoints_in_a_folder_that_is_not_the_jobs_own_are_refused(folder: str) -> None:
    settings = Settings("image", volume_claim="claim")
    for uri in (folder, f"file://{folder}"):
        job = TrainingJob.from_json(spec("job", checkpoint={"uri": uri}))
        right = "on Coach's volume the checkpoints of job are in /var/lib/coach/checkpoints/job; leave it out"
        assert manifests.refusal(job, settings) == f"checkpoint.uri: {folder}: {right}"
    for uri in ("s3://bucket/kept", "/var/lib/coach/checkpoints"):
        assert not manifests.refusal(TrainingJob.from_json(spec("job", checkpoint={"uri": uri})), settings)
