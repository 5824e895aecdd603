"""The checks of `coach doctor`: whether this machine can run jobs, and for each problem the next step."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from coach.core.errors import CoachError, PermanentError
from coach.core.optional_feature import OptionalFeature
from coach.handler import endpoint
from coach.handler.endpoint import Endpoint
from coach.handler.private_files import refuse_shared
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.local import devices, pytorch_runtime
from coach.platforms.local.cluster import GIB, machine
from coach.platforms.local.environment import Functions, NotPreparedError
from coach.platforms.local.install_runtime import LIBGOMP
from coach.platforms.slurm.queue import nodes_now
from coach.report import formatting
from coach.service.client import Client
from coach.service.schemas import Check, Status

#: The chart sets it in the handler's pod, whose functions are pods too.
IN_POD = "COACH_HANDLER"
#: An address of the functions' range, behind the last that a function gets.
UNUSED_ADDRESS = "127.100.255.254"
#: Free bytes below which a disk counts as full, and below which the check warns.
DISK_FULL, DISK_LOW = 100 << 20, 1 << 30
#: GiB that a small gang of MXNet processes needs.
MEMORY_LOW = 1.0
#: Files that may be open at once, below which a thousand callers are too many.
FILES_LOW = 2048
#: Seconds in which Slurm says what nodes it has: where there is no cluster, its commands look for one for longer.
SLURM_SECONDS = 10.0
#: What AMD's driver makes.
AMD = Path("/dev/kfd")
#: Seconds that the functions' Python may take to import MXNet.
IMPORT_SECONDS = 60

_IMPORT = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
ctypes.CDLL("libgomp.so.1")
import mxnet, numpy
print(f"Python {sys.version.split()[0]}, MXNet {mxnet.__version__}, numpy {numpy.__version__}")
"""


def checks(home: StateDirectory, also: tuple[OptionalFeature, ...] = (), port: int = 8421) -> Iterator[Check]:
    """All checks, one after the other; none raises."""
    looks: list[Callable[[], Iterator[Check]]] = [
        _python,
        lambda: _home(home),
        lambda: _disk(home),
        lambda: _journals(home),
        *((_pods,) if os.environ.get(IN_POD) else (_frameworks, _machine, _gpus, _addresses)),
        _files,
        lambda: _service(home, port),
    ]
    optional = {
        OptionalFeature.GO: _go,
        OptionalFeature.KUBERNETES: _kubernetes,
        OptionalFeature.SLURM: lambda: _slurm(home),
    }
    looks += [optional[one] for one in also]
    for look in looks:
        try:
            yield from look()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            yield Check(look.__name__.strip("_"), Status.FAILED, said, "this is a bug of Coach: please report it")


def _python() -> Iterator[Check]:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    yield Check("Python", Status.OK, found)


def _home(home: StateDirectory) -> Iterator[Check]:
    folder = _existing(home.path)
    try:
        refuse_shared(home.path)
        with tempfile.TemporaryFile(dir=folder):
            yield Check("state folder", Status.OK, f"{home.path} can be written")
    except OSError as error:
        step = "set COACH_HOME to a folder that can be written"
        yield Check("state folder", Status.FAILED, f"{folder}: {error.strerror}", step)
    except PermanentError as error:
        what, _, step = str(error).rpartition("; ")
        yield Check("state folder", Status.FAILED, what, step)


