"""A real Slurm on this machine: munge, a controller and three nodes, each with 2 cores, 4 GB and two pretended GPUs.

`python -m tests.slurm.cluster` starts one, says how to use it, and ends it with Ctrl-C. It needs root and Debian's
packages slurmctld, slurmd, slurm-client and munge. Several may run at once. COACH_SLURM names the folder of another
Slurm: README.md beside this file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from tests.chaos.processes import command, parent

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey")
NODES = ("n0", "n1", "n2")
#: Seconds for the cluster to be ready, and for what is waited for in it.
READY_SECONDS = 60.0

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d-%n.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
GresTypes=gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=3
MessageTimeout=10
SlurmdTimeout=10
MinJobAge={min_job_age}
NodeName=n0 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000 Gres=gpu:2
NodeName=n1 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000 Gres=gpu:2
NodeName=n2 NodeAddr=127.0.0.1 Port={ports[3]} CPUs=2 RealMemory=4000 Gres=gpu:2
PartitionName=main Nodes=n[0-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=short Nodes=n[0-2] MaxTime=1 State=UP PriorityTier=1 TRESBillingWeights=CPU=1.0,Mem=0.25G
PartitionName=urgent Nodes=n[0-2] MaxTime=60 State=UP PriorityTier=10
"""


def _path() -> str:
    """Where Slurm's programs are."""
    other = os.environ.get("COACH_SLURM")
    return ":".join([*(f"{other}/{of}" for of in ("bin", "sbin") if other), os.environ.get("PATH", ""), "/usr/sbin"])


def missing() -> list[str]:
    """Programs that are not installed."""
    path = _path()
    return [name for name in NEEDED if shutil.which(name, path=path) is None]


