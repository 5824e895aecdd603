"""Programs whose number of workers changes while they train: real processes, started again from their checkpoints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.platforms.local import pytorch_runtime
from coach.report.history import history
from coach.report.why import why
from tests.platforms.local.test_programs import job, nothing_is_left, paid, running, train

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
__all__ = ["nothing_is_left"]

#: Two workers are 1.9 times as fast as one, and a third gains nothing. Each says what it was started with.
SHARES = """
import json, os, signal, sys, time
from pathlib import Path
names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
names += ["MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"]
checkpoint = Path(os.environ["COACH_CHECKPOINTS"], "epoch")
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
print(json.dumps({name: os.environ[name] for name in names} | {"from": done}), flush=True)
def leave(*_):
    print("SIGTERM", flush=True)
    time.sleep(0.2)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
for n in range(done, 1000):
    time.sleep(1.5 / min(world, 1.9))
    if rank == "0":
        checkpoint.write_text(str(n + 1))
        print(f"epoch {n}: val loss: {1 / (n + 1):.4f}", flush=True)
"""


def changing(folder: Path, script: str = SHARES, **spec: Any) -> TrainingJob:
    """A job of one to three workers that runs `script`, until a loss of 1/14."""
    program = {"command": [sys.executable, "program.py"], "directory": str(folder), "resumes": True}
    program["metrics"] = {"val_loss": "val loss: (\\S+)"}
    fields: dict[str, Any] = {
        "program": program,
        "workers": {"min": 1, "max": 3},
        "target": {"metric": "val_loss", "value": 0.072, "epochsInARow": 1},
    }
    return job(folder, script, **fields | spec)


def said(folder: Path, worker: int) -> list[str]:
    """What a worker printed."""
    text = (folder / f"logs/own-worker-{worker}.log").read_text()
    return [json.loads(line)["message"] for line in text.splitlines()]


def groups(trained: Job) -> list[tuple[str, Allocation]]:
    """Its groups and their allocations, in order."""
    return list(dict.fromkeys((epoch.group, epoch.allocation) for epoch in trained.epochs))


def keeping(then: list[list[str]]) -> Callable[[Handler], None]:
    """Keep what `why` says after each event."""

    def note(handler: Handler) -> None:
        if "own" in handler.jobs and handler.jobs["own"].gang.pods:
            then.append(why(handler.jobs["own"], handler.jobs, (), handler.now()).lines)

    return note


class Changed(NamedTuple):
    """A job that ran to its end, in this folder, and what `why` said meanwhile."""

    folder: Path
    trained: Job
    records: list[Any]
    answers: list[list[str]]


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Changed:
    """SHARES with one to three workers."""
    folder, answers = tmp_path_factory.mktemp("changed"), list[list[str]]()
    found = Changed(folder, *train(folder, changing(folder), keeping(answers)), answers)
    assert not running(folder)
    return found


def test_a_program_that_resumes_gets_the_workers_that_pay_for_their_restart(changed: Changed) -> None:
    folder, trained, records, answers = changed
    assert trained.reason is Reason.TARGET_REACHED
    paid(trained, records)
    assert groups(trained)[0] == ("own.g1", Allocation(1, 0)) and len(groups(trained)) >= 2
    assert trained.epochs[-1].allocation.workers > 1
    starts = [json.loads(line) for line in said(folder, 0) if line.startswith("{")]
    assert [start["TORCHELASTIC_RESTART_COUNT"] for start in starts] == [str(n) for n in range(len(starts))]
    assert starts[0] | {"MASTER_PORT": ""} == {
        **{"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "ROLE_RANK": "0", "MASTER_ADDR": "127.0.0.1"},
        **{"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": ""},
        **{"TORCHELASTIC_RUN_ID": "own", "TORCHELASTIC_RESTART_COUNT": "0", "from": 0},
    }
    for start, (group, allocation) in zip(starts, groups(trained), strict=True):
        assert start["WORLD_SIZE"] == start["LOCAL_WORLD_SIZE"] == str(allocation.workers)
        before = [epoch for epoch in trained.epochs if epoch.group < group]
        assert start["from"] == len(before), "no report is lost, none counts twice"
    assert said(folder, 0).count("SIGTERM") == len(starts), "each group ends in its own way"
    stopped = [epoch for epoch in trained.epochs if epoch.report.stop_seconds]
    assert [epoch.group for epoch in stopped] == [group for group, _ in groups(trained)[1:]]
    assert all(epoch.report.stop_seconds >= 0.2 and epoch.starts for epoch in stopped)
    assert trained.times.restart >= 0.2, "what a change takes is known from SIGTERM on"
    events = [line.text for line in history(records)]
    many = groups(trained)[1][1].workers
    assert any(f"a batch a worker: {many} times as many samples a step as with 1 worker" in text for text in events)
    assert any("from SIGTERM to the first report" in text for text in events)
    assert any("A change of its workers starts it again, and takes" in line for answer in answers for line in answer)


def test_a_change_waits_for_a_second_report_which_measures_the_workers(changed: Changed) -> None:
    _, trained, records, _ = changed
    for group, _ in groups(trained)[:-1]:
        assert sum(epoch.group == group for epoch in trained.epochs) >= 2
    decided = [record for record in records if isinstance(record, act.SetAllocation)]
    assert any(step.reason.endswith("until a report measures their speed") for one in decided for step in one.why)
    finished = [record for record in records if isinstance(record, ev.EpochFinished)]
    assert len(finished) == len(trained.epochs)
    alone = [epoch for epoch in trained.epochs if epoch.group == "own.g1"]
    measured = [point.epochs_per_second for point in trained.speed_points() if point.workers == 1]
    assert measured[: len(alone) - 1] == [epoch.epochs_per_second for epoch in alone[1:]], "without the start"


def test_a_change_that_takes_longer_than_it_saves_is_not_made(tmp_path: Path) -> None:
    """It takes 4 s to start, and a second worker would save a second of the whole job."""
    slow = SHARES.replace("for n in range(done", "time.sleep(4)\nfor n in range(done").replace("1.5 / min", "0.4 / min")
    target = {"metric": "val_loss", "value": 0.1, "epochsInARow": 1}
    trained, records = train(tmp_path, changing(tmp_path, slow, target=target, maxEpochs=11))
    assert trained.reason is Reason.TARGET_REACHED
    assert groups(trained) == [("own.g1", Allocation(1, 0))]
    paid(trained, records)


@pytest.mark.pytorch
def test_a_torchrun_inside_the_command_takes_its_numbers_from_coach(tmp_path: Path) -> None:
    script = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
checkpoint = Path(os.environ["COACH_CHECKPOINTS"], "epoch")
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
for n in range(done, 1000):
    time.sleep(6 / world)
    seen = torch.ones(1)
    dist.all_reduce(seen)
    if rank == 0:
        checkpoint.write_text(str(n + 1))
        print(f"{int(seen)} of {world}, val loss: {1 / (n + 1):.4f}", flush=True)
"""
    python = str(pytorch_runtime.torch().python)
    program = {
        "command": [python, "-m", "torch.distributed.run", "program.py"],
        "directory": str(tmp_path),
        "resumes": True,
        "metrics": {"val_loss": "val loss: (\\S+)"},
        # Under Python 3.11 the torchrun of PyTorch 1.13 does not understand its own defaults of these.
        "env": {"PET_REDIRECTS": "1", "PET_TEE": "1", "PET_LOG_DIR": str(tmp_path)},
    }
    target = {"metric": "val_loss", "value": 0.15, "epochsInARow": 1}
    trained, records = train(
        tmp_path, changing(tmp_path, script, program=program, target=target, workers={"min": 1, "max": 2})
    )
    assert trained.reason is Reason.TARGET_REACHED
    paid(trained, records)
    both = [line for line in said(tmp_path, 0) if "val loss" in line]
    assert "1 of 1" in both[0] and "2 of 2" in both[-1]


