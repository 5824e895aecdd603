"""Runs of a program on a real Slurm; a part of the program, of Slurm or of Coach is killed at a random instant."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from enum import StrEnum
from functools import partial
from pathlib import Path

from tests.chaos import program_runs
from tests.chaos.processes import command, gone, parent, variable
from tests.chaos.program import EPOCHS, SECONDS
from tests.chaos.program_runs import SCRIPT, Fault
from tests.chaos.stage import Outcome
from tests.slurm.cluster import SlurmCluster

#: Seconds between two looks at the queue: so short that a run takes no longer than it must.
INTERVAL = 0.5
#: Seconds after which a worker of which nothing is seen counts as lost.
SILENCE = 15.0
#: Seconds after which a daemon or a node that was killed is there again, at most: Slurm gives a node up after 10.
AWAY = 20.0
#: Seconds in which Slurm's queue is empty once the job has ended.
QUEUE_SECONDS = 30.0


class Victim(StrEnum):
    """Whom SIGKILL hits."""

    RANK = "a rank"
    SUPERVISOR = "what a rank runs under"
    BATCH = "the batch shell"
    SLURMD = "slurmd"  #: of a node of the job, whose programs go on
    NODE = "a node"  #: its slurmd, and all that runs there
    CONTROLLER = "slurmctld"
    HANDLER = "the handler"


def draw(seed: int, number: int) -> Fault:
    """The fault of run `number` of `seed`; one in four comes while the workers change, or soon after.

    From seed 8 on, half of the jobs queue the larger one ahead.
    """
    dice = random.Random(f"slurm {seed} {number}")
    victim = dice.choice(list(Victim))
    reports = dice.choice([2, 3, dice.randint(0, EPOCHS - 2), dice.randint(0, EPOCHS - 2)])
    return Fault(victim, reports, dice.random() * SECONDS, ahead=seed >= 8 and dice.random() < 0.5)


async def run_with(fault: Fault, cluster: SlurmCluster) -> Outcome:
    """One run under `coach run --platform slurm`; the cluster is whole and its queue empty before and after."""
    await asyncio.to_thread(cluster.whole)
    environment = {**cluster.env, "COACH_SLURM_INTERVAL": str(INTERVAL), "COACH_SLURM_SILENCE": str(SILENCE)}
    later: list[asyncio.Task[None]] = []
    found = await program_runs.run_with(
        fault, partial(_strike, cluster, later), ("--platform", "slurm", "--no-live"), environment
    )
    await asyncio.gather(*later)
    await asyncio.to_thread(cluster.whole)
    left = await asyncio.to_thread(
        gone, lambda: cluster.queue("pending,running,suspended", "%i %j %T %k"), QUEUE_SECONDS
    )
    if fault.victim is Victim.SUPERVISOR and all(line.startswith("left: ") for line in found.lost[:-1]):
        found.lost.clear()  # sites have proctrack/cgroup, which ends what an orphan leaves; this cluster has linuxproc
    found.lost.extend(f"left in the queue: {job}" for job in left)
    await asyncio.to_thread(cluster.cancel_all)
    return found


async def _strike(cluster: SlurmCluster, later: list[asyncio.Task[None]], handler: int, fault: Fault) -> str:
    """Kill; a daemon of Slurm's is started again a little later."""
    away = random.Random(f"{fault.reports} {fault.seconds}").random() * AWAY
    if fault.victim is Victim.HANDLER:
        os.kill(handler, signal.SIGKILL)
        return f"the handler {handler}"
    if fault.victim is Victim.CONTROLLER:
        await asyncio.to_thread(cluster.kill, "ctld")
        later.append(asyncio.create_task(_again(away / 4, cluster)))
        return f"slurmctld for {away / 4:.1f} s"
    if fault.victim in (Victim.SLURMD, Victim.NODE):
        nodes = await asyncio.to_thread(cluster.queue, "running", "%N")
        if not nodes:
            return ""
        node = (await asyncio.to_thread(cluster, "scontrol", "show", "hostnames", nodes[-1])).split()[-1]
        await asyncio.to_thread(cluster.kill, node)
        if fault.victim is Victim.NODE:
            await asyncio.to_thread(cluster.kill_steps, node)
        later.append(asyncio.create_task(_again(away, cluster)))
        return f"{fault.victim} {node} for {away:.1f} s"
    for pid in (found := _victims(cluster, fault.victim)[-1:]):
        with contextlib.suppress(ProcessLookupError):  # it ends by itself just now
            os.kill(pid, signal.SIGKILL)
    return f"{fault.victim} {found}" if found else ""


async def _again(seconds: float, cluster: SlurmCluster) -> None:
    await asyncio.sleep(seconds)
    await asyncio.to_thread(cluster.restart)


def _victims(cluster: SlurmCluster, victim: StrEnum) -> list[int]:
    """Processes of the job: its programs, what they run under, or the srun that its batch script became."""
    conf = cluster.env["SLURM_CONF"]
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    mine = {pid: command(pid) for pid in sorted(pids) if variable(pid, "SLURM_CONF") == conf}
    ranks = [pid for pid, line in mine.items() if line.endswith("rank.py") and not line.startswith("srun")]
    if victim is Victim.SUPERVISOR:
        return ranks
    if victim is Victim.RANK:
        return [pid for pid, line in mine.items() if line.endswith(SCRIPT.name) and parent(pid) in ranks]
    return [
        pid for pid, line in mine.items()
        if line.startswith("srun ") and command(parent(pid)).startswith("slurmstepd")
    ]  # fmt: skip
