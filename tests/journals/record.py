"""Writes this release's journals into tests/data/journals/VERSION: `python -m tests.journals.record`.

It runs real jobs on this machine for some minutes: ten kinds of them one after the other, three at once under another
policy, one whose worker and whose handler are killed, programs. `python -m tests.journals.record JOURNAL.db` takes
a cluster's journal, which a test of tests/kubernetes/test_laptop.py has left in its state folder, `slurm=JOURNAL.db`
one of tests/slurm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from coach import __version__
from coach.core.cluster import Placement, Role
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.handler.state.codec import Record
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.journals.replay import FOLDER, write
from tests.journals.test_replay import SCHEMA, schema
from tests.platforms.local.functions import ask

ROOT = Path(__file__).resolve().parents[2]
COACH = [sys.executable, "-m", "coach.cli.main"]
#: Seconds for what a job is waited for.
PATIENCE = 300.0
MLP = str(ROOT / "functions/models/mlp.py")
PROGRAM = """
import os, time, sys
for epoch in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.3)
    print(f"eval_loss={1 / (1 + epoch):.4f}", flush=True)
"""


def job(name: str, **changes: Any) -> dict[str, Any]:
    """A job file of the digits of scikit-learn's 8x8 form."""
    spec: dict[str, Any] = {
        "model": {"file": MLP},
        "data": {"format": "digits8x8"},
        "target": {"loss": 0.5, "epochsInARow": 2},
        "budget": {"amount": 0.05, "currency": "USD"},
        "workers": {"min": 1, "max": 2},
        "servers": {"min": 1, "max": 1},
        "maxEpochs": 40,
        "batchSize": 32,
        "optimizer": {"name": "sgd", "learningRate": 0.05, "momentum": 0.9},
    }
    spec |= changes
    made = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    return made | {"spec": {key: value for key, value in spec.items() if value is not None}}


#: Ten kinds of jobs that end by themselves, or by what is said to them below.
KINDS: dict[str, dict[str, Any]] = {
    "to-loss": {},
    "to-accuracy": {"target": {"accuracy": 0.8, "epochsInARow": 3}},
    "best-for-money": {"target": None, "budget": {"amount": 0.0004, "currency": "USD"}},
    "best-of-epochs": {"target": None, "maxEpochs": 5},
    "static": {"policy": {"name": "static", "workers": 1, "servers": 1}},
    "out-of-money": {"target": {"loss": 0.0001}, "budget": {"amount": 0.0002, "currency": "USD"}},
    "too-few-epochs": {"target": {"loss": 0.0001}, "maxEpochs": 4},
    "broken-model": {"model": {"file": "broken.py"}},
    "suspended": {"target": {"loss": 0.0001}, "maxEpochs": 60, "stopEarly": False},
    "cancelled": {"target": {"loss": 0.0001}, "maxEpochs": 100_000, "stopEarly": False},
}


class Handler:
    """A service with a state folder of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.words = folder, words
        self.home = StateDirectory(folder / "home")
        self.environment = {**os.environ, "COACH_HOME": str(self.home.path), "PYTHONPATH": str(ROOT)}
        self.environment["COACH_CATALOGS"] = str(folder / "catalogs")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            command = [
                *COACH,
                "serve",
                "--port",
                "0",
                "--allow",
                str(self.folder),
                "--allow",
                str(ROOT),
                *self.words,
            ]
            return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def coach(self, *words: str) -> None:
        """Run a command; it may be too early for the service to be found."""
        deadline = time.monotonic() + 60
        while subprocess.run([*COACH, *words], cwd=self.folder, env=self.environment, check=False).returncode:
            log = (self.folder / "log").read_text()[-500:]
            failed = f"coach {' '.join(words)}: failed for 60 s; on a busy machine, run it again; the service: {log}"
            assert time.monotonic() < deadline, failed
            time.sleep(0.5)

    def submit(self, *documents: dict[str, Any]) -> None:
        file = self.folder / f"{documents[0]['metadata']['name']}.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        self.coach("submit", str(file))

    def until(self, what: str, found: Callable[[dict[str, Job], list[Record]], bool]) -> None:
        """Wait until the journal says so."""
        deadline = time.monotonic() + PATIENCE
        while True:
            journal = Journal.read(self.home.journal(1))
            jobs, records = journal.jobs(), [record for _, record in journal.records()]
            journal.close()
            if found(jobs, records):
                return
            assert time.monotonic() < deadline, f"{what}: {[(j.name, j.state, j.reason) for j in jobs.values()]}"
            time.sleep(0.2)

    def ended(self, *names: str) -> None:
        self.until(f"the end of {names}", lambda jobs, _: all(jobs[name].ended for name in names))

    def epochs(self, name: str, many: int) -> None:
        self.until(f"{many} epochs of {name}", lambda jobs, _: len(jobs[name].epochs) >= many)

    def address(self, role: Role) -> str:
        """host:port of the newest function of this role."""
        journal = Journal.read(self.home.journal(1))
        ready = [record for _, record in journal.records() if isinstance(record, ev.PodReady)]
        journal.close()
        return next(record.address for record in reversed(ready) if record.pod.role is role)

    def kill(self) -> None:
        """Kill it, and start another one."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


