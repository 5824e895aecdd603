"""Real PyTorch groups on this machine, under the real handler: they change without a restart."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from coach.core.cluster import Allocation, PodId, Role
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.policies.api.policy import Policy
from coach.core.policies.static import StaticPolicy
from tests.functions.hosting import ROOT
from tests.platforms.local.functions import ask
from tests.platforms.local.test_platform import ended, handler_on, job, submit

pytestmark = [pytest.mark.pytorch, pytest.mark.timeout(180)]

MODEL = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

loss = nn.CrossEntropyLoss()
"""


class Epochs(Policy):
    """A policy that gives one job so many workers, or (workers, servers), in its first, second, ... full epoch."""

    def __init__(self, *each: int | tuple[int, int]) -> None:
        self._each = [Allocation(one, 0) if isinstance(one, int) else Allocation(*one) for one in each]
        self.job: Job | None = None

    @property
    def name(self) -> str:
        return "epochs"

    def allocate(self, jobs, cluster):
        done = self.job.full_epoch_count if self.job is not None else 0
        return StaticPolicy(self._each[done]).allocate(jobs, cluster)


def process(pod: PodId, trained: Job) -> int | None:
    """The process that trains in this pod, as its function says."""
    return ask(trained.gang.pods[pod].address)["child_pid"]


def train(
    folder: Path, policy: Epochs, epochs: int, at: dict | None = None, servers: int = 0
) -> tuple[Job, list[dict[str, int]]]:
    """The job, with 0 to so many servers, at its end, and the processes of its workers by pod at each epoch's end.

    `at` has what to do at the end of an epoch, by its number, with these processes.
    """
    spec = job(
        "resized",
        folder,
        framework="pytorch",
        servers={"min": 0, "max": servers},
        maxEpochs=epochs,
        data={"uri": str(ROOT / ".data/mnist-digits"), "format": "digits-json", "size": 1440},
    )
    (folder / "mine.py").write_text(MODEL)
    trained: list[dict[str, int]] = []

    async def main() -> Job:
        async with handler_on(folder, chosen=policy) as handler:

            def watch(event, actions):
                del actions
                policy.job = handler.jobs.get("resized")
                if isinstance(event, ev.EpochFinished):
                    workers = [pod for pod in policy.job.gang.members if pod.role is Role.WORKER]
                    found = {pod.name: process(pod, policy.job) for pod in workers if pod in policy.job.gang.pods}
                    trained.append(found)
                    (at or {}).get(len(trained), lambda _: None)(found)

            handler.observers.append(watch)
            submit(handler, spec, folder)
            await handler.wait(ended(handler, "resized"))
            return handler.jobs["resized"]

    return asyncio.run(main()), trained


def workers(job: Job) -> list[int]:
    """Of each full epoch."""
    return [epoch.allocation.workers for epoch in job.epochs if epoch.kind is EpochKind.FULL]


def test_a_change_of_workers_starts_no_process_anew(tmp_path):
    finished, trained = train(tmp_path, Epochs(1, 2, 2, 1, 2), 5)
    assert finished.reason is Reason.EPOCH_LIMIT
    assert workers(finished) == [1, 2, 2, 1, 2]
    assert finished.gang.groups == 1 and finished.attempts.count == len(finished.epochs)
    assert len({found["resized-worker-0"] for found in trained}) == 1
    assert trained[-4]["resized-worker-1"] == trained[-3]["resized-worker-1"]
    assert trained[-1]["resized-worker-1"] != trained[-3]["resized-worker-1"], "it left and came back"


def test_a_job_goes_from_all_reduce_to_servers_and_back_as_another_group_with_its_checkpoint(tmp_path):
    finished, _ = train(tmp_path, Epochs(1, (1, 1), (2, 1), 2, 1), 5, servers=1)
    assert finished.reason is Reason.EPOCH_LIMIT
    assert finished.attempts.count == len(finished.epochs), "no epoch is lost"
    full = [epoch for epoch in finished.epochs if epoch.kind is EpochKind.FULL]
    assert [epoch.allocation for epoch in full] == [(1, 0), (1, 1), (2, 1), (2, 0), (1, 0)]
    groups = [epoch.group for epoch in full]
    assert groups[1] == groups[2] and groups[3] == groups[4], "workers come and go in a group"
    assert len(set(groups)) == 3, "the other way to exchange is another group"
    losses = [epoch.report.loss for epoch in full]
    assert losses == sorted(losses, reverse=True), "each epoch goes on from the last one's weights"


def test_a_killed_worker_is_replaced_in_the_group_that_goes_on(tmp_path):
    def kill(found: dict[str, int]) -> None:
        os.kill(found["resized-worker-0"], signal.SIGKILL)

    finished, trained = train(tmp_path, Epochs(2, 2, 2, 2), 4, {2: kill})
    assert finished.reason is Reason.EPOCH_LIMIT
    assert workers(finished) == [2, 2, 2, 2]
    assert finished.gang.groups == 1
    # Where it has not loaded yet when an epoch ends it has no process.
    assert len({found["resized-worker-1"] for found in trained if found.get("resized-worker-1")}) == 1
    assert trained[-1]["resized-worker-0"] != trained[0]["resized-worker-0"]
