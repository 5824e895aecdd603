"""Programs as jobs of a real Slurm, and the handler that pays for them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.money import Charge, to_money
from coach.handler.handler import Handler
from coach.handler.state.state_directory import StateDirectory
from coach.report.why import why
from coach.service.doctor import _slurm
from tests.slurm.cluster import SlurmCluster
from tests.slurm.runs import LEARNS, coach, job, logged, shim, train

pytestmark = pytest.mark.timeout(180)


def paid(job: Job, records: list[Any]) -> None:
    """The ledger is exact: what was settled is what was spent, and no cent is above the budget."""
    settled = [record for record in records if isinstance(record, act.Settle)]
    assert job.money.ledger.spent == sum(record.amount for record in settled)
    assert job.money.ledger.budget is None or job.money.ledger.spent <= job.money.ledger.budget
    assert job.money.ledger.reserved == 0


def test_the_command_runs_a_program_as_one_slurm_job_to_its_target(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEARNS)
    options = ["--budget", "1gpuh", "--target", "val_loss=0.25", "--gpus", "1", "--slurm", "--partition=urgent"]
    done = coach(tmp_path, "run", "--platform", "slurm", *options, "--no-live", "--", "python3", "train.py")
    assert done.returncode == 0, done.stderr
    assert re.search(r"val_loss 0\.\d+ meets 0\.25", done.stdout), done.stdout
    said = coach(tmp_path, "logs", "train").stdout
    assert "sees 0" in said, "the GPU that Slurm gave it"
    assert "leaves with a checkpoint" in said
    (at,) = slurm.queue(form="%j %P %C %b")[-1:]
    assert at.split()[:2] == ["train", "urgent"]
    (shown,) = json.loads(coach(tmp_path, "ps", "-o", "json").stdout)
    assert shown["currency"] == "gpuh"
    assert 0 < shown["spent"] < 60 / 3600, "hours of one GPU"


@pytest.mark.parametrize(("unit", "held"), [("coreh", 4), ("gpuh", 2)])
def test_hours_are_what_two_workers_hold_from_when_they_run_until_they_have_ended(
    slurm: SlurmCluster, tmp_path: Path, unit: str, held: int
) -> None:
    script = LEARNS.replace('    print("leaves', '    print("clock", time.time())\n    print("leaves')
    wanted = {"worker": {"cpu": "2", "memory": "512Mi", "gpu": 1}}
    spec = job(tmp_path, "import time; print('clock', time.time())\n" + script, resources=wanted, prices=None,
               workers={"min": 2, "max": 2}, budget={"amount": 1, "currency": unit})  # fmt: skip
    trained, records = train(tmp_path, spec)
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    ready = max(record.at for record in records if isinstance(record, ev.PodReady))
    (released,) = [record.at for record in records if isinstance(record, ev.PodsReleased)]
    settled = [record for record in records if isinstance(record, act.Settle)]
    assert trained.money.ledger.spent == pytest.approx(to_money(held * (released - ready) / 3600), abs=len(settled))
    for rank in range(2):  # by the workers' own clocks
        began, ended = map(float, re.findall(r"clock ([0-9.]+)", logged(tmp_path, rank)))
        assert began < ended < released, "nobody runs that is not paid"
        assert trained.money.ledger.spent > to_money(held * (ended - ready) / 3600)
    paid(trained, records)


def test_the_environment_is_that_of_the_shell_that_submits(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADEDMODULES", "cuda/12.4")
    monkeypatch.setenv("SBATCH_PARTITION", "urgent")
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet,mask_cpu:0x1")  # as inside another job
    shows = LEARNS + "    print([name for name in os.environ if name == 'SLURM_CPU_BIND'], env('LOADEDMODULES'))\n"
    train(tmp_path, job(tmp_path, shows))
    assert "[] cuda/12.4" in logged(tmp_path)
    assert slurm.queue(form="%P")[-1] == "urgent"


def test_a_site_that_exports_nothing_runs_programs_too(slurm: SlurmCluster, tmp_path: Path) -> None:
    trained, _ = train(tmp_path, job(tmp_path, slurm={"options": ["--export=NONE"]}))
    assert trained.reason is Reason.TARGET_REACHED, trained.message


def test_a_larger_job_is_not_asked_for_where_others_hold_the_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    held = slurm.hold("--ntasks=5")
    said: list[str] = []

    def then(handler: Handler, event: Any) -> None:
        if isinstance(event, ev.EpochFinished):
            said.extend(why(handler.jobs["own"], handler.jobs, (), handler.now()).lines)

    spec = job(tmp_path, workers={"min": 1, "max": 4}, resumes=True, target=0.06)
    trained, _ = train(tmp_path, spec, then=then)
    slurm("scancel", held)
    assert trained.reason is Reason.TARGET_REACHED
    assert {epoch.allocation.workers for epoch in trained.epochs} == {1}
    assert "no room" in " ".join(said)
    slurm.until(lambda: not slurm.queue("running,completing"))


def test_a_change_that_would_wait_in_the_queue_is_not_worth_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    held = slurm.hold("--nodelist=n0", "--time=300")
    said: list[str] = []

    def then(handler: Handler, event: Any) -> None:
        if isinstance(event, ev.EpochFinished):
            said.extend(why(handler.jobs["own"], handler.jobs, (), handler.now()).lines)

    spec = job(tmp_path, workers={"min": 1, "max": 3}, resumes=True, target=0.06, slurm={"options": ["--nodelist=n0"]})
    trained, records = train(tmp_path, spec, then=then)
    slurm("scancel", held)
    assert trained.reason is Reason.TARGET_REACHED
    assert {epoch.allocation.workers for epoch in trained.epochs} == {1}, "though other nodes are idle"
    waits = [record.seconds for record in records if isinstance(record, ev.WaitExpected)]
    assert 17000 < waits[0] <= 18000 and len(waits) == 1, "said once"
    assert re.search(r"queue is expected to let another worker wait (4h59m|5h00m)", " ".join(said))
    slurm.until(lambda: not slurm.queue("running,completing"))


def test_a_larger_job_is_queued_before_the_smaller_one_is_given_up(slurm: SlurmCluster, tmp_path: Path) -> None:
    held = slurm.hold("--ntasks=4")
    waited: list[int] = []

    def then(handler: Handler, event: Any) -> None:
        if isinstance(event, ev.EpochFinished) and handler.jobs["own"].gang.ahead is not None:
            waited.append(handler.jobs["own"].gang.held.workers)
            if len(waited) == 10:
                assert len(slurm.queue("pending")) == 1 and handler.jobs["own"].money.ledger.reserved > 0
                slurm("scancel", held)

    # It is soon done with two workers, and not before.
    soon = LEARNS.replace("{1 / epoch:.4f}", "{1 / epoch / (100 if env('WORLD_SIZE') == '2' else 1):.6f}")
    spec = job(tmp_path, soon, workers={"min": 1, "max": 2}, resumes=True, target=0.0005, slurm={"queueAhead": True})
    trained, records = train(tmp_path, spec, then=then)
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert len(waited) >= 10 and set(waited) == {1}, "it trains while the larger one waits"
    assert trained.epochs[-1].allocation.workers == 2
    (asked, taken) = (one for one in records if isinstance(one, act.QueueAhead))
    (there,) = (one.at for one in records if isinstance(one, ev.AheadStarted))
    (ahead,) = (one for one in records if isinstance(one, act.Settle) and one.charge is Charge.AHEAD)
    assert asked.at < there < taken.at == ahead.at
    assert ahead.amount == pytest.approx(to_money(0.002 * (taken.at - there)), abs=2)
    assert ahead.amount < asked.reservation
    starts = [line for line in logged(tmp_path).splitlines() if "rank 0 of" in line]
    assert [re.search(r"of (\d)", line)[1] for line in starts] == ["1", "2"]  # type: ignore[index]
    assert logged(tmp_path).count("leaves with a checkpoint") == 2, "one after the other"
    assert not slurm.queue("pending,running")
    paid(trained, records)


def test_the_wait_in_the_queue_is_part_of_what_a_change_costs(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim(tmp_path / "bin", "sbatch", '[ $COUNT = 0 ] || sleep 3\nexec "$REAL" "$@"\n', monkeypatch)
    trained, records = train(tmp_path, job(tmp_path, workers={"min": 1, "max": 2}, resumes=True, target=0.05))
    changed = [one.report for one in records if isinstance(one, ev.EpochFinished) and one.report.stop_seconds]
    assert changed[0].stop_seconds >= 3.0
    paid(trained, records)


def test_slurm_is_asked_once_for_all_jobs_and_submissions_come_one_at_a_time(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = tmp_path / "bin", tmp_path / "asked"
    two = f"mkdir {tmp_path}/one || touch {tmp_path}/two; "
    shim(folder, "sbatch", f'{two}sleep 0.5; "$REAL" "$@"; rmdir {tmp_path}/one\n', monkeypatch)
    shim(folder, "squeue", f'echo "$@" >> {asked}\nexec "$REAL" "$@"\n', monkeypatch)
    monkeypatch.setenv("COACH_SLURM_INTERVAL", "2")
    began = time.monotonic()
    train(tmp_path, *(job(tmp_path, name=name) for name in ("own", "more", "third")))
    assert not (tmp_path / "two").exists()
    looks = asked.read_text().splitlines()
    assert all("--me" in look or "PENDING" in look for look in looks)
    assert 0 < len(looks) <= 2 + 1.25 * (time.monotonic() - began) / 2, "not one for each of three jobs"


def test_the_doctor_says_what_the_cluster_has_and_what_accounts_have_left(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim(tmp_path / "bin", "sshare", "echo 'lab|123456|gres/gpu=60000|gres/gpu=120'\n", monkeypatch)
    said = " ".join(one.found for one in _slurm(StateDirectory(tmp_path)))
    for words in ("3, 0 of them down or drained; 6 GPUs", "GrpTRESMins gres/gpu=60000", "CPU=1.0,Mem=0.25G"):
        assert words in said


def test_several_workers_get_the_variables_of_torchrun_and_a_gpu_each(slurm: SlurmCluster, tmp_path: Path) -> None:
    wanted = {"worker": {"cpu": "2", "memory": "512Mi", "gpu": 1}}
    trained, _ = train(tmp_path, job(tmp_path, workers={"min": 3, "max": 3}, resources=wanted))
    assert trained.reason is Reason.TARGET_REACHED
    for rank in range(3):
        assert re.search(rf"rank {rank} of 3 at \S+ sees 0", logged(tmp_path, rank))


def test_a_command_that_is_not_there_is_said(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = job(tmp_path)
    program = {"command": ["no-such-program"], "directory": str(tmp_path), "metrics": {"val_loss": "(x)"}}
    trained, _ = train(tmp_path, job(tmp_path, program=program))
    assert trained.reason is Reason.PROGRAM_FAILED
    assert "cannot start no-such-program: No such file" in trained.message
    assert spec.name == trained.name


def test_a_job_that_slurm_refuses_is_told_in_its_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    trained, _ = train(tmp_path, job(tmp_path, slurm={"partition": "nowhere"}))
    assert trained.reason is Reason.POD_REFUSED
    assert trained.message.startswith("sbatch: invalid partition specified: nowhere Batch job submission failed")
