"""Searches of a real program whose handler, `coach search` or `coach serve`, is killed at a random instant."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coach.core.jobs.job import Job
from coach.core.money import to_amount
from coach.handler import accounts
from coach.handler.search.definition import load
from coach.handler.search.standing import standing
from coach.handler.state.state_directory import StateDirectory
from tests.chaos.runs import ROOT

#: Each trial's value is known: the third rate is the best, the last one is refused by the program.
RATES, BEST, EPOCHS = "1.0,0.1,0.01,9.0", 0.01, 6
PROGRAM = f"""
import json, math, os, sys, time
rate, seed = float(sys.argv[1]), int(sys.argv[2])
if rate > 5:
    sys.exit(f"a rate of {{rate}} is too large")
path = os.path.join(os.environ["COACH_CHECKPOINTS"], "epoch.json")
epoch = json.load(open(path)) if os.path.exists(path) else 0
while epoch < {EPOCHS}:
    time.sleep(0.3)
    epoch += 1
    json.dump(epoch, open(path + ".new", "w"))
    os.replace(path + ".new", path)
    loss = abs(math.log10(rate) + 2) * 0.3 + math.exp(-epoch / 4) + 0.01 * seed
    print(f"epoch {{epoch}} val_loss: {{loss:.4f}}", flush=True)
"""
BUDGET, SEEDS, PATIENCE = 1.0, 2, 240.0


@dataclass(frozen=True)
class Fault:
    """SIGKILL to the handler, `seconds` after it has said `lines` lines. `service`: it is `coach serve`."""

    service: bool
    lines: int
    seconds: float


def draw(seed: int, number: int) -> Fault:
    """The fault of run `number` of `seed`."""
    rng = random.Random(f"search {seed} {number}")
    return Fault(number % 2 == 1, rng.randint(1, 24), rng.uniform(0.0, 1.5))


def run_with(fault: Fault) -> tuple[list[str], bool]:
    """What a search with this fault has lost, and whether it was struck before its end."""
    with tempfile.TemporaryDirectory(prefix="coach-search-") as folder:
        return _Run(Path(folder), fault).losses()


class _Run:
    def __init__(self, folder: Path, fault: Fault) -> None:
        self._folder, self._fault = folder, fault
        self._home = StateDirectory(folder / "home")
        (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
        self._environment = os.environ | {"COACH_HOME": str(self._home.path), "PYTHONPATH": str(ROOT)}
        self._search = [
            "search", "--no-live", "--set", f"rate={RATES}", "-o", "json", "--budget", f"{BUDGET}USD",
            "--objective", "val_loss", "--resumes", "--cpu", "1", "--memory", "256Mi", "--max-epochs", str(EPOCHS),
            "--final-seeds", str(SEEDS), "--pruner", "halving", "--", sys.executable, "train.py", "{rate}", "{seed}",
        ]  # fmt: skip

    def losses(self) -> tuple[list[str], bool]:
        struck = self._struck()
        tried = load(self._home, "train").parameters if struck else ()
        service = self._coach("serve", "--port", "0", "--allow", str(self._folder)) if self._fault.service else None
        try:
            if service is not None:
                _hear(service, re.compile(r"http://"))
                threading.Thread(target=service.stderr.read, daemon=True).start()  # else a full pipe stops it
            done = self._coach(*self._search)
            out, said = done.communicate(timeout=PATIENCE)
        finally:
            if service is not None:
                with service:  # its pipes are closed
                    service.send_signal(signal.SIGTERM)
                    service.wait(timeout=PATIENCE)
        if done.returncode != 0:
            return [f"exit code {done.returncode}: {said[-300:]}"], struck
        return list(self._lost(json.loads(out), tried)), struck

    def _struck(self) -> bool:
        """Start it, and kill its handler; False where it ended before."""
        words = ("serve", "--port", "0", "--allow", str(self._folder)) if self._fault.service else self._search
        with self._coach(*words) as victim:
            try:
                asked = None
                if self._fault.service:
                    _hear(victim, re.compile(r"http://"))
                    asked = self._coach(*self._search)
                heard = _hear(victim, re.compile(r"train-"), self._fault.lines)
                time.sleep(self._fault.seconds)
                struck = heard and victim.poll() is None
            finally:
                victim.kill()
            if asked is not None:
                struck = struck and asked.poll() is None
                asked.kill()
                asked.communicate()
        return struck

    def _coach(self, *words: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "coach.cli.main", *words]
        return subprocess.Popen(command, cwd=self._folder, env=self._environment, **pipes)

    def _lost(self, found: dict[str, Any], tried: tuple[Any, ...]) -> Any:
        definition = load(self._home, "train")
        known, jobs = accounts.read(self._home)
        now = standing(definition, dict(jobs))
        if found["best"]["parameters"] != {"rate": BEST}:
            yield f"the best is {found['best']['parameters']}"
        if definition.parameters[: len(tried)] != tried:
            yield f"trials were {tried}, then {definition.parameters}"
        if len(found["final_values"]) != SEEDS:
            yield f"{len(found['final_values'])} of {SEEDS} final seeds"
        if [row["state"] for row in found["trials"]].count("failed") != 1:
            yield "the trial that fails has not, or another one"
        for job in (*now.jobs.values(), *now.finals_of.values()):
            yield from _of(job)
        account = known.known["train"]
        spent = to_amount(account.payments.since(float("-inf")))
        if account.held or spent > BUDGET or abs(spent - now.spent) > 1e-9:
            yield f"spent {spent}, by jobs {now.spent}, of {BUDGET}; held {account.held}"


def _of(job: Job) -> Any:
    numbers = [epoch.number for epoch in job.full_epochs]
    if numbers != sorted(set(numbers)):
        yield f"{job.name}: epochs {numbers}"
    if job.money.ledger.reserved or job.gang.pods:
        yield f"{job.name}: holds {job.money.ledger.reserved} and {list(job.gang.pods)}"


def _hear(process: subprocess.Popen[str], words: re.Pattern[str], times: int = 1) -> bool:
    """Whether it has said these words in so many lines, before its end."""
    assert process.stderr is not None
    for line in process.stderr:
        times -= bool(words.search(line))
        if times <= 0:
            return True
    return False