class SlurmCluster:
    """Use as `with SlurmCluster() as cluster`. `env` reaches it."""

    def __init__(self, min_job_age: int = 300) -> None:
        self._min_job_age = min_job_age
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._undo = contextlib.ExitStack()
        #: Linux ends a child by PR_SET_PDEATHSIG when the thread ends that started it, so that one starts all.
        self._starter = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        with self._undo:
            # Sockets have short names, and munge wants a folder in which nobody else may write.
            self.folder = Path(tempfile.mkdtemp(prefix="coach-slurm-"))
            self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.folder.chmod(0o755)
            self._undo.callback(self._end)
            host = socket.gethostname().partition(".")[0]
            conf = _CONF.format(host=host, folder=self.folder, ports=_free_ports(4), min_job_age=self._min_job_age)
            (self.folder / "slurm.conf").write_text(conf)
            (self.folder / "gres.conf").write_text("NodeName=n[0-2] Name=gpu File=/dev/null,/dev/zero\n")
            (self.folder / "state").mkdir()
            mine = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
            self.env: dict[str, str] = mine | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}
            key, at = self.folder / "munge.key", self.folder
            subprocess.run(["mungekey", "--create", f"--keyfile={key}"], env=self.env, check=True)
            files = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
            options = [f"--{name}={at}/munge.{end}" for name, end in files.items()]
            self.start("munged", "munged", "--foreground", "--force", *options)
            self.until((at / "munge.socket").exists)
            self.start("ctld", "slurmctld", "-D", "-c")
            for node in NODES:
                (self.folder / f"spool-{node}").mkdir()
            self.whole()
            self._undo = self._undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def __call__(self, *words: str, check: bool = True, **more: Any) -> str:
        """What a command of Slurm prints."""
        found = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False, **more)
        if check and found.returncode:
            raise AssertionError(f"{' '.join(words)}: {found.stderr}")
        return found.stdout

    def start(self, name: str, *words: str) -> None:
        """Start a part of it (again)."""
        self.kill(name)
        with (self.folder / f"{name}.out").open("ab") as out:
            # It ends with this process, however that ends. A slurmstepd that crashes leaves no core in a job's folder.
            words = ("prlimit", "--core=0", "setpriv", "--pdeathsig", "KILL", *words)
            new = self._starter.submit(
                subprocess.Popen, words, env=self.env, stdout=out, stderr=out, start_new_session=True
            )
            self._processes[name] = new.result()

    def restart(self) -> None:
        """Start what was killed."""
        self.start_controller()
        for node in NODES:
            if node not in self._processes:
                self.start(node, "slurmd", "-D", "-N", node)

    def whole(self) -> None:
        """Start what a test has killed, and wait until all nodes are idle."""
        self.restart()
        self.until(lambda: set(NODES) <= set(self("sinfo", "-hNt", "idle", "-o", "%N", check=False).split()))

    def start_controller(self) -> None:
        """Start the controller again, with what it knew; no effect on one that runs."""
        if "ctld" not in self._processes:
            self.start("ctld", "slurmctld", "-D")
        self.until(lambda: "UP" in self("scontrol", "ping", check=False))

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        """End a part of it, at once. A controller gets SIGTERM: killed, it may forget which jobs run."""
        if (process := self._processes.pop(name, None)) is not None:
            process.send_signal(how)
            process.wait()

    def kill_steps(self, node: str) -> None:
        """Kill all processes that a node has, as when it loses its power: first those that would report it."""
        mine = set(_marked(f"SLURM_CONF={self.folder}/slurm.conf"))
        theirs = mine & set(_marked(f"SLURMD_NODENAME={node}"))
        _kill_all({pid for one in theirs if (pid := parent(one)) and command(pid).startswith("slurmstepd")})
        _kill_all(theirs)

    def until(self, there: Callable[[], object]) -> None:
        """Wait for something."""
        late = time.monotonic() + READY_SECONDS
        while not there():
            if time.monotonic() > late:
                logs = "\n".join(f"{at.name}: {at.read_text()[-1500:]}" for at in sorted(self.folder.glob("*.log")))
                raise AssertionError(f"not there in {READY_SECONDS:.0f} s\n{logs}")
            time.sleep(0.05)

    def queue(self, states: str = "all", form: str = "%i %T") -> list[str]:
        """The jobs there are, one a line."""
        return self("squeue", "-h", "-t", states, "-o", form).splitlines()

    def hold(self, *options: str) -> str:
        """Have another's job run that takes what `options` of sbatch say; its id, for scancel."""
        other = ("--parsable", "--output=/dev/null", "--mem-per-cpu=10", "--wrap=sleep 300")
        held = self("sbatch", *other, *options).strip()
        self.until(lambda: f"{held} RUNNING" in self.queue())
        return held

    def cancel_all(self) -> None:
        """End all jobs; returns when none runs or waits."""
        self("scancel", "--user=root", check=False)
        late = time.monotonic() + 3.0
        while self.queue("pending,running,suspended,completing") and time.monotonic() < late:
            time.sleep(0.1)
        self("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        self.until(lambda: not self.queue("pending,running,suspended,completing"))

    def _end(self) -> None:
        with contextlib.suppress(Exception):
            self.cancel_all()
        for name in [*NODES, "ctld", "munged"]:
            self.kill(name)
        _kill_all(_marked(f"SLURM_CONF={self.folder}/slurm.conf"))


def _marked(line: str) -> Iterable[int]:
    """Processes with this line in their environment: steps that their slurmd left."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if line.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _kill_all(pids: Iterable[int]) -> None:
    for pid in list(pids):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _usage(env: Mapping[str, str]) -> str:
    return f"export SLURM_CONF={env['SLURM_CONF']}; then sinfo, squeue, sbatch; Ctrl-C ends it"


if __name__ == "__main__":
    if absent := missing():
        raise SystemExit(f"not there: {', '.join(absent)}; apt-get install {' '.join(PACKAGES)}")
    with SlurmCluster() as here, contextlib.suppress(KeyboardInterrupt):
        print(_usage(here.env), flush=True)
        signal.pause()