#: Two workers train; in the third epoch of a first start LAST and FIRST happen to the last and the first of them.
TWO = """
import os, sys, time
from pathlib import Path
checkpoint, rank = Path(os.environ["COACH_CHECKPOINTS"], "epoch"), os.environ["RANK"]
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("from", done, flush=True)
checkpoint.with_name(f"began-{rank}-{done}").touch()
while not all(checkpoint.with_name(f"began-{each}-{done}").exists() for each in (0, 1)):
    time.sleep(0.01)
for n in range(done, 1000):
    until = time.monotonic() + 0.7
    if n == 2 and done == 0:
        while not checkpoint.with_name("said-1").exists():
            time.sleep(0.01)
        if rank == "1":
            LAST
        FIRST
    while time.monotonic() < until:
        WORK
    if rank == "0":
        checkpoint.write_text(str(n + 1))
        print(f"epoch {n}: val loss: {1 / (n + 1):.4f}", flush=True)
        checkpoint.with_name(f"said-{n}").touch()
"""
#: As in a collective whose peer does not come.
WAIT = "time.sleep(600)"


def of_two(folder: Path, first: str, last: str, work: str = "time.sleep(0.01)") -> TrainingJob:
    """A job of two workers that runs TWO."""
    script = TWO.replace("FIRST", first).replace("LAST", last).replace("WORK", work)
    target = {"metric": "val_loss", "value": 0.15, "epochsInARow": 1}
    return changing(folder, script, workers={"min": 2, "max": 2}, target=target)


