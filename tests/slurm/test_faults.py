"""What goes wrong on clusters: a program is not lost, not paid twice, and nothing is left in the queue."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason
from tests.slurm.cluster import NODES, SlurmCluster
from tests.slurm.runs import LEARNS, job, logged, shim, train
from tests.slurm.test_programs import paid

pytestmark = pytest.mark.timeout(180)


def once(event: type[Any], act: Callable[[], object], skip: int = 0) -> Callable[[Any, Any], None]:
    """Does something in a thread when an event has come for the first time, after `skip` others of its kind."""
    seen: list[Any] = []

    def then(_handler: Any, found: Any) -> None:
        if isinstance(found, event):
            seen.append(found)
            if len(seen) == skip + 1:
                threading.Thread(target=act).start()

    return then


def running(cluster: SlurmCluster) -> str:
    """The id of the job that runs."""
    (found,) = cluster.queue("running", "%i")
    return found


def test_one_empty_answer_of_squeue_ends_nothing(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim(tmp_path / "bin", "squeue", '[ $((COUNT % 2)) = 1 ] && exit 0\nexec "$REAL" "$@"\n', monkeypatch)
    trained, _ = train(tmp_path, job(tmp_path))
    assert trained.reason is Reason.TARGET_REACHED
    assert logged(tmp_path).count("rank 0") == 1


def test_a_job_that_sbatch_accepted_without_saying_so_is_not_submitted_twice(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1\n'
    script = f'[ $COUNT = 0 ] && {{ "$REAL" "$@" >/dev/null; {lost}}}\nexec "$REAL" "$@"\n'
    shim(tmp_path / "bin", "sbatch", script, monkeypatch)
    before = len(slurm.queue())
    trained, records = train(tmp_path, job(tmp_path))
    assert trained.reason is Reason.TARGET_REACHED
    assert len(slurm.queue()) == before + 1
    paid(trained, records)


def test_a_job_that_sbatch_did_not_accept_is_submitted_again(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 'echo "sbatch: error: Batch job submission failed: Unable to contact slurm controller" >&2; exit 1'
    shim(tmp_path / "bin", "sbatch", f'[ $COUNT = 0 ] && {{ {lost}; }}\nexec "$REAL" "$@"\n', monkeypatch)
    said: list[str] = []
    trained, _ = train(tmp_path, job(tmp_path), then=lambda _, event: said.append(getattr(event, "message", "")))
    assert trained.reason is Reason.TARGET_REACHED
    assert any("Slurm does not answer; waiting for it" in words for words in said)


def test_jobs_of_others_are_left_alone(slurm: SlurmCluster, tmp_path: Path) -> None:
    other = slurm("sbatch", "--parsable", "--job-name=own", "--comment=coach:another:own-1", "--output=/dev/null",
                  "--mem-per-cpu=10", "--wrap=sleep 300").strip()  # fmt: skip
    trained, _ = train(tmp_path, job(tmp_path))
    assert trained.reason is Reason.TARGET_REACHED
    assert f"{other} RUNNING" in slurm.queue()
    slurm("scancel", other)
    slurm.until(lambda: not slurm.queue("running,completing"))


def test_a_preempted_program_goes_on_from_its_checkpoint(slurm: SlurmCluster, tmp_path: Path) -> None:
    def preempt() -> None:
        slurm("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")

    spec = job(tmp_path, resumes=True, target=0.1)
    trained, records = train(tmp_path, spec, then=once(ev.EpochFinished, preempt))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    failed = [record for record in records if isinstance(record, ev.EpochFailed)]
    assert [one.reason for one in failed[:1]] == [Reason.DISRUPTED], failed
    assert "PREEMPTED" in failed[0].message
    assert logged(tmp_path).count("rank 0") >= 2
    paid(trained, records)


def test_scancel_ends_the_job_and_says_so(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = job(tmp_path, target=0.001)
    trained, _ = train(tmp_path, spec, then=once(ev.EpochFinished, lambda: slurm("scancel", running(slurm))))
    assert (trained.state.value, trained.reason) == ("Failed", Reason.CANCELLED_OUTSIDE)
    assert "by scancel" in trained.message
    assert "leaves with a checkpoint" in logged(tmp_path)


def test_scancel_ends_a_job_that_resumes_too(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = job(tmp_path, target=0.001, resumes=True)
    trained, _ = train(tmp_path, spec, then=once(ev.EpochFinished, lambda: slurm("scancel", running(slurm))))
    assert trained.reason is Reason.CANCELLED_OUTSIDE
    assert logged(tmp_path).count("rank 0") == 1


def test_scancel_ends_a_job_that_waits(slurm: SlurmCluster, tmp_path: Path) -> None:
    held = slurm.hold("--nodes=3", "--exclusive")
    said: list[str] = []

    def then(_handler: Any, event: Any) -> None:
        if isinstance(event, ev.PodPending):
            said.append(event.message)
            slurm("scancel", re.findall(r"Slurm job (\d+)", event.message)[0])

    trained, _ = train(tmp_path, job(tmp_path), then=then)
    slurm("scancel", held)
    assert trained.reason is Reason.CANCELLED_OUTSIDE
    assert "before it began, by scancel" in trained.message
    assert re.search(r"no nodes are free for it yet \(Resources\)", said[0])
    slurm.until(lambda: not slurm.queue("running,completing"))


def test_a_job_that_a_node_cannot_start_is_not_one_that_a_person_cancelled(slurm: SlurmCluster, tmp_path: Path) -> None:
    spools = {slurm.folder / f"spool-{node}": slurm.folder / f"full-{node}" for node in NODES}

    def then(_handler: Any, event: Any) -> None:
        if isinstance(event, ev.PodLost):
            for spool, away in spools.items():
                away.rename(spool)

    for spool, away in spools.items():
        spool.rename(away)
    trained, records = train(tmp_path, job(tmp_path), then=then)
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    (lost,) = [record for record in records if isinstance(record, ev.PodLost)]
    assert re.search(r"ended before its program began \(LAUNCH_FAILED on n\d\)", lost.message)


def test_too_much_memory_is_said_although_slurm_says_exit_code_0(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = "import time\nprint('val loss: 0.9', flush=True)\nkeep = b'x' * (900 << 20)\ntime.sleep(60)\n"
    trained, _ = train(tmp_path, job(tmp_path, script))
    assert trained.reason is Reason.OUT_OF_MEMORY, trained.message
    assert "resources.worker.memory" in trained.message


def test_a_program_goes_on_while_the_controller_is_away(slurm: SlurmCluster, tmp_path: Path) -> None:
    reports: list[int] = []

    def away() -> None:
        slurm.kill("ctld", signal.SIGTERM)
        before = len(reports)
        slurm.until(lambda: len(reports) >= before + 4)
        slurm.start_controller()

    first = once(ev.EpochFinished, away)

    def then(handler: Any, event: Any) -> None:
        if isinstance(event, ev.EpochFinished):
            reports.append(event.report.at_epoch)
        first(handler, event)

    trained, records = train(tmp_path, job(tmp_path, target=0.04), then=then)
    assert trained.reason is Reason.TARGET_REACHED
    assert logged(tmp_path).count("rank 0") == 1
    paid(trained, records)


def test_a_failed_node_costs_the_time_since_the_last_checkpoint(slurm: SlurmCluster, tmp_path: Path) -> None:
    def fail() -> None:
        node = slurm.queue("running", "%N")[0]
        slurm.kill(node)
        slurm.kill_steps(node)

    spec = job(tmp_path, resumes=True, target=0.1)
    trained, records = train(tmp_path, spec, then=once(ev.EpochFinished, fail))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert logged(tmp_path).count("rank 0") == 2
    paid(trained, records)


def test_a_node_that_is_there_again_before_slurm_misses_it_costs_no_more_than_one_that_failed(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COACH_SLURM_SILENCE", "10")

    def fail() -> None:
        (nodes,) = slurm.queue("running", "%N")
        node = slurm("scontrol", "show", "hostnames", nodes).split()[0]
        slurm.kill(node)
        slurm.kill_steps(node)
        slurm.restart()

    wanted = {"worker": {"cpu": "2", "memory": "512Mi"}}
    spec = job(tmp_path, resources=wanted, workers={"min": 2, "max": 2}, resumes=True, target=0.05)
    trained, records = train(tmp_path, spec, then=once(ev.EpochFinished, fail))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    failed = [record for record in records if isinstance(record, ev.EpochFailed)]
    assert [one.reason for one in failed] == [Reason.DISRUPTED], failed
    assert "nothing is seen of it any more" in failed[0].message
    assert logged(tmp_path, 1).count("rank 1") == 2
    paid(trained, records)


@pytest.mark.parametrize("script", [b"rank.py", b"own.py"], ids=["what it runs under", "its program"])
def test_a_killed_worker_ends_the_others_and_the_program_resumes(
    slurm: SlurmCluster, tmp_path: Path, script: bytes
) -> None:
    def kill() -> None:
        for entry in Path("/proc").glob("[0-9]*"):
            line = (entry / "cmdline").read_bytes() if (entry / "cmdline").exists() else b""
            env = (entry / "environ").read_bytes() if line.endswith(script + b"\0") else b""
            if b"SLURM_PROCID=1\0" in env and str(tmp_path).encode() in line + env:
                os.kill(int(entry.name), signal.SIGKILL)

    spec = job(tmp_path, workers={"min": 2, "max": 2}, resumes=True, target=0.1)
    trained, records = train(tmp_path, spec, then=once(ev.EpochFinished, kill))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert logged(tmp_path, 1).count("rank 1") == 2
    failed = [record.reason for record in records if isinstance(record, ev.EpochFailed)]
    assert Reason.DEADLINE_EXCEEDED not in failed, "it was noticed before the money ended"
    paid(trained, records)


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace_period(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = LEARNS.replace("signal.signal(signal.SIGTERM, leave)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    began = time.monotonic()
    trained, _ = train(tmp_path, job(tmp_path, script, target=0.5, grace=1))
    assert trained.reason is Reason.TARGET_REACHED
    assert time.monotonic() - began < 60
    slurm.until(lambda: not slurm.queue("running,completing"))


@pytest.mark.full
def test_a_program_leaves_in_time_for_the_limit_of_its_partition_and_goes_on(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    script = LEARNS.replace("time.sleep(0.3)", "time.sleep(1)")
    trained, records = train(tmp_path, job(tmp_path, script, resumes=True, target=0.0125, slurm={"partition": "short"}))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    failed = [record for record in records if isinstance(record, ev.EpochFailed)]
    assert [one.reason for one in failed] == [Reason.DISRUPTED]
    assert "time limit" in failed[0].message
    assert "TIMEOUT" not in " ".join(slurm.queue())
    paid(trained, records)
