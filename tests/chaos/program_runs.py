"""Runs of a program of which one rank, all ranks, a supervisor or the handler is killed at a random instant."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.handler.state.state_directory import StateDirectory
from tests.chaos.processes import alive, command, descendants, gone, marked, parent
from tests.chaos.program import EPOCHS, SECONDS
from tests.chaos.runs import ROOT, _job, _records
from tests.chaos.stage import PATIENCE, Outcome

SCRIPT = ROOT / "tests/chaos/program.py"
MODULE = ROOT / "coach/platforms/program_metrics/coach_program.py"
#: `coach run` is started again at most so often.
RUNS = 3


class Victim(StrEnum):
    """Whom SIGKILL hits."""

    RANK = "a rank"
    RANKS = "all ranks"
    SUPERVISOR = "a supervisor"  #: the process that a rank runs under
    HANDLER = "the handler"


#: Victims that take with them what a rank prints just then, which may be the line that follows a checkpoint.
SILENCED = ("a supervisor", "what a rank runs under", "a node")

#: What strikes: it gets the handler's process id and the fault, and says what it hit.
Strike = Callable[[int, "Fault"], Awaitable[str]]


@dataclass(frozen=True)
class Fault:
    """SIGKILL to `victim`, `seconds` after the program has reported `reports` times.

    `regroups`: its workers change in the same process; `ahead`: on Slurm, the larger job is queued while the smaller
    one trains.
    """

    victim: StrEnum
    reports: int
    seconds: float
    regroups: bool = False
    ahead: bool = False


def draw(seed: int, number: int) -> Fault:
    """The fault of run `number` of `seed`; one in four comes while the workers change, or soon after.

    Of all seeds but the first, half of the programs form their group anew in the same process.
    """
    dice = random.Random(f"program {seed} {number}")
    victim = dice.choice(list(Victim))
    reports = dice.choice([2, 3, dice.randint(0, EPOCHS - 2), dice.randint(0, EPOCHS - 2)])
    return Fault(victim, reports, dice.random() * SECONDS, seed != 1 and dice.random() < 0.5)


def job_file(folder: Path, *, regroups: bool, ahead: bool = False) -> dict[str, object]:
    """Its job: one or two workers. `folder` gets what the program imports."""
    (folder / "coach_program.py").write_bytes(MODULE.read_bytes())
    return {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "struck"},
        "spec": {
            "program": {
                "command": [sys.executable, str(SCRIPT)],
                "resumes": True,
                "env": {"REGROUPS": str(int(regroups)), "PYTHONPATH": str(folder)},
                "metrics": {"val_loss": "val loss: (\\S+)"},
            },
            "workers": {"min": 1, "max": 2},
            "target": {"metric": "val_loss", "value": 1 / EPOCHS + 1e-6, "epochsInARow": 1},
            "budget": {"amount": 1, "currency": "USD"},
            "gracePeriod": 2,
            "resources": {"worker": {"cpu": "500m", "memory": "256Mi"}},
            **({"slurm": {"queueAhead": True}} if ahead else {}),
        },
    }


async def _kill(handler: int, fault: Fault) -> str:
    while not (found := _victims(handler, fault.victim)):
        if not alive(handler):
            return ""
        await asyncio.sleep(0.01)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return f"{fault.victim} {found}"


async def run_with(
    fault: Fault,
    strike: Strike = _kill,
    options: Sequence[str] = ("--nodes", "1x2"),
    environment: Mapping[str, str] = os.environ,
) -> Outcome:
    """One run of the job under `coach run` with these options."""
    with tempfile.TemporaryDirectory(prefix="chaos-program-") as name:
        home, file, out = StateDirectory(Path(name) / "home"), Path(name) / "job.yaml", Path(name) / "out"
        file.write_text(json.dumps(job_file(Path(name), regroups=fault.regroups, ahead=fault.ahead)))
        environment = {**environment, "COACH_HOME": str(home.path)}
        began, struck, lost = time.monotonic(), "", list[str]()
        with out.open("ab") as log:
            for _ in range(RUNS):
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "coach.cli.main", "run", *options, str(file)),
                    cwd=ROOT,
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
                try:
                    async with asyncio.timeout(PATIENCE):
                        if not struck:
                            struck = await _strike(home, process, fault, strike)
                        await process.wait()
                except TimeoutError:
                    lost.append(f"not over after {PATIENCE:.0f} s")
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
                if process.returncode != -signal.SIGKILL:
                    break
        job = _job(home, out)
        lost += losses(home, job, fault.victim in SILENCED) + (
            [f"exit code {process.returncode}"] if process.returncode else []
        )
        left = await asyncio.to_thread(gone, lambda: marked("COACH_HOME", str(home.path)), 10)
        lost += [f"left: {what}" for what in left]
        for pid in (int(what.split()[0]) for what in left):
            os.kill(pid, signal.SIGKILL)
        if lost:
            lost.append(out.read_text()[-1500:])
        failures = [job.attempts.last_failure[1]] if job.attempts.last_failure else []
        return Outcome(struck, lost, job.attempts.count, len(job.epochs), failures, time.monotonic() - began)


async def _strike(home: StateDirectory, process: asyncio.subprocess.Process, fault: Fault, strike: Strike) -> str:
    """Strike at the drawn instant, as the journal shows it; what was hit."""
    seen = 0
    with _records(home, process) as next_record:
        async for record in next_record():  # type: ignore[attr-defined]
            seen += isinstance(record, ev.EpochFinished)
            if isinstance(record, ev.PodReady | ev.EpochFinished) and seen >= fault.reports:
                break
        else:
            return ""
    await asyncio.sleep(fault.seconds)
    return await strike(process.pid, fault) if process.returncode is None else ""


def _victims(handler: int, victim: StrEnum) -> list[int]:
    if victim is Victim.HANDLER:
        return [handler]
    below = descendants(handler)
    supervisors = [pid for pid in below if "local.supervisor" in command(pid)]
    # A supervisor has a collector next to the program, and a program has a child with the same command.
    ranks = [pid for pid in below if command(pid).endswith(SCRIPT.name) and parent(pid) in supervisors]
    mains = [pid for pid in supervisors if parent(pid) == handler]
    found = mains if victim is Victim.SUPERVISOR else ranks
    return found if victim is Victim.RANKS else found[-1:]


def losses(home: StateDirectory, job: Job, silenced: bool = False) -> list[str]:
    """What of a finished job is not as if nothing had happened; `silenced`: one line of its output may be missing."""
    found: list[str] = []

    def expect(holds: bool, what: str) -> None:
        if not holds:
            found.append(what)

    expect(job.reason is Reason.TARGET_REACHED, f"ended {job.state} {job.reason}: {job.message}")
    trained = _trained(home)
    counts = Counter(trained)
    expect(set(counts) >= set(range(EPOCHS)) or (silenced and len(counts) == EPOCHS - 1), f"epochs {trained}")
    expect(counts.total() <= EPOCHS + 1, f"more than one epoch repeated: {trained}")
    reported = [round(1 / (job.value(epoch) or 1)) - 1 for epoch in job.epochs]
    expect(set(reported) <= set(counts) and sorted(reported) == reported, f"reports {reported}")
    expect(set(range(EPOCHS)) - set(reported) <= {EPOCHS - 1} | _unheard(reported), f"reports {reported}")
    expect(job.attempts.count <= len(job.epochs) + 2, f"{job.attempts.count} attempts for {len(job.epochs)} epochs")
    ledger = job.money.ledger
    expect(sum(job.money.charges.values()) == ledger.spent, f"spent {ledger.spent}, charges {job.money.charges}")
    expect(0 < ledger.spent <= (ledger.budget or 0), f"spent {ledger.spent} of {ledger.budget}")
    counted = {epoch.token: epoch.cost for epoch in job.epochs}
    expect(all(job.money.charges.get(token) == cost for token, cost in counted.items()), "a cost is no charge")
    expect(ledger.reserved == 0 and not job.gang.pods, "something is still held")
    return found


def _unheard(reported: list[int]) -> set[int]:
    """The one report that may be lost with a handler, or with a rank, that dies as it comes."""
    missing = set(range(EPOCHS)) - set(reported)
    return missing if len(missing) <= 1 else set()


def _trained(home: StateDirectory) -> list[int]:
    """The epochs in the program's own log, in order."""
    log = (home.path / "jobs/struck/logs/struck-worker-0.log").read_text(encoding="utf-8")
    found = [int(number) for number in re.findall(r"epoch (\d+): val loss", log)]
    return [epoch for epoch in found if epoch < EPOCHS]  # it may begin another before it is ended