def froms(folder: Path, worker: int) -> list[str]:
    """The epochs that a worker started from."""
    return [line.split()[1] for line in said(folder, worker) if line.startswith("from")]


@pytest.mark.parametrize("last", ["os.kill(os.getpid(), 9)", "sys.exit(3)"])
def test_a_rank_that_dies_ends_the_others_and_the_group_goes_on_from_its_checkpoint(tmp_path: Path, last: str) -> None:
    trained, records = train(tmp_path, of_two(tmp_path, WAIT, last))
    assert trained.reason is Reason.TARGET_REACHED
    assert froms(tmp_path, 0) == froms(tmp_path, 1) == ["0", "2"]
    [failed] = [record for record in records if isinstance(record, ev.EpochFailed)]
    assert failed.reason is Reason.PROGRAM_FAILED and failed.message.startswith("worker 1: ")
    assert len(trained.epochs) == 7, "no report is lost, none counts twice"
    paid(trained, records)


def test_a_group_that_hangs_is_told_from_one_that_works_and_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its third epoch computes for 6 s, longer than all may be idle; in the second start's third all wait."""
    monkeypatch.setattr("coach.core.lifecycle.stall_timeout.UNKNOWN_SECONDS", 3.0)
    monkeypatch.setattr("coach.core.lifecycle.stall_timeout.IDLE_FACTOR", 0.0)
    slow, work = "until += 6 if rank == '0' else 0", "n == 2 or time.sleep(0.01)"
    trained, _ = train(tmp_path, of_two(tmp_path, slow, "pass", work))
    assert (trained.reason, trained.gang.groups) == (Reason.TARGET_REACHED, 1), trained.message
    (tmp_path / "journal.db").unlink()
    for file in (tmp_path / "checkpoints").iterdir():
        file.unlink()
    trained, records = train(tmp_path, of_two(tmp_path, WAIT, WAIT, work))
    assert trained.reason is Reason.TARGET_REACHED
    [failed] = [record for record in records if isinstance(record, ev.EpochFailed)]
    assert failed.reason is Reason.STALLED and "none of its processes computed, read or wrote" in failed.message
    assert froms(tmp_path, 1) == ["0", "0", "2"]
    paid(trained, records)


def test_a_stall_timeout_of_the_job_file_looks_at_reports_alone(tmp_path: Path) -> None:
    script = "while True: pass"
    program = {"command": [sys.executable, "program.py"], "directory": str(tmp_path), "stallTimeout": 1}
    trained, records = train(tmp_path, job(tmp_path, script, program=program))
    assert trained.reason is Reason.STALLED and trained.state.value == "Failed"
    assert trained.message.startswith("no report in ") and trained.attempts.count == 1
    paid(trained, records)


def test_a_program_that_saves_after_it_reports_loses_nothing_at_a_change(tmp_path: Path) -> None:
    script = SHARES.replace("signal.signal(signal.SIGTERM, leave)", "").replace(
        "        checkpoint.write_text(str(n + 1))\n", ""
    )
    script += "        time.sleep(0.3)\n        checkpoint.write_text(str(n + 1))\n"
    trained, records = train(tmp_path, changing(tmp_path, script))
    assert trained.reason is Reason.TARGET_REACHED and len(groups(trained)) >= 2
    starts = [json.loads(line)["from"] for line in said(tmp_path, 0) if line.startswith("{")]
    assert starts == [sum(epoch.group < group for epoch in trained.epochs) for group, _ in groups(trained)]
    assert (tmp_path / "checkpoints/epoch").read_text() == str(len(trained.epochs)), "nor at its end"
    paid(trained, records)
