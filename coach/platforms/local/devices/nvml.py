"""GPUs of NVIDIA, by NVML, its own library.

Without it the driver's folder names them, which knows neither memory, nor MIG instances, nor the processes on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coach.core.errors import UserError
from coach.platforms.local.devices.device import GIB, Device, Use

#: Of the library.
NAME = "NVML"
#: What limits the devices that a process sees.
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: The same, each group counting within what the one before it leaves; of a group the first that is set.
LIMITS = ((VISIBLE,),)
#: A folder for each GPU that the driver has found; in some containers there are their devices alone.
GPUS = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")


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


def answers() -> bool:
    """Whether NVML does here."""
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


def use(device: Device) -> Use:
    """What a device does now."""
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
    return Use(*found)


def processes(device: Device) -> list[int]:
    """The processes that compute on a device, as far as NVML shows them."""
    nvml = _nvml()
    if nvml is None:
        return []
    with contextlib.suppress(nvml.NVMLError):
        found = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(device.uuid))
        return [one.pid for one in found]
    return []


def sees(devices: Sequence[Device]) -> dict[str, str]:
    """The variables by which a process sees these devices alone."""
    return {VISIBLE: ",".join(one.uuid for one in devices)}


def refuse_index(text: str, devices: Sequence[Device], environ: Mapping[str, str]) -> None:
    """Raises UserError where CUDA may count devices, of which an index names one, in another order than NVML does."""
    if len({one.model for one in devices}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise UserError(
            f"{VISIBLE}={text}: with GPUs of several models, CUDA counts the fastest first, and Coach cannot know "
            f"which that is; use their UUIDs (nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
