"""Programs whose group changes in the same process: `coach_program.group_changed()`, with real processes."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.local import program_group, pytorch_runtime
from coach.platforms.local.program_group import Group, listens
from coach.report.history import history
from tests.platforms.local.test_program_changes import changing, keeping, said
from tests.platforms.local.test_programs import nothing_is_left, paid, train
from tests.platforms.program_metrics.test_coach_program import MODULE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
__all__ = ["nothing_is_left"]

#: Two workers are slower than one, and the target is reached when one goes on alone after that. They say when their
#: group changed, and from which epoch on.
PROGRAM = """
import json, os, signal, socket, sys, time
from pathlib import Path
START
import coach_program
checkpoint, listening, n = Path(os.environ["COACH_CHECKPOINTS"], "epoch"), None, 0
two = checkpoint.with_name("two")
while n < 1000:
    if coach_program.group_changed():
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        n = int(checkpoint.read_text()) if checkpoint.exists() else 0
        if listening is not None:
            listening.close()
        listening = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))) if rank == 0 else None
        print(json.dumps({"pid": os.getpid(), "rank": rank, "world": world, "from": n}), flush=True)
    LOOP
    time.sleep(0.6 if world == 1 else 0.9)
    n += 1
    if rank == 0:
        checkpoint.write_text(str(n))
        if world == 2:
            two.touch()
        coach_program.report(val_loss=0.001 if world == 1 and two.exists() else 1 / n, epoch=n)
"""


def regrouping(folder: Path, start: str = "", loop: str = "", **spec: Any) -> TrainingJob:
    """A job of one or two workers that runs PROGRAM."""
    (folder / "coach_program.py").write_bytes(MODULE.read_bytes())
    program = {"command": [sys.executable, "program.py"], "directory": str(folder), "resumes": True}
    target = {"metric": "val_loss", "value": 0.01, "epochsInARow": 1}
    fields = {"program": program, "workers": {"min": 1, "max": 2}, "target": target}
    return changing(folder, PROGRAM.replace("START", start).replace("LOOP", loop or "pass"), **fields | spec)


def groups_of(folder: Path, worker: int) -> list[dict[str, int]]:
    """What a worker said of its groups."""
    return [json.loads(line) for line in said(folder, worker) if line.startswith('{"pid"')]


def each_epoch_once(trained: Job) -> None:
    """No epoch is lost, and none counts twice; reports that come while a worker leaves are one."""
    reported = [epoch.report.at_epoch or 0.0 for epoch in trained.epochs]
    assert reported == sorted(set(reported)), reported
    assert trained.epochs_trained == pytest.approx(reported[-1]), reported


def test_workers_come_and_leave_in_the_same_process(tmp_path: Path) -> None:
    answers: list[list[str]] = []
    trained, records = train(tmp_path, regrouping(tmp_path), keeping(answers))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    paid(trained, records)
    each_epoch_once(trained)
    assert {epoch.group for epoch in trained.epochs} == {"own.g1"} and trained.gang.groups == 1
    first, joined, alone = groups_of(tmp_path, 0)
    assert len({first["pid"], joined["pid"], alone["pid"]}) == 1, "the first worker is one process all the time"
    assert [first["world"], joined["world"], alone["world"]] == [1, 2, 1]
    [second] = groups_of(tmp_path, 1)
    assert (second["rank"], second["world"], second["from"]) == (1, 2, joined["from"]), "it waited to be taken in"
    two = [epoch for epoch in trained.epochs if epoch.allocation == Allocation(2, 0)]
    late = [epoch for epoch in two if epoch.report.workers_lost]
    assert late == two[: len(late)], "until the new worker has come, reports say nothing about the speed of two"
    began, measured = two[len(late) :][:2]
    assert began.starts and not measured.starts
    assert {point.epochs_per_second for point in trained.speed_points() if point.workers == 2} == {
        epoch.epochs_per_second for epoch in two if not (epoch.report.workers_lost or epoch.starts)
    }
    assert not any(isinstance(record, ev.EpochFailed) for record in records[:-3]), "nothing was ended for it"
    events = [line.text for line in history(records)]
    assert sum(text.startswith("changed workers in the same process") for text in events) == 2
    assert any("forms its group anew in the same process" in line for answer in answers for line in answer)
    assert trained.times.restart < 5.0, "what the first interval of a group takes longer than the next"


#: What happens once to a worker that comes, to the first worker as one comes, and to a worker that is to leave.
DEATHS = {
    "a new worker before it is in the group": (
        "if os.environ['RANK'] == '1' and not os.path.exists('struck'):\n"
        "    open('struck', 'w').close()\n"
        "    os.kill(os.getpid(), 9)",
        "pass",
    ),
    "a new worker in its first step": (
        "",
        "if rank == 1 and not os.path.exists('struck'):\n"
        "        open('struck', 'w').close()\n"
        "        os.kill(os.getpid(), 9)",
    ),
    "the first worker in the new group": (
        "",
        "if rank == 0 and world == 2 and not os.path.exists('struck'):\n"
        "        open('struck', 'w').close()\n"
        "        os.kill(os.getpid(), 9)",
    ),
}


@pytest.mark.parametrize(
    "who", [pytest.param(who, marks=[] if "before" in who else pytest.mark.full) for who in DEATHS]
)
def test_a_death_in_the_middle_of_a_change_starts_the_group_from_its_checkpoint(tmp_path: Path, who: str) -> None:
    trained, records = train(tmp_path, regrouping(tmp_path, *DEATHS[who]))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert (tmp_path / "struck").exists() and trained.gang.groups == 2
    [failed] = [record for record in records if isinstance(record, ev.EpochFailed)][:1]
    assert failed.reason is Reason.PROGRAM_FAILED, failed.message
    each_epoch_once(trained)
    paid(trained, records)


def test_a_death_after_the_decision_to_leave_and_before_the_call_is_no_end_of_the_program(tmp_path: Path) -> None:
    """The others were ended for it: that they have ended is not the program's end."""
    loop = """if rank == 1:
        turn = globals().get("turn", 0) + 1
        if turn == 2 and not os.path.exists("struck"):
            time.sleep(2.5)  # the first worker's report, and what follows from it, come meanwhile
            open("struck", "w").close()
            os.kill(os.getpid(), 9)
"""
    trained, records = train(tmp_path, regrouping(tmp_path, loop=loop))
    assert (tmp_path / "struck").exists()
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    each_epoch_once(trained)
    paid(trained, records)