def kinds(handler: Handler) -> None:
    """Ten kinds of jobs, one after the other."""
    (handler.folder / "broken.py").write_text("raise ValueError('broken')\n")
    for name, changes in KINDS.items():
        handler.submit(job(name, **changes))
        if name in ("suspended", "cancelled"):
            handler.epochs(name, 3)
            handler.coach("suspend" if name == "suspended" else "cancel", name)
        if name == "suspended":
            handler.until("suspended", lambda jobs, _: jobs["suspended"].reason == "Suspended")
            handler.coach("resume", name, "--add-budget", "0.01")
        handler.ended(name)


def shared(handler: Handler) -> None:
    """Three jobs at once on two nodes with two cores each."""
    names = ("first", "second", "third")
    handler.submit(*(job(name, target={"loss": 0.3 + place / 10}) for place, name in enumerate(names)))
    handler.ended(*names)


def faults(handler: Handler) -> None:
    """A worker is killed in an epoch, then the handler."""
    handler.submit(job("struck", target={"loss": 0.0001}, maxEpochs=14))
    handler.epochs("struck", 4)
    worker = handler.address(Role.WORKER)
    os.kill(ask(worker)["zygote_pid"], signal.SIGKILL)
    failed = lambda _, records: any(isinstance(record, ev.PodLost | ev.EpochFailed) for record in records)  # noqa: E731
    handler.until("a lost worker", failed)
    handler.epochs("struck", 7)
    running = lambda _, records: isinstance(records[-1], act.RunEpoch | act.SetStatus)  # noqa: E731
    handler.until("an epoch", running)
    handler.kill()
    handler.ended("struck")


def program(handler: Handler) -> None:
    """A program to its target, one that ends before it, one whose money ends; a long run, and one that learns of it."""
    (handler.folder / "train.py").write_text(PROGRAM)
    for name, epochs, target, money in (
        ("ahead", 20, 0.2, 1.0),
        ("short", 3, 0.01, 1.0),
        ("poor", 500, 0.001, 2e-5),
        ("long", 40, 0.03, 1.0),
        ("later", 30, 0.05, 1.0),
    ):
        spec: dict[str, Any] = {
            "program": {"command": [sys.executable, "train.py", str(epochs)]},
            "target": {"metric": "eval_loss", "value": target},
            "budget": {"amount": money, "currency": "USD"},
        }
        made = {
            "apiVersion": "coach.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": spec,
        }
        handler.submit(made)
        handler.ended(name)


