"""The GPUs of this machine: what there is, which of them this process may use, and who has each.

They are found by the library of their vendor, NVML or amdsmi; `nvml` and `amd` have the same functions.

A device belongs to one worker at a time on the whole machine. Who has it holds an abstract unix socket with the
device's UUID in its name: the kernel lets one process at a time, of whichever user, have a name, and frees it with the
last process that holds it. The socket is no file: nothing stays behind, and there is nothing to forge. Who connects
learns from the kernel which process listens, and of which user, and from this process for which job.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from coach.core.errors import UserError
from coach.platforms.local.devices import amd, nvml
from coach.platforms.local.devices.device import Device, Use

#: Set: processes of others on a device are no reason not to give it, and jobs without GPUs see all devices.
SHARE = "COACH_SHARE_GPUS"
#: GiB that are in use on a device on which nothing runs: more is a program's that cannot be seen from here.
IDLE_GIB = 2.0
#: The name of the socket of a device.
_NAME = "\0coach-gpu/"
#: Seconds in which a holder says for which job; one that is paused says nothing.
_ANSWER_SECONDS = 0.2
_LONGEST_ANSWER = 256


class Process(NamedTuple):
    """A process, its user, and what it is: a program's name, or the job that it has a device for."""

    pid: int
    user: str
    what: str

    def __str__(self) -> str:
        return f"{self.what}, process {self.pid}" + (f" of {self.user}" if self.user else "")


# -- what there is -------------------------------------------------------------------------------------


class Vendor(Protocol):
    """What `nvml` and `amd` both are."""

    NAME: str
    LIMITS: tuple[tuple[str, ...], ...]

    def answers(self) -> bool:
        """Whether the library does here."""
        ...

    def all_devices(self, *, lost: bool = False) -> list[Device]:
        """The devices that work; `lost`: the others as well, with what is wrong in place of their model."""
        ...

    def problem(self, device: Device) -> str:
        """Why a device no longer works; "" of one that does."""
        ...

    def use(self, device: Device) -> Use:
        """What a device does now."""
        ...

    def processes(self, device: Device) -> list[int]:
        """The processes that compute on a device, as far as the library shows them."""
        ...

    def sees(self, devices: Sequence[Device]) -> dict[str, str]:
        """The variables by which a process sees these devices alone."""
        ...

    def refuse_index(self, text: str, devices: Sequence[Device], environ: Mapping[str, str]) -> None:
        """Raise UserError where programs may count devices, of which an index names one, in another order."""
        ...


def vendor() -> Vendor:
    """Whose GPUs this machine has; NVIDIA's where it has both, or none."""
    return amd if not nvml.answers() and amd.answers() else nvml


def limits(environ: Mapping[str, str] | None = None) -> list[str]:
    """The variables that limit the devices a process sees, and are set."""
    environ = os.environ if environ is None else environ
    return [name for group in vendor().LIMITS for name in group if name in environ]


def all_devices(*, lost: bool = False) -> list[Device]:
    """The devices of this machine that work, in the order of their vendor's library; `lost`: the others as well."""
    return vendor().all_devices(lost=lost)


def visible(devices: Sequence[Device], environ: Mapping[str, str] | None = None) -> list[Device]:
    """Those of `devices` that the user's own variables name, such as `CUDA_VISIBLE_DEVICES`, in their order.

    All of them where none is set. Raises UserError where one names no device, or an index does not say which.
    """
    environ = os.environ if environ is None else environ
    left, whole = list(devices), True
    for group in vendor().LIMITS:
        if left and (name := next((one for one in group if one in environ), "")):
            left, whole = _named(name, environ, left, whole=whole), False
    return left


def _named(name: str, environ: Mapping[str, str], devices: Sequence[Device], *, whole: bool) -> list[Device]:
    """`whole`: they are all of the machine, else an index is a place among them."""
    text = environ[name]
    found: list[Device] = []
    for word in (one.strip() for one in text.split(",")):
        if word in ("", "-1", "none", "void", "NoDevFiles"):  # the driver reads no further
            break
        if word.isdigit():
            vendor().refuse_index(text, devices, environ)
            named = [one for place, one in enumerate(devices) if (one.index if whole else place) == int(word)]
        else:
            named = [one for one in devices if any(known.startswith(word) for known in (one.uuid, *one.aliases))]
            named = [] if len(named) > 1 else named
        if not named:
            there = ", ".join(f"{one.index}: {one.uuid}" for one in devices)
            raise UserError(
                f"{name}={text}: {word} is not one of this machine's GPUs ({there}); name one of these, or unset it"
            )
        found += [one for one in named if one not in found]
    return found


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


def foreign(device: Device) -> list[Process]:
    """The processes that compute on a device, as far as its library shows them."""
    return [_process(pid) for pid in vendor().processes(device)]


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

    The latter is no reason where GPUs are shared. A library knows no processes of other containers, but their memory.
    """
    if why := vendor().problem(device):
        return [f"{device}: {why}"]
    if os.environ.get(SHARE):
        return []
    if others := foreign(device)[:1]:
        return [f"{device} is used by {one}" for one in others]
    used = vendor().use(device).memory or 0.0
    return [f"{device} has {used:.1f} GiB in use, by what cannot be seen from here"] if used > IDLE_GIB else []


def found() -> list[Device]:
    """The devices that this process may use. Raises UserError as `visible` does."""
    return visible(all_devices())
