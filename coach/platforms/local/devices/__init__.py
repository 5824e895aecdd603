"""The GPUs of this machine: what there is, which of them this process may use, and who has each.

They are found by NVML, NVIDIA's own library; without it by the driver's folder, which knows neither memory, nor MIG
instances, nor the processes on a GPU.

A device belongs to one worker at a time on the whole machine. Who has it holds an abstract unix socket with the
device's UUID in its name: the kernel lets one process at a time, of whichever user, have a name, and frees it with the
last process that holds it. The socket is no file: nothing stays behind, and there is nothing to forge. Who connects
learns from the kernel which process listens, and of which user, and from this process for which job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from coach.core.errors import UserError

#: What limits the devices that a process sees.
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Set: processes of others on a device are no reason not to give it, and jobs without GPUs see all devices.
SHARE = "COACH_SHARE_GPUS"
#: A folder for each GPU that NVIDIA's driver has found; in some containers there are their devices alone.
GPUS = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")
GIB = 1024.0**3
#: GiB that are in use on a device on which nothing runs: more is a program's that NVML cannot show.
IDLE_GIB = 2.0
#: The name of the socket of a device.
_NAME = "\0coach-gpu/"
#: Seconds in which a holder says for which job; one that is paused says nothing.
_ANSWER_SECONDS = 0.2
_LONGEST_ANSWER = 256


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG instance of one. `index` is NVML's, of the whole GPU; `memory` is GiB, 0 where not known."""

    uuid: str
    index: int
    model: str = "GPU"
    memory: float = 0.0
    #: Other names of it in `CUDA_VISIBLE_DEVICES`.
    aliases: tuple[str, ...] = ()

    @property
    def mig(self) -> bool:
        """Whether it is an instance of a GPU. A process sees one of them only."""
        return self.uuid.startswith("MIG-")

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.model}, {self.uuid})"


class Process(NamedTuple):
    """A process, its user, and what it is: a program's name, or the job that it has a device for."""

    pid: int
    user: str
    what: str

    def __str__(self) -> str:
        return f"{self.what}, process {self.pid}" + (f" of {self.user}" if self.user else "")


# -- what there is -------------------------------------------------------------------------------------


@cache
def _nvml() -> Any:
    """The binding of NVML, ready; None without the library, its driver or the package."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
        import pynvml
    except (OSError, ImportError):
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def by_nvml() -> bool:
    """Whether NVML answers here."""
    return _nvml() is not None


def all_devices(*, lost: bool = False) -> list[Device]:
    """The devices of this machine that work, in NVML's order; a GPU that is cut into MIG instances is these.

    `lost`: those that do not work as well, of which only the index is known; `model` is then what NVML says.
    """
    nvml = _nvml()
    if nvml is None:
        return _by_driver()
    found: list[Device] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            whole = _device(nvml, gpu, index)
            found += _instances(nvml, gpu, whole) or [whole]
        except nvml.NVMLError as error:  # it has fallen off the bus
            found += [Device("", index, str(error))] if lost else []
    return found


def _device(nvml: Any, handle: Any, index: int, aliases: tuple[str, ...] = ()) -> Device:
    uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    return Device(uuid, index, model, nvml.nvmlDeviceGetMemoryInfo(handle).total / GIB, aliases)


def _instances(nvml: Any, gpu: Any, whole: Device) -> list[Device]:
    """The MIG instances of a GPU."""
    found: list[Device] = []
    with contextlib.suppress(nvml.NVMLError):
        if not nvml.nvmlDeviceGetMigMode(gpu)[0]:
            return found
        for at in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with contextlib.suppress(nvml.NVMLError):
                one = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, at)
                ids = nvml.nvmlDeviceGetGpuInstanceId(one), nvml.nvmlDeviceGetComputeInstanceId(one)
                found.append(_device(nvml, one, whole.index, (f"MIG-{whole.uuid}/{ids[0]}/{ids[1]}",)))
    return found


def _by_driver() -> list[Device]:
    if not GPUS.is_dir():
        at = (int(number) for one in DEVICES.glob("nvidia[0-9]*") if (number := one.name[6:]).isdigit())
        return [Device(str(index), index) for index in sorted(at)]
    found = []
    for index, folder in enumerate(sorted(GPUS.iterdir())):
        says: dict[str, str] = {}
        with contextlib.suppress(OSError):
            lines = (folder / "information").read_text().splitlines()
            says = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        found.append(Device(says.get("GPU UUID", str(index)), index, says.get("Model", "GPU")))
    return found


def visible(devices: Sequence[Device], environ: Mapping[str, str] | None = None) -> list[Device]:
    """Those of `devices` that the user's own `CUDA_VISIBLE_DEVICES` names, in its order; all of them without it.

    Raises UserError where it names none of them, or an index does not say which.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(VISIBLE)
    if text is None or not devices:
        return list(devices)
    found: list[Device] = []
    for word in (one.strip() for one in text.split(",")):
        if word in ("", "-1", "none", "void", "NoDevFiles"):  # the driver reads no further
            break
        if word.isdigit():
            _refuse_other_order(text, devices, environ)
            named = [one for one in devices if one.index == int(word)]
        else:
            named = [one for one in devices if any(name.startswith(word) for name in (one.uuid, *one.aliases))]
            named = [] if len(named) > 1 else named
        if not named:
            there = ", ".join(f"{one.index}: {one.uuid}" for one in devices)
            raise UserError(
                f"{VISIBLE}={text}: {word} is not one of this machine's GPUs ({there}); name one of these, or unset it"
            )
        found += [one for one in named if one not in found]
    return found