@pytest.mark.full
def test_a_worker_that_does_not_call_in_its_grace_period_costs_a_restart(tmp_path: Path) -> None:
    """With two workers it reports long before its next call."""
    loop = """if world == 2:
        n += 1
        if rank == 0:
            checkpoint.write_text(str(n))
            two.touch()
            coach_program.report(val_loss=1 / n, epoch=n)
        time.sleep(4)
        continue
"""
    trained, records = train(tmp_path, regrouping(tmp_path, loop=loop, gracePeriod=1))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert len({group["pid"] for group in groups_of(tmp_path, 0)}) == 2
    released = [record for record in records if isinstance(record, act.ReleasePods)]
    assert len(released[0].pods) == 1
    each_epoch_once(trained)
    paid(trained, records)


#: Each epoch trains all samples once: every worker sums the numbers of its own, and says which they were.
TORCH = """
import json, os, time
from pathlib import Path
import coach_program
import torch
import torch.distributed as dist
SAMPLES = 40
weight, done, groups = torch.zeros(1, dtype=torch.float64), 0, 0
checkpoint = Path(os.environ["COACH_CHECKPOINTS"], "weight")
if checkpoint.exists():
    done, weight = torch.load(checkpoint)
while done < 1000:
    if coach_program.group_changed():
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        state = [done]
        dist.broadcast_object_list(state)
        done = state[0]
        dist.broadcast(weight, 0)
        groups += 1
        print(json.dumps({"pid": os.getpid(), "rank": rank, "world": world, "from": done}), flush=True)
    mine = list(range(rank, SAMPLES, world))
    step = torch.tensor([float(sum(mine))], dtype=torch.float64)
    dist.all_reduce(step)
    weight += step
    time.sleep(0.6 if world == 1 else 0.9)
    print("trained", done, *mine, flush=True)
    done += 1
    if rank == 0:
        torch.save((done, weight), checkpoint)
        coach_program.report(val_loss=0.001 if groups == 3 else 1 / done, sum=float(weight), epoch=done)
"""


