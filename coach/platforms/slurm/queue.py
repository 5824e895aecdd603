"""Slurm's commands, and what they say: jobs by Coach's own mark, nodes, and why a job waits.

One `squeue` has all jobs of the user, at most every COACH_SLURM_INTERVAL seconds, and none while there are none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from coach.core.cluster import Node, Resources, Taken
from coach.core.errors import PermanentError, TemporaryError
from coach.core.jobs.reasons import Reason
from coach.platforms.base import Cluster

#: Seconds that a command may take.
COMMAND_SECONDS = 90.0
#: Begins the comment of each job of Coach's; then the handler's id and the attempt's token follow.
MARK = "coach"
#: States of a job that has ended, and those of them that say nothing against it: Slurm took its nodes away.
TAKEN_AWAY = frozenset({"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT", "DEADLINE"})
ENDED = TAKEN_AWAY | {"CANCELLED", "COMPLETED", "FAILED", "LAUNCH_FAILED", "OUT_OF_MEMORY"}
#: States in which the processes of a job are stopped.
HALTED = frozenset({"SUSPENDED", "STOPPED"})
#: What commands say while the controller or its authentication is away, or busy.
_AWAY = re.compile(
    r"timed out|unable to contact|connect|communication|zero bytes|munge|authentication|temporarily|try again|"
    r"controller not responding|slurm_load(?!_jobs error: Invalid job id)|unexpected message|load average",
    re.IGNORECASE,
)
#: Refusals of a job that pass when others have ended.
_LIMIT = re.compile(r"job submit limit|MaxSubmit|violates accounting/QOS policy|MaxJobs", re.IGNORECASE)
_DOWN = re.compile(r"down|drain|fail|maint|reboot|power|not_resp|unknown|reserved|planned_down|inval|\*", re.IGNORECASE)

#: Slurm's words for why a job waits, and what they mean; those that are not here are said as they are.
_WAITS = {
    "Resources": (Reason.WAITING_CAPACITY, "no nodes are free for it yet"),
    "Priority": (Reason.WAITING_CAPACITY, "jobs with a higher priority are before it"),
    "ReqNodeNotAvail": (Reason.NODES_UNAVAILABLE, "a node that it needs is down, drained or reserved"),
    "Nodes_required_for_job_are_DOWN": (Reason.NODES_UNAVAILABLE, "nodes that it needs are down"),
    "PartitionDown": (Reason.NODES_UNAVAILABLE, "its partition is down"),
    "PartitionInactive": (Reason.NODES_UNAVAILABLE, "its partition takes no jobs"),
    "PartitionNodeLimit": (Reason.MISCONFIGURED, "it asks for more nodes than its partition gives"),
    "PartitionTimeLimit": (Reason.MISCONFIGURED, "it asks for more time than its partition gives"),
    "PartitionConfig": (Reason.MISCONFIGURED, "its partition does not give what it asks for"),
    "BadConstraints": (Reason.MISCONFIGURED, "no node has the features that it asks for"),
    "AccountNotAllowed": (Reason.MISCONFIGURED, "its account may not use this partition"),
    "InvalidAccount": (Reason.MISCONFIGURED, "its account is not valid"),
    "InvalidQOS": (Reason.MISCONFIGURED, "its QOS is not valid"),
    "JobHeldUser": (Reason.PLACING, "it is held: scontrol release ID"),
    "JobHeldAdmin": (Reason.PLACING, "an administrator holds it"),
    "BeginTime": (Reason.PLACING, "its begin time has not come"),
    "Dependency": (Reason.PLACING, "a job that it depends on has not ended"),
    "Reservation": (Reason.NODES_UNAVAILABLE, "its reservation has not begun"),
    "Licenses": (Reason.WAITING_CAPACITY, "it waits for licences"),
}
_LIMITS = {"QOS": "its QOS", "Assoc": "your account", "MaxSubmit": "your account"}
_OF_WHAT = {
    "GRES": "GPUs", "gres/gpu": "GPUs", "Cpu": "cores", "CPU": "cores", "Mem": "memory", "Node": "nodes",
    "Jobs": "jobs", "JobsPerUser": "jobs", "Wall": "time", "Minutes": "hours", "Billing": "billing units",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A job in Slurm's queue, by its token. `start` is when it is expected to start, as Slurm writes it.

    `nodes` is empty until it has some; it keeps them when it has ended.
    """

    token: str
    handler: str
    id: str
    state: str
    reason: str
    start: str
    nodes: str = ""


