"""What `coach ps --devices` shows: each GPU of this machine, whose it is, how busy, and since when."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from coach.platforms.local import devices
from coach.platforms.local.devices import Process
from coach.platforms.local.devices.device import Device


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A GPU or MIG instance; memory in GiB, power in watts, `busy` in percent of the time. None: not known."""

    index: int
    uuid: str
    model: str
    memory: float
    used: float | None
    busy: float | None
    watts: float | None
    who: str  #: the job or the foreign process that has it; empty where it is free
    pid: int | None
    user: str
    since: float | None  #: when that process began, seconds since 1970
    problem: str  #: what its library says of one that does not work


def device_rows() -> list[DeviceRow]:
    """All GPUs that this process may use, those that do not work included."""
    return [_row(device) for device in devices.visible(devices.all_devices(lost=True))]


def _row(device: Device) -> DeviceRow:
    if not device.uuid:
        return DeviceRow(device.index, "", "", 0.0, None, None, None, "", None, "", None, device.model)
    used, busy, watts = devices.vendor().use(device)
    who: Process | None = devices.holder(device) or next(iter(devices.foreign(device)), None)
    return DeviceRow(
        *(device.index, device.uuid, device.model, device.memory, used, busy, watts),
        who=who.what if who else "",
        pid=who.pid or None if who else None,
        user=who.user if who else "",
        since=_began(who.pid) if who else None,
        problem=devices.vendor().problem(device),
    )


def _began(pid: int) -> float | None:
    """When a process began; None where it cannot be seen."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        ago = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - max(0.0, ago)