def _refuse_other_order(text: str, devices: Sequence[Device], environ: Mapping[str, str]) -> None:
    """Raises UserError where CUDA may count the devices in another order than NVML does."""
    if len({one.model for one in devices}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise UserError(
            f"{VISIBLE}={text}: with GPUs of several models, CUDA counts the fastest first, and Coach cannot know "
            f"which that is; use their UUIDs (nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )


# -- who has which -------------------------------------------------------------------------------------


class Lease:
    """A device that this process has, from `take` until `close`; and each process that it was passed to."""

    def __init__(self, device: Device, listening: socket.socket) -> None:
        self.device = device
        self.socket = listening

    @classmethod
    def take(cls, device: Device) -> Lease | None:
        """None where another has it."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(_NAME + device.uuid)
        except OSError:
            listening.close()
            return None
        listening.setblocking(False)
        listening.listen()
        return cls(device, listening)

    def close(self) -> None:
        """Give it back; twice is once."""
        self.socket.close()


def adopt(descriptor: int) -> socket.socket:
    """The socket of a lease that another process took, whose answers now say that this process has it."""
    listening = socket.socket(fileno=descriptor)
    listening.listen()
    return listening


def answer(listening: socket.socket, job: str) -> None:
    """Tell those who ask for which job the device is held."""
    with contextlib.suppress(OSError):
        while True:
            asking, _ = listening.accept()
            with asking:
                asking.setblocking(False)
                with contextlib.suppress(OSError):
                    asking.send(job.encode()[:_LONGEST_ANSWER])


def holder(device: Device) -> Process | None:
    """Who has a device; None where it is free."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_ANSWER_SECONDS)
        try:
            asking.connect(_NAME + device.uuid)
        except ConnectionRefusedError:
            return None
        except OSError:  # more ask than are answered
            return Process(0, "", "a job of Coach")
        seen = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, user = (int.from_bytes(seen[at : at + 4], "little") for at in (0, 4))
        job = b""
        with contextlib.suppress(OSError):
            job = asking.recv(_LONGEST_ANSWER)
    said = "".join(one for one in job.decode(errors="replace") if one.isprintable())
    return Process(pid, _name_of(user), f"job {said}" if said else "a job of Coach")


def problem(device: Device) -> str:
    """What NVML says of a device that no longer works; "" of one that does, or without NVML."""
    nvml = _nvml()
    if nvml is None:
        return ""
    try:
        nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(device.uuid))
    except nvml.NVMLError as error:
        return str(error)
    return ""


def use(device: Device) -> tuple[float | None, float | None, float | None]:
    """GiB used, percent of the time busy, and watts, as NVML has them now; None where it does not."""
    nvml = _nvml()
    found: list[float | None] = [None, None, None]
    if nvml is not None and device.uuid:
        with contextlib.suppress(nvml.NVMLError):
            at = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
            with contextlib.suppress(nvml.NVMLError):
                found[0] = nvml.nvmlDeviceGetMemoryInfo(at).used / GIB
            with contextlib.suppress(nvml.NVMLError):  # of a MIG instance the GPU alone is known
                found[1] = float(nvml.nvmlDeviceGetUtilizationRates(at).gpu)
            with contextlib.suppress(nvml.NVMLError):
                found[2] = nvml.nvmlDeviceGetPowerUsage(at) / 1000.0
    return found[0], found[1], found[2]


def processes(device: Device) -> list[Process]:
    """The processes that compute on a device, as far as NVML shows them."""
    nvml = _nvml()
    if nvml is None:
        return []
    with contextlib.suppress(nvml.NVMLError):
        found = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(device.uuid))
        return [_process(one.pid) for one in found]
    return []


def _process(pid: int) -> Process:
    at = Path("/proc", str(pid))
    try:
        return Process(pid, _name_of(at.stat().st_uid), (at / "comm").read_text().strip())
    except OSError:  # of another container
        return Process(pid, "", "a program that cannot be seen from here")


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"


def reasons(device: Device) -> list[str]:
    """Why a device that is free is not given, a line each: it does not work, or a foreign process is on it.

    The latter is no reason where GPUs are shared. NVML knows no processes of other containers; it knows their memory.
    """
    if why := problem(device):
        return [f"{device}: {why}"]
    if os.environ.get(SHARE):
        return []
    if others := processes(device)[:1]:
        return [f"{device} is used by {one}" for one in others]
    used = use(device)[0] or 0.0
    return [f"{device} has {used:.1f} GiB in use, by what cannot be seen from here"] if used > IDLE_GIB else []


def found() -> list[Device]:
    """The devices that this process may use. Raises UserError as `visible` does."""
    return visible(all_devices())