async def command(*words: str) -> str:
    """What a command of Slurm prints. Raises TemporaryError while Slurm is away, PermanentError where it refuses."""
    return (await _said(*words))[0]


async def _said(*words: str) -> tuple[str, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment(), "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"},
        )
    except OSError as error:
        raise PermanentError(
            f"{words[0]}: {error.strerror}; Slurm's commands are on a login node of the cluster: sinfo"
        ) from error
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        raise TemporaryError(f"{words[0]} did not answer in {COMMAND_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    said = " ".join(err.decode(errors="replace").replace(f"{words[0]}: error: ", "").split())[:1000]
    if process.returncode:
        kind = TemporaryError if _AWAY.search(said) or not said else PermanentError
        raise kind(f"{words[0]}: {said or f'exit code {process.returncode}, and it said nothing'}")
    return out.decode(errors="replace"), said


def environment() -> dict[str, str]:
    """The user's, without what a Slurm job around this process would pass on to its own: bindings, sizes, ids."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name in ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
    }


def limited(error: PermanentError) -> bool:
    """Whether sbatch refused a job for a limit that others of the user's jobs hold."""
    return _LIMIT.search(str(error)) is not None


async def queue(handler: str) -> dict[str, Entry]:
    """The jobs of a handler by their tokens, those that have ended not long ago included. Raises CoachError."""
    answer = await command("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%S|%N|%k")
    found = {}
    for line in answer.splitlines():
        number, state, reason, start, nodes, comment = [*line.split("|", 5), *[""] * 6][:6]
        mark, of, token = [*comment.split(":"), "", ""][:3]
        if mark == MARK and of == handler:
            found[token] = Entry(token, of, number, state, reason, start, nodes)
    return found


async def wait(options: Sequence[str]) -> float | None:
    """Seconds until a job with these options would start, as Slurm expects it; None where it gives no time.

    Raises CoachError.
    """
    _, said = await _said("sbatch", "--test-only", *options, "--wrap=true")
    found = re.search(r"to start at (\d[^ ]*)", said)
    return max(0.0, datetime.fromisoformat(found[1]).timestamp() - time.time()) if found else None


async def positions() -> dict[str, int]:
    """How many jobs that wait in the same partition are before each one, by id; of all users that Slurm shows.

    Raises CoachError.
    """
    found: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for line in (
        await command("squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%i|%P")
    ).splitlines():
        number, _, partition = line.partition("|")
        found[number] = waiting[partition] = waiting.get(partition, -1) + 1
    return found


def waits(entry: Entry, before: int | None = None) -> tuple[Reason, str]:
    """Why a job waits, in the field's words, how many are `before` it, and when Slurm expects it to start."""
    word = entry.reason.split(",")[0].strip("() ")
    reason, words = _WAITS.get(word, (Reason.PLACING, ""))
    if not words and (whose := next((said for key, said in _LIMITS.items() if word.startswith(key)), "")):
        of = next((said for key, said in _OF_WHAT.items() if key in word), "what may be used")
        reason, words = Reason.WAITING_CAPACITY, f"a limit on {of} of {whose} is reached"
    place = "" if before is None else f"; waiting jobs before it: {before}" if before else "; it is the next"
    start = f"; expected to start at {entry.start.replace('T', ' ')}" if entry.start[:1].isdigit() else ""
    return reason, f"Slurm job {entry.id}: {words or 'Slurm says why'} ({entry.reason}){place}{start}"


async def nodes_now(ours: Mapping[str, Resources] | None = None) -> Cluster:
    """The nodes, those on which nothing starts, and what others hold on them; `ours`: what Coach's jobs hold.

    Raises TemporaryError, PermanentError.
    """
    form = "NodeList:64,CPUsState:32,Memory:32,AllocMem:32,Gres:256,GresUsed:256,StateLong:64"
    nodes: dict[str, Node] = {}
    unavailable, taken = set(), []
    for line in (await command("sinfo", "--Node", "--noheader", f"--Format={form}")).splitlines():
        fields = line.split()
        if len(fields) != 7 or fields[0] in nodes:  # a node is there once for each of its partitions
            continue
        name, cpus, memory, used_memory, gres, used_gres, state = fields
        used, *_, total = cpus.split("/")
        gpus = gpu_counts(gres)
        kind = max(gpus, key=lambda one: gpus[one], default="")
        capacity = Resources(float(total), _number(memory) / 1024, float(sum(gpus.values())))
        nodes[name] = Node(name, capacity, kind=kind)
        if _DOWN.search(state):
            unavailable.add(name)
        mine = (ours or {}).get(name, Resources(0, 0))
        held = Resources(_number(used), _number(used_memory) / 1024, float(sum(gpu_counts(used_gres).values()))) - mine
        if max(held.cpu, held.memory, held.gpu) > 1e-6:
            taken.append(Taken(name, Resources(max(0, held.cpu), max(0, held.memory), max(0, held.gpu))))
    if not nodes:
        raise PermanentError("sinfo names no node that you may use; ask your cluster's administrators: sinfo -N")
    return Cluster(tuple(nodes.values()), tuple(sorted(unavailable)), tuple(taken))


def gpu_counts(gres: str) -> dict[str, int]:
    """GPUs by their type, which may be empty, of Slurm's `gpu:a100:4(S:0-3),gpu:2(IDX:0-1),shard:8`."""
    found: dict[str, int] = {}
    for one in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = one.split(":")
        if name in ("gpu", "gres/gpu"):
            count = rest[-1] if rest and rest[-1].isdigit() else "1"
            kind = rest[0] if rest and not rest[0].isdigit() else ""
            found[kind] = found.get(kind, 0) + int(count)
    return found


def _number(text: str) -> float:
    digits = re.match(r"[0-9.]+", text)
    return float(digits[0]) if digits else 0.0


async def longest(partition: str | None) -> float | None:
    """Seconds that a job in a partition, or in the default one, may take; None: as long as it wants."""
    limits = []
    for line in (await command("sinfo", "--noheader", "--format=%P|%l|%a")).splitlines():
        name, limit, _ = [*line.split("|"), "", "", ""][:3]
        if name.rstrip("*") in (partition or "").split(",") or (partition is None and name.endswith("*")):
            limits.append(seconds(limit))
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def seconds(limit: str) -> float | None:
    """Of Slurm's `2-12:30:00`, `1:00:00`, `30:00`, `30`; None for `infinite`, `UNLIMITED` and what is no time."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if found is None:
        return None
    days, first, second, third = (int(part) if part else 0 for part in found.groups())
    if found[1] is not None or found[4] is not None:
        return days * 86400 + first * 3600 + second * 60 + third
    return first * 60 + second


async def cancel(ids: Sequence[str]) -> None:
    """End jobs; those that are not there any more are no error. Raises TemporaryError."""
    with contextlib.suppress(PermanentError):
        await command("scancel", "--quiet", *ids)


async def cancel_own(id: str, token: str) -> None:
    """End the job of a token, if the id is still its own: a controller that was killed may give it to another.

    Raises TemporaryError.
    """
    with contextlib.suppress(PermanentError):
        comment = await command("squeue", "--noheader", f"--jobs={id}", "--format=%k")
        if comment.strip().endswith(f":{token}"):
            await cancel([id])
