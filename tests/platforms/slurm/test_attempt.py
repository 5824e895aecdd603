"""What the handler makes of an attempt's files, which it sees late, and of what squeue says."""

from __future__ import annotations

import asyncio
import json
import math
import os
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coach.core.cluster import PodId, Role
from coach.platforms.local.supervisor import Ended
from coach.platforms.slurm import attempt
from coach.platforms.slurm.attempt import Attempt, RankWorker
from coach.platforms.slurm.queue import Entry
from tests.platforms.slurm.test_rank import attempt as make


def entry(state: str, number: str = "7") -> Entry:
    return Entry("own-1", "me", number, state, "None", "N/A")


@pytest.mark.parametrize(
    ("looks", "over"),
    [
        ("R-R", ""), ("--", ""), ("R-", ""), ("R--", "FORGOTTEN"), ("RC--", "COMPLETED"), ("RN", "NODE_FAIL"),
        ("RX-", "CANCELLED"), ("P--R", ""), ("RG", ""), ("RGC", "COMPLETED"),
    ],
)  # fmt: skip
def test_one_look_without_a_job_shows_nothing_and_two_do(tmp_path: Path, looks: str, over: str) -> None:
    words = {"R": "RUNNING", "G": "COMPLETING", "P": "PENDING", "C": "COMPLETED", "N": "NODE_FAIL", "X": "CANCELLED"}
    at = make(tmp_path, "")
    for look in looks:
        at.seen(entry(words[look]) if look in words else None)
    assert at.over == over


@pytest.mark.parametrize(
    ("began", "nodes", "started", "how"),
    [
        ([], "", "N/A", "CANCELLED"),
        ([], "n7", "2026-11-29T19:08:36", "LAUNCH_FAILED"),
        ([1.3], "n7", "2026-11-29T19:08:36", "CANCELLED"),
        ([-0.9, 1.3], "n[7-8]", "2026-11-29T19:08:36", "CANCELLED"),  # a node's clock may be a little behind
        ([1.3], "n7", "2026-11-29T19:08:42", "REQUEUED"),
        ([1.3], "n7", "Unknown", "CANCELLED"),
    ],
    ids=["waited", "no worker began", "it ran", "two clocks", "it started again", "no start"],
)
def test_a_cancelled_job_was_cancelled_by_a_person_or_could_not_be_started(
    tmp_path: Path, began: list[float], nodes: str, started: str, how: str
) -> None:
    start = datetime.fromisoformat("2026-11-29T19:08:36").timestamp()
    at = make(tmp_path, "", workers=2)
    for rank, seconds in enumerate(began):
        (at.folder / f"rank-{rank}.log").write_text(f"{(start + seconds) * 1e9:.0f} began n7\n")
    at.seen(Entry("own-1", "me", "7", "CANCELLED", "None", started, nodes))
    assert at.how() == how


def follow(at: Attempt, log: Path, run: Any, *, beside: Any = None) -> Ended:
    """How the handler says that its worker ended."""

    async def main() -> Ended:
        worker = RankWorker(at, PodId("own", Role.WORKER, 0), 0.5, log, at.folder)
        following = asyncio.create_task(worker.follow(run, metrics=False))
        if beside is not None:
            await beside()
        await following
        return await worker.ended

    return asyncio.run(main())


def test_a_log_that_is_seen_late_and_in_pieces_is_read_whole(tmp_path: Path) -> None:
    at, log = make(tmp_path, ""), tmp_path / "worker.log"
    path = at.folder / "rank-0.log"
    path.unlink()
    whole = b"1 began n7\n2 line one\n3 line t\xc3\xa4glich\n4 ended " + json.dumps(
        {"code": 3, "cause": "", "words": "", "seconds": 1.5}
    ).encode() + b"\n"  # fmt: skip

    async def appears() -> None:
        at.seen(entry("FAILED"))  # Slurm says so before the file is seen
        for end in (0, 5, 24, 34, len(whole)):
            await asyncio.sleep(0.05)
            path.write_bytes(whole[:end])

    ended = follow(at, log, SimpleNamespace(mark=0), beside=appears)
    assert (ended.code, ended.cause, ended.seconds) == (3, "", 1.5)
    assert [json.loads(line)["message"] for line in log.read_text().splitlines()] == ["one", "t\u00e4glich"]