@pytest.mark.pytorch
def test_a_gloo_group_of_pytorch_changes_and_trains_each_sample_once(tmp_path: Path) -> None:
    spec = regrouping(tmp_path)
    assert spec.spec.program is not None
    program = {"command": [str(pytorch_runtime.torch().python), "train.py"], "directory": str(tmp_path)}
    (tmp_path / "train.py").write_text(TORCH, encoding="utf-8")
    resources = {"worker": {"cpu": "1", "memory": "1Gi"}}
    trained, records = train(tmp_path, regrouping(tmp_path, program={**program, "resumes": True}, resources=resources))
    assert trained.reason is Reason.TARGET_REACHED, trained.message
    assert [group["world"] for group in groups_of(tmp_path, 0)] == [1, 2, 1]
    assert len({group["pid"] for group in groups_of(tmp_path, 0)}) == 1
    each_epoch_once(trained)
    paid(trained, records)
    samples = Counter[tuple[int, int]]()
    for worker in (0, 1):
        for line in said(tmp_path, worker):
            if line.startswith("trained"):
                epoch, *mine = map(int, line.split()[1:])
                samples.update((epoch, sample) for sample in mine)
    for number in range(round(trained.epochs_trained)):
        assert all(samples[number, sample] == 1 for sample in range(40)), f"epoch {number} lost or repeated some"
    for epoch in trained.epochs:
        assert epoch.report.metrics["sum"] == 780 * (epoch.report.at_epoch or 0), "0 + 1 + ... + 39 in each epoch"


def test_a_pause_of_the_handler_delays_no_call_for_longer_than_a_part_of_an_interval() -> None:
    answered: list[tuple[str, Mapping[str, object]]] = []

    async def main() -> None:
        group = Group(["a"], lambda name, what: answered.append((name, what)))
        group.hold(0.05)
        group.called("a")
        assert not answered, "what the last report decides may come yet"
        while not answered:
            await asyncio.sleep(0.01)
        group.hold(600)
        group.called("a")
        group.decide()

    asyncio.run(main())
    assert answered == [("a", {}), ("a", {})]


def test_members_wait_for_each_other_and_the_group_for_those_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_group, "LISTEN_SECONDS", 0.05)
    answered: list[tuple[str, Mapping[str, object]]] = []

    def taken() -> Iterator[tuple[str, Mapping[str, object]]]:
        while answered:
            yield answered.pop(0)

    async def main() -> None:
        group = Group(["a", "b"], lambda name, what: answered.append((name, what)))
        group.called("a")
        assert not answered
        group.called("b")
        assert sorted(name for name, _ in taken()) == ["a", "b"]
        variables = {name: {"MASTER_PORT": "1", "RANK": str(rank)} for rank, name in enumerate("acd")}
        group.decide(variables)
        assert group.coming == 2
        for name in "cab":
            group.called(name)
        assert dict(taken()) == {"a": {}, "b": {}}, "d has not come: they go on as they are"
        for name in "dba":
            group.called(name)
        assert group.changed and group.members == ["a", "c", "d"] and group.left == {"b"} and group.coming == 0
        while len(answered) < 4:
            await asyncio.sleep(0.01)
        assert list(taken()) == [("b", {"leave": True}), *((name, {"env": variables[name]}) for name in "acd")]
        group.decide({name: {"MASTER_PORT": "1"} for name in "acde"})
        group.called("e")
        group.close()
        assert list(taken()) == [("e", {"leave": True})], "it is not waited for any more"
        group.forget("e")
        group.close()
        assert not answered, "another worker of that name has not called"

    asyncio.run(main())


def test_a_port_that_a_process_listens_at_is_seen_without_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listens(port)
    assert not listens(port)
