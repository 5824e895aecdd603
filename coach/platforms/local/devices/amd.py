"""GPUs of AMD, by amdsmi, its own library: ROCm 6.4 or later, with the Python package of the same version."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coach.platforms.local.devices.device import Device, Use

#: Of the library.
NAME = "amdsmi"
#: What limits the devices that a process sees, each group counting within what the one before it leaves; of a group
#: the first that is set. The first takes UUIDs and indices, the others indices.
LIMITS = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
#: GiB of a MiB.
_GIB = 1024.0


def _library() -> bool:
    """Whether there is one: without it the package prints that, and takes its time."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libamd_smi.so")
        return True
    places = (os.environ.get("ROCM_HOME"), os.environ.get("ROCM_PATH"), "/opt/rocm")
    return any(Path(place, "lib/libamd_smi.so").exists() for place in places if place)


@cache
def _amdsmi() -> Any:
    """The binding, ready; None without the package, its library or a GPU's driver."""
    if not _library():
        return None
    try:
        import amdsmi
    except (ImportError, OSError, AttributeError):  # or the package is of another version
        return None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException:
        return None
    return amdsmi


def answers() -> bool:
    """Whether amdsmi does here."""
    return _amdsmi() is not None


def all_devices(*, lost: bool = False) -> list[Device]:
    """The devices of this machine that work, as HIP counts them; `lost`: the others as well, as `nvml.all_devices`."""
    return [device for device, handle in _found() if handle is not None or lost]


def _found() -> list[tuple[Device, Any]]:
    """Each device with its handle, which is None where it does not work."""
    smi, found = _amdsmi(), []
    for place, handle in enumerate(smi.amdsmi_get_processor_handles()):
        try:
            names, asic = smi.amdsmi_get_gpu_enumeration_info(handle), smi.amdsmi_get_gpu_asic_info(handle)
            memory = smi.amdsmi_get_gpu_vram_usage(handle)["vram_total"] / _GIB
            found.append((Device(names["hip_uuid"], names["hip_id"], asic["market_name"], memory), handle))
        except smi.AmdSmiException as error:
            found.append((Device("", place, _words(error)), None))
    times = Counter(device.uuid for device, _ in found)
    found = [  # the partitions of a GPU have one UUID
        (device if times[device.uuid] == 1 or not device.uuid else _by_index(device), handle)
        for device, handle in found
    ]
    return sorted(found, key=lambda one: one[0].index)


def _by_index(device: Device) -> Device:
    return Device(str(device.index), device.index, device.model, device.memory)


def _words(error: Any) -> str:
    """What amdsmi says, without its code: `AMDSMI_STATUS_NOT_FOUND - Device Not found`."""
    return str(error.get_error_info() if hasattr(error, "get_error_info") else error)


def _handle(device: Device) -> Any:
    return next((handle for one, handle in _found() if one.uuid == device.uuid), None)


def problem(device: Device) -> str:
    """What amdsmi says of a device that no longer works; "" of one that does."""
    if _handle(device) is not None:
        return ""
    return next((one.model for one, handle in _found() if handle is None), "it is not there any more")


def use(device: Device) -> Use:
    """What a device does now."""
    smi, handle = _amdsmi(), _handle(device)
    if handle is None:
        return Use()

    def asked(question: str, *names: str) -> float | None:
        with contextlib.suppress(smi.AmdSmiException):
            answer = getattr(smi, question)(handle)
            return next((float(answer[name]) for name in names if isinstance(answer[name], int)), None)
        return None

    memory = asked("amdsmi_get_gpu_vram_usage", "vram_used")
    watts = asked("amdsmi_get_power_info", "current_socket_power", "average_socket_power")
    return Use(None if memory is None else memory / _GIB, asked("amdsmi_get_gpu_activity", "gfx_activity"), watts)


def processes(device: Device) -> list[int]:
    """The processes that compute on a device, as far as amdsmi shows them."""
    smi, handle = _amdsmi(), _handle(device)
    if handle is not None:
        with contextlib.suppress(smi.AmdSmiException):
            return [int(one["pid"]) for one in smi.amdsmi_get_gpu_process_list(handle)]
    return []


def sees(devices: Sequence[Device]) -> dict[str, str]:
    """The variables by which a process sees these devices alone; what it inherits must not count within them."""
    places = ",".join(str(place) for place in range(len(devices))) or "-1"
    first, *others = (name for group in LIMITS for name in group)
    return {first: ",".join(one.uuid for one in devices), **dict.fromkeys(others, places)}


def refuse_index(text: str, devices: Sequence[Device], environ: object) -> None:
    """HIP counts the devices as amdsmi says."""
