"""A machine with GPUs that three people share, and a hand that kills what holds them.

Each person runs two jobs at a time, of one GPU, two GPUs, or two workers with one each: more than there are. What may
never happen is a loss: a GPU that two processes have open at once, one that is held for a job whose run is over, and
one that nobody can have any more.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from coach.platforms.local import devices
from coach.platforms.local.devices import Lease, nvml
from coach.platforms.local.devices.device import Device
from tests.gpus import Gpus, new_uuid

PROGRAM = Path(__file__).with_name("program.py")
#: How a job asks for GPUs: for each worker, and workers.
SHAPES = ((1, 1), (2, 1), (1, 2))
PEOPLE = ("anna", "ben", "cleo")
#: Seconds in which what is killed is cleaned up after: then a GPU that is still held is a loss.
PATIENCE = 30.0
JOB = """
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  program: {{command: [{python}, {program}], directory: {folder}, resumes: true}}
  target: {{loss: 0.05, epochsInARow: 1}}
  budget: {{amount: 1, currency: gpuh}}
  prices: gpu-hours
  workers: {{min: {workers}, max: {workers}}}
  gracePeriod: 2s
  resources: {{worker: {{cpu: 10m, memory: 128Mi, gpu: {gpus}}}}}
"""


class Victim(StrEnum):
    """What is killed: processes that hold a GPU, or keep it for a job."""

    PROGRAM = "program"
    LOADER = "data loader"
    SUPERVISOR = "supervisor"
    HANDLER = "handler"
    BOTH = "handler and supervisor"


@dataclass
class Kill:
    """A victim, and what was lost by it, in words."""

    victim: Victim
    lost: list[str] = field(default_factory=list)


@dataclass
class _Person:
    name: str
    process: subprocess.Popen[bytes] | None = None
    jobs: tuple[str, ...] = ()
    rounds: int = 0


class Box:
    """The machine. `kill` kills one; `end` lets all runs end and looks at what is left."""

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self._folder, self._random = folder, random.Random(seed)
        for name in ("devices", "twice", "processes"):
            (folder / name).mkdir()
        self._gpus = Gpus(folder / "gpus", [new_uuid() for _ in range(count)], ["NVIDIA_H100"] * count)
        self._gpus.files = {uuid: folder / "devices" / uuid for uuid in self._gpus.uuids}
        for file in self._gpus.files.values():
            file.touch()
        self._gpus.write()
        self._devices = [Device(uuid, index, "NVIDIA H100") for index, uuid in enumerate(self._gpus.uuids)]
        self._people = [_Person(name) for name in PEOPLE]
        self.ended = 0  #: runs that came to their ends by themselves

    def _start(self, person: _Person) -> None:
        person.rounds += 1
        person.jobs = tuple(f"{person.name}-{person.rounds}-{one}" for one in "ab")
        files = []
        for job in person.jobs:
            gpus, workers = self._random.choice(SHAPES)
            files.append(self._folder / f"{job}.yaml")
            files[-1].write_text(self._job(job, gpus, workers))
        person.process = self._coach(person.name, files, f"{person.name}-{person.rounds}")

    def _job(self, name: str, gpus: int, workers: int) -> str:
        here = {"python": sys.executable, "program": PROGRAM, "folder": self._folder}
        return JOB.format(name=name, gpus=gpus, workers=workers, **here)

    def _coach(self, who: str, files: list[Path], log: str) -> subprocess.Popen[bytes]:
        path = f"{self._gpus.env['LD_LIBRARY_PATH']}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        own = {"COACH_HOME": str(self._folder / who), "BOX": str(self._folder), "LD_LIBRARY_PATH": path}
        env = {**os.environ, **self._gpus.env, **own}
        env.pop(nvml.VISIBLE, None)
        command = [sys.executable, "-m", "coach.cli.main", "run", "--no-live", *map(str, files)]
        with (self._folder / f"{log}.log").open("wb") as file:
            return subprocess.Popen(command, cwd=self._folder, env=env, stdout=file, stderr=subprocess.STDOUT)

    def _programs(self) -> list[tuple[int, int, int]]:
        """Those that run now: the program, its loader, and its supervisor."""
        found = []
        for file in (self._folder / "processes").iterdir():
            program, loader = map(int, file.name.split("."))
            if (supervisor := _parent(program)) and "supervisor" in _command(supervisor):
                found.append((program, loader, supervisor))
        return sorted(found)

    def _turn(self) -> Iterator[str]:
        """Begin what has ended anew; what is lost by then, in words."""
        yield from self._twice()
        for person in self._people:
            if person.process is None or person.process.poll() is not None:
                if person.process is not None:
                    self.ended += person.process.returncode != -signal.SIGKILL
                    yield from self._held(person.jobs)
                self._start(person)

    def _twice(self) -> Iterator[str]:
        for file in sorted((self._folder / "twice").iterdir()):
            file.unlink()
            yield f"given twice: {file.name}"

    def _held(self, jobs: tuple[str, ...]) -> Iterator[str]:
        """The GPUs that are kept for jobs whose run is over, once that had time to be noticed."""
        words, until = {f"job {name}" for name in jobs}, time.monotonic() + PATIENCE
        while held := [
            f"{one} is held for {who.what}"
            for one in self._devices
            if (who := devices.holder(one)) is not None and who.what in words
        ]:
            if time.monotonic() > until:
                yield from held
                return
            time.sleep(0.1)

    def kill(self) -> Kill:
        """Wait until there is something to kill, for a random while, and kill one."""
        kill = Kill(self._random.choice(list(Victim)))
        time.sleep(self._random.uniform(0.0, 1.0))
        while True:
            kill.lost += self._turn()
            if programs := self._programs():
                break
            time.sleep(0.1)
        program, loader, supervisor = self._random.choice(programs)
        handler = _parent(supervisor)
        victims = {
            Victim.PROGRAM: [program],
            Victim.LOADER: [loader],
            Victim.SUPERVISOR: [supervisor],
            Victim.HANDLER: [handler],
            Victim.BOTH: [handler, supervisor],
        }
        for pid in victims[kill.victim]:
            if pid > 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        kill.lost += self._turn()
        return kill

    def end(self) -> list[str]:
        """What is lost once all runs have ended: each GPU has to be free, and a job that asks for all gets them."""
        lost = []
        for person in self._people:
            if person.process is not None:
                person.process.wait()
                lost += self._held(person.jobs)
        last = self._folder / "last.yaml"
        last.write_text(self._job("last", len(self._devices), 1))
        if self._coach("dora", [last], "last").wait():
            lost.append(f"a job of all GPUs did not end well: {(self._folder / 'last.log').read_text()[-2000:]}")
        lost += self._twice()
        for device in self._devices:
            if (lease := Lease.take(device)) is None:
                lost.append(f"{device} cannot be taken: {devices.holder(device)}")
            else:
                lease.close()
        if left := self._programs():
            lost.append(f"processes are left: {left}")
        return lost

    def close(self) -> None:
        """End what runs still."""
        for person in self._people:
            if person.process is not None and person.process.poll() is None:
                person.process.kill()
                person.process.wait()


def _parent(pid: int) -> int:
    """0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""
