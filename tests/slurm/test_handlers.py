"""A handler that is killed, started again elsewhere, or not alone: the programs are its own, and go on."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason
from coach.platforms.slurm.attempt import interval
from tests.docs.pages import ROOT
from tests.slurm.cluster import SlurmCluster
from tests.slurm.runs import LEARNS, Stopped, job, logged, train
from tests.slurm.test_faults import running
from tests.slurm.test_programs import paid

pytestmark = pytest.mark.timeout(180)


def command(folder: Path) -> subprocess.Popen[str]:
    """A command with a program; what it says, errors included, can be read."""
    (folder / "own.py").write_text(LEARNS)
    words = ["run", "--platform", "slurm", "--budget", "1coreh", "--target", "val_loss=0.05", "--resumes", "--no-live"]
    words += ["--cpu", "1", "--memory", "512Mi", "--name", "own", "--", "python3", "own.py"]
    env = {**os.environ, "COACH_HOME": str(folder / "home")}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [ROOT / ".venv/bin/coach", *words], cwd=folder, env=env, text=True, stdout=pipe, stderr=subprocess.STDOUT
    )


def test_a_program_goes_on_without_its_handler_and_is_taken_over(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = job(tmp_path, target=0.1)

    def stop(_handler: Any, event: Any) -> None:
        if isinstance(event, ev.EpochFinished) and event.report.at_epoch == 2:
            raise Stopped

    train(tmp_path, spec, then=stop)
    before = running(slurm)
    trained, records = train(tmp_path, spec)
    assert trained.reason is Reason.TARGET_REACHED
    assert logged(tmp_path).count("rank 0") == 1, "it was started once"
    assert [line.split()[0] for line in slurm.queue()][-1] == before
    reported = [epoch.report.at_epoch for epoch in trained.epochs]
    assert reported == sorted(set(reported)), "no report counts twice"
    paid(trained, records)


def test_a_larger_job_that_was_queued_ends_with_its_handler(slurm: SlurmCluster, tmp_path: Path) -> None:
    held = slurm.hold("--ntasks=4")
    spec = job(tmp_path, workers={"min": 1, "max": 2}, resumes=True, target=0.01, slurm={"queueAhead": True})
    queued: list[str] = []

    def stop(_handler: Any, event: Any) -> None:
        queued.extend(slurm.queue("pending", form="%i"))
        if queued and isinstance(event, ev.EpochFinished):
            raise Stopped

    train(tmp_path, spec, then=stop)
    assert f"{queued[0]} CANCELLED" in slurm.queue()
    slurm("scancel", held)
    trained, records = train(tmp_path, spec)
    assert trained.reason is Reason.TARGET_REACHED
    assert trained.gang.ahead is None and not slurm.queue("pending")
    paid(trained, records)


def test_a_command_that_was_killed_goes_on_with_its_program_when_it_is_typed_again(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    with command(tmp_path) as first:
        assert any("epoch 2" in line for line in first.stdout or ())
        first.kill()
    with command(tmp_path) as second:
        said = second.communicate()[0]
    assert second.returncode == 0, said
    assert "own: goes on" in said
    assert logged(tmp_path).count("rank 0") == 1, "it was started once"


def test_a_job_that_began_while_no_handler_ran_is_taken_as_it_is(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = job(tmp_path)

    def stop(_handler: Any, event: Any) -> None:
        if isinstance(event, ev.PodReady):
            raise Stopped

    train(tmp_path, spec, then=stop)  # it has begun, and nothing of it was followed
    (log,) = (tmp_path / "home/slurm").glob("*/rank-0.log")
    slurm.until(lambda: "epoch 3" in log.read_text())
    trained, records = train(tmp_path, spec)
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert logged(tmp_path).count("rank 0") == 1, "it was started once"
    assert [epoch.report.at_epoch for epoch in trained.epochs][:3] == [1, 2, 3], "what it reported meanwhile counts"
    paid(trained, records)


def test_a_job_that_waits_begins_with_the_command_that_was_typed_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    held = slurm.hold("--nodes=3", "--exclusive")
    with command(tmp_path) as first:
        slurm.until(lambda: slurm.queue("pending"))
        first.kill()
    (waits,) = slurm.queue("pending", form="%i")
    with command(tmp_path) as second:
        said = []
        for line in second.stdout or ():
            said.append(line)
            if f"Slurm job {waits}" in line:
                time.sleep(4 * interval())  # the second one looks at the queue meanwhile
                slurm("scancel", held)
    assert second.returncode == 0, said
    assert not [line for line in said if "attempt" in line]
    assert logged(tmp_path).count("rank 0") == 1, "it was started once"


def test_a_program_goes_on_when_its_new_handler_is_slow(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = job(tmp_path, target=0.1)

    def stop(_handler: Any, event: Any) -> None:
        if isinstance(event, ev.EpochFinished) and event.report.at_epoch == 2:
            raise Stopped

    def slow(handler: Any, _event: Any) -> None:
        if len(handler.jobs["own"].epochs) == 2:
            time.sleep(2 * interval())

    train(tmp_path, spec, then=stop)
    trained, records = train(tmp_path, spec, then=slow)
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert logged(tmp_path).count("rank 0") == 1, "it was started once"
    paid(trained, records)


def test_a_program_that_ended_while_no_handler_ran_has_its_last_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = LEARNS.replace("range(done + 1, 1000)", "range(done + 1, 7)")
    spec = job(tmp_path, script, target=0.18)

    def stop(_handler: Any, event: Any) -> None:
        if isinstance(event, ev.EpochFinished):
            raise Stopped

    train(tmp_path, spec, then=stop)
    slurm.until(lambda: not slurm.queue("running,completing"))
    trained, _ = train(tmp_path, spec)
    assert trained.reason is Reason.TARGET_REACHED, trained.message


def test_two_handlers_leave_each_other_alone(slurm: SlurmCluster, tmp_path: Path) -> None:
    other, found = tmp_path / "other", []
    other.mkdir()
    first = job(other, target=0.1)
    thread = threading.Thread(target=lambda: found.append(train(other, first)[0]))
    thread.start()
    trained, _ = train(tmp_path, job(tmp_path))
    thread.join()
    assert trained.reason is Reason.TARGET_REACHED
    assert found[0].reason is Reason.TARGET_REACHED
