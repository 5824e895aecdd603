"""A controller that was killed and does not know what it did last: jobs are forgotten, and their ids come again."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason
from coach.platforms.slurm.queue import cancel_own
from tests.slurm.cluster import SlurmCluster
from tests.slurm.runs import job, train
from tests.slurm.test_faults import once, running
from tests.slurm.test_programs import paid

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("knew", ["nothing", "that it waits"])
def test_what_a_killed_controller_knew_of_a_job_before_it_ran_costs_no_more_than_an_interval(
    forgetful: SlurmCluster, tmp_path: Path, knew: str
) -> None:
    slurm = forgetful
    state, saved = slurm.folder / "state", tmp_path / "state"
    waited: list[str] = []
    first: list[str] = []

    def save() -> None:
        slurm.kill("ctld", signal.SIGTERM)  # so that it writes all that it knows
        shutil.copytree(state, saved)
        slurm.start_controller()

    def forget() -> None:
        first.append(running(slurm))
        slurm.kill("ctld")
        shutil.rmtree(state)
        shutil.copytree(saved, state)
        slurm.start_controller()

    lost = once(ev.EpochFinished, forget)

    def then(handler: Any, event: Any) -> None:
        if isinstance(event, ev.PodPending) and not waited:
            waited.append(event.message)
            if knew == "that it waits":
                save()
        lost(handler, event)

    if knew == "nothing":
        save()
    options = {} if knew == "nothing" else {"slurm": {"options": ["--begin=now+3"]}}
    trained, records = train(tmp_path, job(tmp_path, resumes=True, target=0.04, **options), then=then)
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert first[0] in slurm.queue(form="%i")
    paid(trained, records)


def test_a_job_of_another_that_has_the_id_now_is_not_cancelled(slurm: SlurmCluster) -> None:
    mine = slurm("sbatch", "--parsable", "--comment=coach:me:own-1", "--output=/dev/null", "--mem-per-cpu=10",
                 "--wrap=sleep 300").strip()  # fmt: skip
    asyncio.run(cancel_own(mine, "own-2"))
    assert mine in slurm.queue("pending,running", "%i")
    asyncio.run(cancel_own(mine, "own-1"))
    slurm.until(lambda: mine not in slurm.queue("pending,running", "%i"))
    asyncio.run(cancel_own("99999", "own-1"))