def test_lines_that_counted_for_an_earlier_handler_are_not_read_again(tmp_path: Path) -> None:
    at, log = make(tmp_path, ""), tmp_path / "worker.log"
    (at.folder / "rank-0.log").write_text(
        '1 began n7\n2 line one\n3 line two\n4 ended {"code": 0, "cause": "", "words": "", "seconds": 1}\n'
    )
    follow(at, log, SimpleNamespace(mark=2))
    assert "two" in log.read_text()
    assert "one" not in log.read_text()


@pytest.mark.parametrize(
    ("said", "state", "cause", "words"),
    [
        ("slurm", "TIMEOUT", "lost", "time limit"), ("slurm", "PREEMPTED", "lost", "PREEMPTED"),
        ("slurm", "CANCELLED", "cancelled", "by scancel"), (None, "NODE_FAIL", "lost", "NODE_FAIL"),
        (None, "FORGOTTEN", "lost", "forgotten"), (None, "OUT_OF_MEMORY", "memory", ""),
        (None, "BOOT_FAIL", "lost", "BOOT_FAIL"), ("deadline", "COMPLETED", "deadline", ""),
        ("asked", "CANCELLED", "asked", ""), ("wall", "COMPLETED", "lost", "time limit"),
    ],
)  # fmt: skip
def test_how_it_ended_is_its_own_word_first_then_slurms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, state: str, cause: str, words: str
) -> None:
    monkeypatch.setenv("COACH_SLURM_INTERVAL", "0.1")
    monkeypatch.setattr(attempt, "LOOK_SECONDS", 0.01)
    at = make(tmp_path, "")
    lines = ["1 began n7"]
    if said is not None:
        lines.append("2 ended " + json.dumps({"code": 143, "cause": said, "words": "", "seconds": 1.0}))
    (at.folder / "rank-0.log").write_text("\n".join(lines) + "\n")
    at.seen(entry("RUNNING"))
    for look in (None, None) if state == "FORGOTTEN" else (entry(state),):
        at.seen(look)
    ended = follow(at, tmp_path / "worker.log", SimpleNamespace(mark=0))
    assert ended.cause == cause
    assert words in ended.words


@pytest.mark.parametrize(
    ("silence", "state", "looks", "cause", "words"),
    [
        (1, "RUNNING", 0, "lost", "nothing is seen of it any more"),
        (1, "RUNNING", 12, "", ""),
        (1, "SUSPENDED", 0, "", ""),
        (math.inf, "RUNNING", 0, "", ""),  # one that an earlier Coach has started gives no sign
    ],
    ids=["silent", "shows that it runs", "suspended", "gives no signs"],
)
def test_a_worker_of_which_nothing_is_seen_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silence: float, state: str, looks: int, cause: str, words: str
) -> None:
    for name, script in {"squeue": "echo coach:me:own-1", "scancel": f"echo $* >> {tmp_path}/cancelled"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(attempt, "LOOK_SECONDS", 0.2)
    at = make(tmp_path, "", silence=silence)
    at.tell(seconds=90)
    path = at.folder / "rank-0.log"
    path.write_text("1 began n7\n")
    at.seen(entry(state))

    async def beside() -> None:
        for look in range(12):
            await asyncio.sleep(0.2)
            if look < looks:
                os.utime(path)
        if (tmp_path / "cancelled").exists():
            at.seen(entry("CANCELLED"))
        else:
            with path.open("a") as file:
                file.write('2 ended {"code": 0, "cause": "", "words": "", "seconds": 1}\n')

    ended = follow(at, tmp_path / "worker.log", SimpleNamespace(mark=0), beside=beside)
    assert (ended.cause, (tmp_path / "cancelled").exists()) == (cause, bool(cause))
    assert words in ended.words


def test_slurms_out_of_memory_is_known_by_what_it_printed(tmp_path: Path) -> None:
    at = make(tmp_path, "")
    (at.folder / "rank-0.log").write_text('1 began n7\n2 ended {"code": 137, "cause": "", "words": "", "seconds": 1}\n')
    (at.folder / "slurm.out").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    at.seen(entry("COMPLETED"))
    assert follow(at, tmp_path / "worker.log", SimpleNamespace(mark=0)).cause == "memory"


def test_what_is_to_end_does_not_get_longer_again(tmp_path: Path) -> None:
    at = make(tmp_path, "")
    for wanted in ({"seconds": 9.0}, {"end": 5.0, "cause": "asked"}, {"seconds": 90.0}, {"end": 0.0, "cause": "asked"}):
        at.tell(**wanted)
    assert json.loads((at.folder / "control").read_text()) == {"end": 0.0, "cause": "asked"}
    at.tell(end=30.0, cause="asked")
    assert json.loads((at.folder / "control").read_text())["end"] == 0.0
