"""Where somebody else changes a Deployment back, a function's pods go to no other scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.jobs.reasons import Reason
from coach.platforms.base import PodError
from coach.platforms.nuclio import functions
from coach.platforms.nuclio.platform import NuclioPlatform
from tests.platforms.kubernetes.test_platform import SIZE, Heard, training_job
from tests.platforms.nuclio.test_platform import Nuclio, pod_of, run

__all__ = ["run"]
pytestmark = pytest.mark.processes


@pytest.mark.parametrize("run", [pytest.param(False, id="double")], indirect=True)
def test_a_pod_that_nuclio_sends_elsewhere_again_and_again_is_refused(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def overruled(_functions: functions.Functions, _name: str) -> bool:
        return True  # somebody else changes the Deployment back

    monkeypatch.setattr(functions.Functions, "on_our_scheduler", overruled)

    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        job = training_job()
        await platform.gang(SIZE, job)
        with pytest.raises(PodError, match="job-worker-0 to default-scheduler, not to scheduler coach: give") as told:
            await platform.deploy(pod_of(job), job)
        assert told.value.reason is Reason.POD_REFUSED
        assert not await cluster.pods()
        await platform.forget("job")

    run(body, {"functionReadinessTimeout": "0s"})