def _disk(home: StateDirectory) -> Iterator[Check]:
    for name, folder in (("disk", _existing(home.path)), ("temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free
        found = f"{free / GIB:.1f} GiB free at {folder}"
        step = "make room, or move COACH_HOME (checkpoints, journals) and TMPDIR elsewhere"
        status = Status.FAILED if free < DISK_FULL else Status.WARNING if free < DISK_LOW else Status.OK
        yield Check(name, status, found, "" if status is Status.OK else step)


def _journals(home: StateDirectory) -> Iterator[Check]:
    for path in home.journals():
        began = time.monotonic()
        try:
            with contextlib.closing(Journal.read(path)) as journal:
                jobs, held = journal.jobs(), journal.held
        except (CoachError, LookupError, ValueError, TypeError) as error:
            step = "move it away (its jobs are lost), or set COACH_HOME to another folder"
            yield Check(path.name, Status.FAILED, str(error), step)
            continue
        epochs = sum(len(job.epochs) for job in jobs.values())
        now = "a handler has it" if held else "no handler has it"
        seconds = formatting.duration(time.monotonic() - began)
        found = f"{formatting.count(len(jobs), 'job')}, {formatting.count(epochs, 'epoch')}, read in {seconds}; {now}"
        left = [name for name, job in jobs.items() if not held and not job.ended]
        step = f"unfinished jobs wait; resume them: coach resume {left[0]}, or coach serve" if left else ""
        yield Check(path.name, Status.OK, found, step)


def _pods() -> Iterator[Check]:
    settings = Settings.read("")
    found = f"pods of {settings.image}, placed by the scheduler {settings.scheduler}"
    claim = settings.volume_claim
    step = "" if claim else "without a volume jobs need s3:// or gs:// for data and checkpoints"
    yield Check("functions", Status.OK, f"{found}, with the volume {claim}" if claim else found, step)
    if said := settings.deadlock:
        step = "scheduler.kind=coach in the chart's values places all pods of a job together"
        yield Check("scheduler", Status.WARNING, said, step)


def _frameworks() -> Iterator[Check]:
    """MXNet and PyTorch; one of them is enough."""
    try:
        found = pytorch_runtime.torch()
    except CoachError as error:
        yield from _functions()
        if pytorch_runtime.VARIABLE in os.environ:
            yield Check("PyTorch", Status.WARNING, str(error).partition("; pip")[0], pytorch_runtime.REMEDY)
            return
        none = "no Python on this machine has it; only PyTorch jobs need it"
        yield Check("PyTorch", Status.OK, none, pytorch_runtime.REMEDY)
        return
    for check in _functions():
        missing = check.status is Status.FAILED
        yield (
            replace(check, status=Status.WARNING, found=f"{check.found}; only MXNet jobs need it") if missing else check
        )
    versions = f"Python {found.version}, PyTorch {found.torch}, numpy {found.numpy}"
    yield Check("PyTorch", Status.OK, f"{versions}: {found.python}")


def _functions() -> Iterator[Check]:
    try:
        functions = Functions.find()
    except NotPreparedError as error:
        what, _, step = str(error).rpartition(": ")
        yield Check("functions", Status.WARNING, what, step)
        return
    except CoachError as error:
        yield Check("functions", Status.FAILED, str(error), "make setup, in a checkout of Coach")
        return
    yield Check("functions", Status.OK, f"in {functions.folder}")
    command = [str(functions.python), "-c", _IMPORT, str(functions.folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False, cwd=functions.folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("MXNet", Status.FAILED, f"{functions.python}: {error}", functions.remedy)
        return
    if done.returncode == 0:
        yield Check("MXNet", Status.OK, done.stdout.strip())
        return
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    step = f"{functions.remedy}; or COACH_FUNCTIONS_PYTHON, a Python with mxnet"
    if "libgomp" in said:
        step = LIBGOMP
    yield Check("MXNet", Status.FAILED, f"{functions.python}: {said}", step)


def _machine() -> Iterator[Check]:
    here = machine()
    with Path("/proc/meminfo").open(encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    free = int(lines["MemAvailable"].split()[0]) / 1024**2
    yield Check("cores", Status.OK, f"{here.cpu:g}")
    found = f"{free:.1f} of {here.memory:.1f} GiB available"
    low = free < MEMORY_LOW
    step = "end other programs: a small gang takes some 1 GiB" if low else ""
    yield Check("memory", Status.WARNING if low else Status.OK, found, step)


def _gpus() -> Iterator[Check]:
    found = devices.all_devices()
    models = ", ".join(f"{count} x {model}" for model, count in Counter(one.model for one in found).items())
    vendor = devices.vendor()
    if found and not vendor.answers():
        step = (
            "install the driver's libnvidia-ml.so.1: without it Coach sees no memory, no MIG instances, no GPU that "
            "fails, and no processes of others, so two programs may meet on one"
        )
        yield Check("GPUs", Status.WARNING, f"{models}, by the driver's folder alone: NVML does not answer", step)
    elif found:
        usable = devices.visible(found)
        names = " and ".join(devices.limits())
        limit = "" if len(usable) == len(found) else f"; {names} leaves {len(usable)} of them"
        yield Check("GPUs", Status.OK, f"{models}, by {vendor.NAME}{limit}")
    elif AMD.exists():
        step = "install it next to Coach, in the version of your ROCm (6.4 or later): pip install amdsmi==VERSION"
        yield Check("GPUs", Status.WARNING, "AMD's driver is here, but amdsmi does not answer: Coach sees no GPU", step)


def _addresses() -> Iterator[Check]:
    """The functions' addresses: a block of 127/8, port 8080. The check tries one that no function of any run has."""
    if (error := _taken(UNUSED_ADDRESS, 8080)) is None:
        yield Check("functions' port", Status.OK, "8080 is free on their loopback addresses")
        return
    step = (
        "end the program that listens on port 8080 of all addresses: ss -ltnp 'sport = :8080'"
        if error.errno == errno.EADDRINUSE
        else "the functions need loopback addresses 127.64.0.0 to 127.191.255.255"
    )
    yield Check("functions' port", Status.FAILED, f"{UNUSED_ADDRESS}:8080: {error.strerror}", step)


def _taken(host: str, port: int) -> OSError | None:
    """Why nothing could listen there."""
    try:
        with socket.create_server((host, port)):
            return None
    except OSError as error:
        return OSError(error.errno, os.strerror(error.errno or 0))


def _files() -> Iterator[Check]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = hard != resource.RLIM_INFINITY and hard < FILES_LOW
    found = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard:,}"
    step = f"ulimit -Hn {FILES_LOW}, where many call the service at once" if low else ""
    yield Check("open files", Status.WARNING if low else Status.OK, found, step)


def _service(home: StateDirectory, port: int) -> Iterator[Check]:
    here = endpoint.find(home)
    if here is not None:
        yield _answers(here)
    elif error := _taken("127.0.0.1", port):
        step = "give `coach serve` another --port"
        yield Check("service", Status.WARNING, f"none runs; port {port}: {error.strerror}", step)
    else:
        yield Check("service", Status.OK, f"none runs; port {port} is free for one")


def _answers(here: Endpoint) -> Check:
    try:
        with Client(here) as client:
            cluster = client.cluster()
    except CoachError as error:
        step = f"see what process {here.pid} does; end it with SIGTERM, then: coach serve"
        return Check("service", Status.FAILED, str(error), step)
    if here.version != cluster.version or cluster.stopping:
        return Check("service", Status.WARNING, f"at {here.url}, stopping", "wait, then: coach serve")
    nodes = formatting.count(len(cluster.nodes), "node")
    return Check("service", Status.OK, f"at {here.url}, process {here.pid}, {nodes}, policy {cluster.policy}")


def _go() -> Iterator[Check]:
    yield _runs("Go", ["go", "version"], "install Go 1.24 or later: the scheduler plugins are built with it")


def _kubernetes() -> Iterator[Check]:
    yield _runs("kubectl", ["kubectl", "version", "--client"], "install kubectl")
    step = "point KUBECONFIG to a cluster that answers"
    yield _runs("cluster", ["kubectl", "get", "--raw", "/readyz", "--request-timeout=5s"], step)


def _slurm(home: StateDirectory) -> Iterator[Check]:
    step = "run it on a login node of the cluster; if the controller is away, wait: scontrol ping"
    yield _runs("Slurm", ["sinfo", "--version"], step)
    try:
        cluster = asyncio.run(asyncio.wait_for(nodes_now(), SLURM_SECONDS))
    except (CoachError, TimeoutError) as error:
        found = str(error) or f"sinfo did not answer in {SLURM_SECONDS:.0f} s"
        yield Check("nodes", Status.FAILED, found, step)
        return
    gpus, away = sum(node.capacity.gpu for node in cluster.nodes), len(cluster.unavailable)
    found = f"{len(cluster.nodes)}, {away} of them down or drained; {gpus:g} GPUs"
    yield Check("nodes", Status.OK if away < len(cluster.nodes) else Status.WARNING, found)
    kind = _says("stat", "--file-system", "--format=%T", str(_existing(home.path))).strip()
    own = kind in ("tmpfs", "ramfs", "overlayfs", "ext2/ext3", "xfs", "btrfs")
    step = "set COACH_HOME to a folder that compute nodes see, too, if this one is of this machine alone"
    yield Check("shared folder", Status.WARNING if own else Status.OK, f"{home.path}: {kind}", step if own else "")
    # What is left to spend, and what it is counted in, where the site keeps accounts.
    for line in _says("scontrol", "--oneliner", "show", "partition").splitlines():
        of = dict(pair.split("=", 1) for pair in line.split() if "=" in pair)
        if weights := of.get("TRESBillingWeights"):
            words = f"partition {of['PartitionName']} counts {weights} units for an hour of each"
            yield Check("billing", Status.OK, f"{words}; in money: coach prices set 0.40USD/gpuh 0.02USD/coreh")
    fields = "Account,RawUsage,GrpTRESMins,TRESRunMins"
    for line in _says("sshare", "-U", "-n", "-P", "-o", fields).splitlines():
        pairs = zip(fields.split(","), line.strip().split("|"), strict=False)
        yield Check("account", Status.OK, ", ".join(f"{key} {value}" for key, value in pairs if value))


def _says(*command: str) -> str:
    """What a command prints; nothing where it is not there, or fails."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return said.stdout if said.returncode == 0 else ""
    return ""


def _runs(name: str, command: list[str], step: str) -> Check:
    found = shutil.which(command[0])
    if found is None:
        return Check(name, Status.FAILED, f"there is no {command[0]} on the PATH", step)
    try:
        done = subprocess.run([found, *command[1:]], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return Check(name, Status.FAILED, f"{' '.join(command)}: no answer within 20 s", step)
    said = ((done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["nothing"])[0]
    return Check(name, Status.OK, said) if done.returncode == 0 else Check(name, Status.FAILED, said, step)


def _existing(path: Path) -> Path:
    """The folder, or the nearest existing one above it."""
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