def accounts(handler: Handler) -> None:
    """Two jobs of a team in a department: the second waits for the first's money; one is billed by a machine.

    A third account collects the first by its label; a fourth is removed.
    """
    handler.coach("budget", "set", "research", "0.01USD/month", "--timezone", "Europe/Berlin")
    handler.coach("budget", "set", "team-a", "0.0003USD/30d", "--in", "research")
    machine = {"hour": 0.0992, "cpu": "4", "memory": "16Gi"}
    prices = {"name": "machine", "currency": "USD", "vcpuSecond": 0, "gibSecond": 0, "invocation": 0}
    paid: dict[str, Any] = {"budget": {"account": "team-a"}, "maxEpochs": 60, "target": {"loss": 1e-9}}
    paid["stopEarly"] = False
    handler.coach("budget", "set", "vision", "5USD/week", "--label", "team=vision")
    handler.coach("budget", "set", "old", "5USD")
    handler.coach("budget", "remove", "old")
    first = job("first", **paid)
    first["metadata"]["labels"] = {"team": "vision"}
    handler.submit(first)
    handler.epochs("first", 1)
    handler.submit(job("second", **paid, prices=prices | {"instance": machine}))
    handler.until("a wait", lambda jobs, _: jobs["second"].reason == "AccountSpent")
    handler.kill()
    handler.until("a start", lambda _, records: sum(isinstance(one, ev.HandlerStarted) for one in records) == 2)
    handler.coach("budget", "set", "team-a", "0.009USD/30d", "--in", "research")
    handler.ended("first", "second")


def prices(handler: Handler) -> None:
    """A job billed by the nodes that it is on, faster on one kind; one by whole hours, one by a changing offer."""
    catalogue = handler.folder / "catalogs/mine/vms.csv"
    catalogue.parent.mkdir(parents=True)
    line = "InstanceType,vCPUs,MemoryGiB,Price\nbig,16,64,{}\n"
    catalogue.write_text(line.format(0.8))
    handler.submit(job("by-nodes", prices="nodes", speedByKind={"cpu-d3_4vcpu-16gb": 1.25}))
    handler.ended("by-nodes")
    handler.submit(job("by-hours", prices="mine/big:hour", budget={"amount": 1, "currency": "USD"}))
    handler.ended("by-hours")
    endless = {"target": {"loss": 1e-9}, "maxEpochs": 100_000, "stopEarly": False}
    handler.submit(job("changed", prices="mine/big", budget={"amount": 1, "currency": "USD"}, **endless))
    handler.epochs("changed", 2)
    catalogue.write_text(line.format(1.2))
    handler.until("a new price", lambda _, all_: any(isinstance(one, ev.PricesChanged) for one in all_))
    handler.epochs("changed", 1 + len(KINDS))
    handler.coach("cancel", "changed")
    handler.ended("changed")


def spot(handler: Handler) -> None:
    """Two jobs and room for one on a spot node: the second waits for it, or takes the other node."""
    for name, epochs in (("first", 14), ("second", 8)):
        wanted = {"spot": {"deadline": "20m"}, "workers": {"min": 1, "max": 1}, "target": {"loss": 1e-9}}
        handler.submit(job(name, prices="nodes", maxEpochs=epochs, **wanted))
        handler.epochs(name, 1)
    handler.ended("first", "second")


JOURNALS: dict[str, tuple[Callable[[Handler], None], str, tuple[str, ...]]] = {
    "kinds": (kinds, "coach", ("--nodes", "1x4")),
    "shared": (shared, "drf", ("--nodes", "2x2", "--policy", "drf")),
    "faults": (faults, "coach", ("--nodes", "1x4")),
    "program": (program, "coach", ("--nodes", "1x2")),
    "accounts": (accounts, "coach", ("--nodes", "2x2")),
    "prices": (prices, "coach", ("--nodes", str(ROOT / "tests/journals/nodes.yaml"))),
    "spot": (spot, "coach", ("--nodes", str(ROOT / "tests/journals/spot_nodes.yaml"))),
}


def main() -> None:
    """Record those that are named, or all."""
    for name in sys.argv[1:] or JOURNALS:
        if name.endswith(".db"):
            kind, _, path = name.rpartition("=")
            file = FOLDER / __version__ / f"{kind or 'cluster'}.jsonl.gz"
            write(Path(path), "coach", __version__, file, Placement.DEFAULT)
            continue
        scenario, policy, words = JOURNALS[name]
        with tempfile.TemporaryDirectory() as folder:
            handler = Handler(Path(folder), *words)
            try:
                scenario(handler)
            except BaseException:
                print((Path(folder) / "log").read_text()[-3000:], file=sys.stderr)
                raise
            finally:
                handler.stop()
            write(handler.home.journal(1), policy, __version__, FOLDER / __version__ / f"{name}.jsonl.gz")
        print(f"{name} recorded", flush=True)
    SCHEMA.write_text(json.dumps(schema(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
