"""Faults that are no signal, on real functions: a checkpoint that is cut, a port that is taken, a loss that is NaN."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.harness import verdict
from coach.core.errors import PermanentError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason, State
from coach.platforms.gang_client import FIRST_PORT
from coach.platforms.local.environment import Functions
from coach.platforms.local.platform import LocalPlatform
from coach.platforms.local.runtime import Runtime
from tests.chaos.draw import Fault, Instant, Victim
from tests.chaos.processes import command, descendants
from tests.chaos.stage import ROOMY, Stage, losses
from tests.one_template import borrow_template

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(300)]


CUT, PORT, NAN = "cut", "port", "nan"


def damage(stage: Stage, cut: list[Path]) -> None:
    """Cut the checkpoint of the fourth epoch. It is read again only by a new group: so a worker is killed as well."""

    def look(event: ev.Event, actions: Sequence[act.Action]) -> None:
        orders = [action for action in actions if isinstance(action, act.RunEpoch) and action.job == CUT]
        if orders and orders[0].number == 5 and not cut:
            path = Path((orders[0].weights_in or "").removeprefix("file://"))
            path.write_bytes(path.read_bytes()[:-100])
            cut.append(path)
            pid = stage.process(CUT, Fault(Victim.WORKER, "SIGKILL", Instant.TRAINING, "worker", 5, 0.0))
            assert pid
            os.kill(pid, signal.SIGKILL)

    stage.handler.observers.append(look)


def take(stage: Stage, other: socket.socket) -> None:
    """Listen where the liveness hub of the job's first group would."""
    # A connection of an earlier test that is still in TIME_WAIT on that address would be no listener.
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def look(event: ev.Event, _: Sequence[act.Action]) -> None:
        if isinstance(event, ev.PodReady) and event.pod.name == f"{PORT}-scheduler-0":
            other.bind((event.address.partition(":")[0], FIRST_PORT + 2 + 1))
            other.listen()

    stage.handler.observers.append(look)


@dataclass
class Struck:
    """What became of the jobs on one stage, their failed attempts, and the losses of an undisturbed one."""

    jobs: dict[str, Job]
    failed: list[ev.EpochFailed]
    cut: list[Path]
    calm: tuple[float, ...]

    def failures(self, name: str) -> list[ev.EpochFailed]:
        return [event for event in self.failed if event.job == name]


@pytest.fixture(scope="module")
def struck(
    functions: None, lasting_template: tuple[Functions, Path], tmp_path_factory: pytest.TempPathFactory
) -> Struck:
    """One job after the other, each with its fault."""
    model = tmp_path_factory.mktemp("nan") / "model.py"
    text = (Path(__file__).parent / "model.py").read_text().replace("def loss()", "def finite()")
    model.write_text(text + "\n\ndef loss():\n    return lambda output, label: finite()(output, label) / 0\n")

    async def main() -> Struck:
        async with Stage.open() as stage:
            found = Struck({}, [], [], stage.calm)

            def note(event: ev.Event, _: Sequence[act.Action]) -> None:
                if isinstance(event, ev.EpochFailed):
                    found.failed.append(event)

            stage.handler.observers.append(note)
            damage(stage, found.cut)
            found.jobs[CUT] = await stage.run(CUT, probing=False)
            with socket.socket() as other:
                take(stage, other)
                found.jobs[PORT] = await stage.run(PORT, probing=False)
            found.jobs[NAN] = await stage.run(NAN, probing=False, model={"file": model.as_uri()})
            return found

    with pytest.MonkeyPatch.context() as patch:
        borrow_template(lasting_template, patch)
        return asyncio.run(main())


def test_a_checkpoint_that_is_cut_short_costs_the_epoch_that_wrote_it(struck: Struck) -> None:
    job, failed = struck.jobs[CUT], struck.failures(CUT)
    # Where the worker dies before its order comes, no member loses a peer: a new group is formed at once.
    reasons = [event.reason for event in failed if event.reason is not Reason.PEER_LOST]
    assert struck.cut and reasons == [Reason.CHECKPOINT_INVALID]
    # The failed attempts, and the fourth epoch once more.
    assert job.attempts.count == len(job.epochs) + len(failed) + 1
    assert not losses(job, len(failed) + 1, struck.calm)
    assert job.money.ledger.spent > sum(epoch.cost for epoch in job.epochs)


def test_a_port_that_is_taken_costs_an_attempt_and_not_the_job(struck: Struck) -> None:
    failed = struck.failures(PORT)
    assert [event.reason for event in failed] == [Reason.INTERNAL]
    assert "cannot listen" in failed[0].message and "in use" in failed[0].message
    assert not losses(struck.jobs[PORT], 1, struck.calm)


def test_a_loss_that_is_not_finite_fails_the_job_at_once_and_writes_no_checkpoint(struck: Struck) -> None:
    job = struck.jobs[NAN]
    assert (job.state, job.reason, job.attempts.count) == (State.FAILED, Reason.LOSS_NOT_FINITE, 1)
    assert "became" in job.message and job.progress.weights is None


def test_a_template_that_nobody_waits_for_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "training/serving").mkdir(parents=True)
    (tmp_path / "training/serving/template.py").write_text("import time\ntime.sleep(300)\n")
    for name in ("keeper.py", "linux.py"):
        shutil.copy(Functions.folder_only() / "training" / name, tmp_path / "training")

    def running() -> list[int]:
        return [pid for pid in descendants(os.getpid()) if str(tmp_path) in command(pid)]

    async def main() -> None:
        functions = Functions(tmp_path, Path(sys.executable))
        starting = asyncio.create_task(Runtime(functions).open())
        async with asyncio.timeout(60):
            while not running():
                await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not running()

    asyncio.run(main())


def test_a_platform_that_cannot_open_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    functions = Functions(Functions.folder_only(), Path(sys.executable))  # has no MXNet
    before = descendants(os.getpid())

    async def main() -> None:
        local = LocalPlatform(ROOMY, functions, lambda job: tmp_path / job, lambda: 0.0)
        with pytest.raises(PermanentError, match="cannot import MXNet"):
            await local.open(SimpleNamespace(pod_lost=lambda *_: None))

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
    assert not [pid for pid in descendants(os.getpid()) if pid not in before and "training" in command(pid)]


def test_a_loss_that_an_earlier_run_found_fails_no_later_one(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = {"lost": ""}, {"lost": "another end"}
    assert verdict([bad, good], 1) == 0 and verdict([bad], 1) == 0
    assert verdict([good, bad], 1) == 1
    assert "2 runs so far, 1 with losses\n1 of them now, 1 with losses" in capsys.readouterr().err
