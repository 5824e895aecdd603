"""What Slurm's commands say, read."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest

from coach.core.errors import PermanentError, TemporaryError
from coach.core.jobs.reasons import Reason
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.slurm import queue
from coach.platforms.slurm.queue import Entry, gpu_counts, seconds, waits
from coach.service import doctor


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:2", {"": 2}),
        ("gpu:a100:4(S:0-3)", {"a100": 4}),
        ("gpu:a100:2(S:0),gpu:h100:1(IDX:0),shard:8", {"a100": 2, "h100": 1}),
        ("gpu:0", {"": 0}),
        ("gpu", {"": 1}),
        ("(null)", {}),
        ("N/A", {}),
        ("license:3,craynetwork:4", {}),
    ],
)
def test_gpus_are_counted_in_every_way_that_slurm_writes_them(text: str, found: dict[str, int]) -> None:
    assert gpu_counts(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1:00:00", 3600), ("30:00", 1800), ("30", 1800), ("2-00:00:00", 172800), ("1-12", 129600),
        ("1-12:30", 131400), ("infinite", None), ("UNLIMITED", None), ("n/a", None), ("", None),
    ],
)  # fmt: skip
def test_time_limits_are_read(text: str, found: float | None) -> None:
    assert seconds(text) == found


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("Resources", Reason.WAITING_CAPACITY, "no nodes are free for it yet"),
        ("Priority", Reason.WAITING_CAPACITY, "jobs with a higher priority are before it"),
        ("QOSMaxGRESPerUser", Reason.WAITING_CAPACITY, "a limit on GPUs of its QOS is reached"),
        ("AssocGrpGRESMinutes", Reason.WAITING_CAPACITY, "a limit on GPUs of your account is reached"),
        ("AssocGrpCpuLimit", Reason.WAITING_CAPACITY, "a limit on cores of your account is reached"),
        ("QOSMaxJobsPerUserLimit", Reason.WAITING_CAPACITY, "a limit on jobs of its QOS is reached"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", Reason.NODES_UNAVAILABLE, "down, drained or reserved"),
        ("PartitionTimeLimit", Reason.MISCONFIGURED, "more time than its partition gives"),
        ("SomethingNew", Reason.PLACING, "Slurm says why (SomethingNew)"),
    ],
)
def test_why_a_job_waits_is_said_in_words(reason: str, kind: Reason, words: str) -> None:
    found = waits(Entry("t", "h", "7", "PENDING", reason, "2026-12-01T04:10:00"))
    assert found[0] is kind
    assert words in found[1] and reason in found[1]
    assert found[1].endswith("expected to start at 2026-12-01 04:10:00")
    assert "expected" not in waits(Entry("t", "h", "7", "PENDING", reason, "N/A"))[1]


def test_a_place_in_the_queue_is_said_in_numbers() -> None:
    entry = Entry("t", "h", "7", "PENDING", "Priority", "N/A")
    assert "waiting jobs before it: 12" in waits(entry, 12)[1]
    assert "it is the next" in waits(entry, 0)[1]
    assert "before it:" not in waits(entry)[1]


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Slurm's commands as scripts: for answers that a real controller gives once in years."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_jobs_are_known_by_their_mark_whatever_their_ids_and_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "12|RUNNING|None|2026-01-01T00:00:00|n[0-1]|coach:me:own-1",
        "12|COMPLETED|None|2017-01-01T00:00:00|n0|a job of 2017|with coach:me:own-2 in its comment",
        "13|PENDING|Priority|N/A||coach:another:own-3",
        "14_7|RUNNING|None|N/A|n2|(null)",
        "", "squeue: a warning | of some site",
    ]  # fmt: skip
    commands(tmp_path, monkeypatch, squeue="cat <<'EOF'\n" + "\n".join(lines) + "\nEOF")
    found = asyncio.run(queue.queue("me"))
    assert list(found) == ["own-1"]
    assert (found["own-1"].id, found["own-1"].state, found["own-1"].nodes) == ("12", "RUNNING", "n[0-1]")


@pytest.mark.parametrize(("later", "waits"), [(3600, 3600.0), (-5, 0.0), (None, None)])
def test_the_wait_of_a_job_that_is_not_submitted_is_read(
    later: int | None, waits: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = datetime.fromtimestamp(time.time() + (later or 0)).isoformat(timespec="seconds")
    words = f"to start at {start if later else 'Unknown'} using 1 processors on nodes n0 in partition main"
    commands(tmp_path, monkeypatch, sbatch=f'echo "$@" >asked; echo "sbatch: Job 7 {words}" >&2')
    monkeypatch.chdir(tmp_path)
    found = asyncio.run(queue.wait(["--ntasks=1"]))
    assert found == (waits if waits is None else pytest.approx(waits, abs=5.0))
    assert (tmp_path / "asked").read_text().startswith("--test-only --ntasks=1 ")


def test_the_place_in_the_queue_is_that_of_its_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(tmp_path, monkeypatch, squeue="printf '9|gpu\\n12|cpu\\n4_[1-9]|gpu\\n7|gpu\\n13|cpu\\n'")
    assert asyncio.run(queue.positions()) == {"9": 0, "12": 0, "4_[1-9]": 1, "7": 2, "13": 1}


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", TemporaryError),
        ("Batch job submission failed: Socket timed out on send/recv operation", TemporaryError),
        ("error: If munged is up, restart with --num-threads=10", TemporaryError),
        ("error: Batch job submission failed: Zero Bytes were transmitted or received", TemporaryError),
        ("", TemporaryError),
        ("error: invalid partition specified: nowhere", PermanentError),
        ("error: Batch job submission failed: Invalid account or account/partition combination", PermanentError),
    ],
)
def test_a_controller_that_is_away_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, kind: type[Exception]
) -> None:
    commands(tmp_path, monkeypatch, sbatch=f"echo '{words}' >&2; exit 1")
    with pytest.raises(kind, match="sbatch"):
        asyncio.run(queue.command("sbatch", "x"))


@pytest.mark.parametrize(
    ("words", "limited"),
    [
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit sbatch: error: Batch job submission failed: Job violates "
         "accounting/QOS policy (job submit limit, user's size and/or time limits)", True),
        ("sbatch: error: AssocMaxSubmitJobLimit", True),
        ("sbatch: error: invalid partition specified: nowhere", False),
    ],
)  # fmt: skip
def test_a_limit_on_submissions_passes_when_others_have_ended(words: str, limited: bool) -> None:
    assert queue.limited(PermanentError(words)) is limited


def test_without_slurm_the_next_step_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PermanentError, match="on a login node of the cluster"):
        asyncio.run(queue.nodes_now())


def test_what_a_job_around_coach_passes_on_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPU_BIND", "SLURM_MEM_PER_CPU", "SLURM_JOB_ID", "SLURM_CONF", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "x")
    kept = [name for name in queue.environment() if name.startswith(("SLURM_", "SBATCH_"))]
    assert sorted(kept) == ["SBATCH_ACCOUNT", "SLURM_CONF"]


def test_a_node_is_counted_once_with_what_others_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "n0 4/4/0/8 64000 32000 gpu:a100:4(S:0-1) gpu:a100:1(IDX:0) mixed",
        "n0 4/4/0/8 64000 32000 gpu:a100:4(S:0-1) gpu:a100:1(IDX:0) mixed",
        "n1 0/0/8/8 64000 0 (null) N/A drained",
        "n2 0/8/0/8 64000 0 gpu:2 gpu:0 down*",
    ]
    commands(tmp_path, monkeypatch, sinfo="cat <<'EOF'\n" + "\n".join(lines) + "\nEOF")
    found = asyncio.run(queue.nodes_now())
    assert [(node.name, node.capacity.cpu, node.capacity.gpu, node.kind) for node in found.nodes] == [
        ("n0", 8, 4, "a100"), ("n1", 8, 0, ""), ("n2", 8, 2, ""),
    ]  # fmt: skip
    assert found.unavailable == ("n1", "n2")
    assert [(one.node, one.amount.cpu, one.amount.memory, one.amount.gpu) for one in found.taken] == [
        ("n0", 4, 31.25, 1)
    ]


def test_the_doctor_waits_for_no_slurm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(tmp_path, monkeypatch, sinfo='[ "$1" = --version ] && echo slurm 22.05.8 && exit 0\nexec sleep 60')
    monkeypatch.setattr(doctor, "SLURM_SECONDS", 0.2)
    version, nodes = doctor._slurm(StateDirectory(tmp_path))
    assert version.found == "slurm 22.05.8"
    assert (nodes.status, nodes.found) == (doctor.Status.FAILED, "sinfo did not answer in 0 s")
    assert "scontrol ping" in nodes.next_step
